"""The answer to one request: framing, and the source of its body.

body framing     when
none             HEAD, 204, 304: what is written is dropped
length           `start` was given a length; bytes pass as they are and must add up to it
as an event      `keep_alive` has begun a stream, and the answer is none: at its end it becomes one
chunked          no length, HTTP/1.1
until close      no length, HTTP/1.0: the connection's end is the body's end

A *source* is whoever pushes the body piece by piece after the handler has returned. It is told
to pause while the client does not read, and when the client has gone.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from inferway.errors import (
    ClientGoneError,
    InferwayError,
    MethodNotAllowedError,
    UnauthorizedError,
    UnsupportedCodingError,
    UpstreamError,
)
from inferway.extension import EndedAnswer
from inferway.http.content_coding import ACCEPTED
from inferway.http.ends import BodySource
from inferway.http.message import STATUS_LINES, Request, status_line
from inferway.model import Headers
from inferway.openai_api.kinds import GENERATING
from inferway.openai_api.responses import (
    answer_event,
    error_body,
    error_event,
    error_status,
    keep_alive_event,
)
from inferway.routing.record import Record
from inferway.upstream.headers import header_block
from inferway_structured.decoding import UNREADABLE
from inferway_structured.sse import content_coding, is_event_stream

if TYPE_CHECKING:
    from inferway.http.connection import ClientConnection
    from inferway.telemetry.tracing import RequestSpan

_NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSE, _AS_EVENT = range(5)
_BODILESS = frozenset({101, 204, 304})
_LOOKS = 16
_COPY_LIMIT = 16 * 1024  # above it, framing is written beside the piece instead of around it
_MAX_EVENT_BYTES = 64 * 1024  # of an error that an engine tells after a stream has begun
_STREAM: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
JSON: Headers = ((b"content-type", b"application/json"),)


class Responder(msgspec.Struct, eq=False):
    """Answers one request: `send`, or `start`, `write`..., `end`. `abort` breaks the answer off.

    Writing to a client who has gone is not an error, it does nothing.
    """

    _connection: ClientConnection
    request: Request
    source: BodySource | None = None
    status: int = 0
    body_bytes: int = 0
    started: bool = False
    ended: bool = False  # also when the client has gone, or after `abort`
    record: Record | None = None  # None: no journey has begun
    span: RequestSpan | None = None  # None: no span has begun
    cut: str = ""  # the outcome of an answer that is not whole
    peer: str = ""  # the client's address, if another process has its connection
    extra: Headers = ()  # that any answer gets, of whatever source
    _framing: int = 0  # _NONE, until the answer has begun
    _head: bytes = b""  # goes out with the first piece: one system call less
    _headers: Headers = ()
    _remaining: int = 0
    _last: bytes = b""  # piece of the body
    _said: int = -1  # `body_bytes` when it was last looked whether the client hears anything
    _as_event: bytearray | None = None  # a stream has been begun by `keep_alive`

    def attach(self, source: BodySource) -> None:
        """Let `source` answer from now on, whenever it can; the handler may return."""
        self.source = source
        if not self._connection.writable:
            source.pause()

    def start(self, status: int, headers: Headers, length: int | None = None) -> None:
        """Begin the answer with its head, which goes out with the first piece, or with `flush`.
        `headers` are without Content-Length, which is `length`, and without hop-by-hop fields;
        x-request-id is added here."""
        if self.started:
            raise RuntimeError(f"the answer has started already, with status {self.status}")
        self.started = True
        if self._as_event is not None:
            self._start_kept_alive(status, headers)
            return
        self._begin(status, headers, length)

    def _begin(self, status: int, headers: Headers, length: int | None) -> None:
        self.status = status
        self._headers = headers
        request, connection = self.request, self._connection
        if connection.closing:
            request.keep_alive = False
        framing = self._choose_framing(status, length)
        if not request.keep_alive:
            framing += b"connection: close\r\n" if status != 101 else b""
        elif not request.http11:
            framing += b"connection: keep-alive\r\n"
        self._head = b"%b%bx-request-id: %b\r\n%b\r\n" % (
            STATUS_LINES.get(status) or status_line(status),
            header_block((*headers, *self.extra) if self.extra else headers),
            request.id,
            framing,
        )

    def switch(self, headers: Headers, protocol: asyncio.Protocol) -> bytes:
        """Answer 101, and hand the connection over to the protocol that the client has asked for.
        Return what the client has said in it already; `end` ends it."""
        upgrade = (b"connection", b"upgrade"), (b"upgrade", self.request.upgrade)
        self.started = True
        self._begin(101, (*headers, *upgrade), None)
        self.flush()
        return self._connection.switch(protocol)

    @property
    def connection(self) -> ClientConnection:
        """The connection of the client."""
        return self._connection

    def flush(self) -> None:
        """Sends the head without waiting for the body."""
        if self._head and not self.ended:
            head, self._head = self._head, b""
            self._connection.transport.write(head)

    def _choose_framing(self, status: int, length: int | None) -> bytes:
        if status in _BODILESS or self.request.method == "HEAD":
            self._framing = _NONE
            return b"" if length is None or status == 204 else b"content-length: %d\r\n" % length
        if length is not None:
            self._framing = _LENGTH
            self._remaining = length
            return b"content-length: %d\r\n" % length
        if self.request.http11:
            self._framing = _CHUNKED
            return b"transfer-encoding: chunked\r\n"
        self._framing = _UNTIL_CLOSE
        self.request.keep_alive = False
        return b""

    def write(self, chunk: bytes) -> None:
        """Send a piece of the body. A piece beyond the length is a RuntimeError, and an abort."""
        if self.ended or not chunk:
            return
        size = len(chunk)
        if self._framing != _CHUNKED or self._head or size > _COPY_LIMIT:
            self._put(chunk, b"")
            return
        self._last = chunk
        self.body_bytes += size
        self._connection.transport.write(b"%x\r\n%b\r\n" % (size, chunk))

    def end(self, chunk: bytes = b"") -> None:
        """End the body, with `chunk` as its last piece. One that is short of its length is aborted
        instead."""
        if self.ended:
            return
        if self._framing == _AS_EVENT:
            chunk = self._event(chunk)
        self._put(chunk, b"0\r\n\r\n" if self._framing == _CHUNKED else b"")
        if self._framing == _LENGTH and self._remaining:
            self.cut = "error"
            self.abort()
            return
        self.ended = True
        self.source = None
        self._connection.answered(self)

    def _put(self, chunk: bytes, tail: bytes) -> None:
        head, self._head = self._head, b""
        size = len(chunk)
        if self._framing == _CHUNKED:
            if size:
                self._last = chunk
                head, tail = b"%b%x\r\n" % (head, size), b"\r\n" + tail
        elif self._framing == _LENGTH:
            self._remaining -= size
            if self._remaining < 0:
                self.cut = "error"
                self.abort()
                raise RuntimeError(f"the body is {-self._remaining} bytes over its length")
        elif self._framing == _NONE:
            size, chunk = 0, b""
        elif self._framing == _AS_EVENT:
            self._keep_for_event(chunk)
            return
        self.body_bytes += size
        if size <= _COPY_LIMIT:
            self._connection.transport.write(head + chunk + tail)
        else:
            self._connection.transport.writelines((head, chunk, tail))

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer at once."""
        self.start(status, ((b"date", self._connection.server.date), *headers), len(body))
        self.end(body)

    def send_error(self, error: InferwayError) -> None:
        """Send the error as the path's clients expect it."""
        if self._as_event is not None:
            self.started = True
            self.status = error_status(error)
            self.end(error_event(error, self.request.path))
            return
        headers = JSON
        if error.retry_after is not None:
            headers = (*JSON, (b"retry-after", b"%d" % error.retry_after))
        elif isinstance(error, MethodNotAllowedError):
            headers = (*JSON, (b"allow", error.allowed.encode()))
        elif isinstance(error, UnauthorizedError):
            headers = (*JSON, (b"www-authenticate", b"Bearer"))  # RFC 9110 15.5.2
        elif isinstance(error, UnsupportedCodingError):  # RFC 9110 12.5.3
            headers = (*JSON, (b"accept-encoding", ACCEPTED.encode()))
        elif isinstance(error, UpstreamError) and error.attempts > 1:
            headers = (*JSON, (b"x-inferway-attempts", b"%d" % error.attempts))
        self.send(error_status(error), headers, error_body(error, self.request.path))

    @property
    def is_kept_alive(self) -> bool:
        """True if the client waits for a stream, and is sent comments while nothing else comes."""
        record = self.record
        return (
            record is not None
            and record.is_streamed
            and self._connection.server.timeouts.stream_keep_alive > 0
            and self.request.path in GENERATING
        )

    def keep_alive(self) -> None:
        """Send the client of a stream a comment, behind the head if that has not been sent yet, if
        it has been sent nothing since the call before: load balancers and clients take a connection
        for dead that is silent for 20 to 60 s. Any engine may still answer."""
        said, self._said = self._said, self.body_bytes
        if said != self._said or self.ended or not self.is_kept_alive:
            return
        if not self.started and self._as_event is None:
            self._begin(200, _STREAM, None)
            self._as_event = bytearray()
        elif not (self._last.endswith(b"\n\n") and _is_readable_stream(self._headers)):
            return  # something other than an event is under way
        self._put(keep_alive_event(self.request.path), b"")
        self._said = -1

    def _start_kept_alive(self, status: int, headers: Headers) -> None:
        """The client has a stream's head already: an answer that is none becomes an event in it."""
        self.status = status
        if status != 200 or not _is_readable_stream(headers):
            self._framing = _AS_EVENT

    def _keep_for_event(self, chunk: bytes) -> None:
        assert self._as_event is not None
        if len(self._as_event) <= _MAX_EVENT_BYTES:
            self._as_event += chunk

    def _event(self, chunk: bytes) -> bytes:
        """Return the answer, of which `chunk` is the last piece, as an event."""
        self._keep_for_event(chunk)
        assert self._as_event is not None
        self._framing = _CHUNKED if self.request.http11 else _UNTIL_CLOSE
        path = self.request.path
        try:
            msgspec.json.decode(self._as_event)
        except UNREADABLE:
            error = UpstreamError("the engine's answer is no stream and no JSON")
            return error_event(error, path)
        return answer_event(bytes(self._as_event), path, is_error=self.status >= 400)

    @property
    def can_say_more(self) -> bool:
        """True if bytes that were not announced may still follow."""
        return self.started and not self.ended and self._framing in (_CHUNKED, _UNTIL_CLOSE)

    def abort(self) -> None:
        """Break the connection, so that the client sees that the answer is not whole."""
        if self.ended:
            return
        self.request.keep_alive = False
        self._over()
        self._connection.abort()

    def shut_down(self, error: InferwayError) -> None:
        """End the answer because the gateway ends: a stream of events with `error` as its last one,
        whose source has written whole events; any other answer by breaking it off."""
        if self.ended:
            return
        self.cut = self.cut or "shutdown"
        source, self.source = self.source, None
        if source is not None:
            source.client_gone()
        if not self.started and self._as_event is not None:
            self.send_error(error)
        elif self.can_say_more and _is_readable_stream(self._headers):
            self.end(error_event(error, self.request.path))
        else:
            self.abort()

    def check_client(self) -> None:
        """Raises ClientGoneError, and this answer has ended, if its client is seen to have gone.

        For who is about to do what costs much. A gateway that lacks CPU time meets requests whose
        clients have given up, and would send them to engines, since it hears of that a turn of
        the loop later; clients who give up and ask again come faster than that. So each client
        who goes unanswered lets the next `_LOOKS` be looked for; else nobody is, and nothing paid.
        """
        connection = self._connection
        if not connection.server.disconnect_checks:
            return
        connection.server.disconnect_checks -= 1
        if connection.has_gone:
            self.request.keep_alive = False
            self.client_gone()
            connection.abort()
            raise ClientGoneError("the client has gone")

    def client_gone(self) -> None:
        """Tell the source that the client has gone."""
        if self.ended:
            return
        if not self.started:
            self.status = 499  # nginx's word for it
            self._connection.server.disconnect_checks = _LOOKS
        source = self.source
        self.ended = True
        try:
            if source is not None:
                source.client_gone()  # before it is logged how this has ended
        finally:
            if self.record is None or self.record.outcome != "ok":
                self.cut = self.cut or "client_gone"
            self._over()

    def _over(self) -> None:
        self.ended = True
        self.source = None  # it knows us: a cycle would wait for the garbage collector
        self._connection.answered(self)

    @property
    def client(self) -> str:
        """The client's address, without its port; `unix` on a Unix socket."""
        return self.peer or self._connection.client

    def as_ended(self) -> EndedAnswer:
        """Return what extensions see of the answer, which has ended."""
        request, record = self.request, self.record
        fields = request.fields.get
        return EndedAnswer(
            self.peer or self._connection.client,
            request.method,
            request.path,
            fields(b"user-agent", b""),
            request.id.decode(),
            fields(b"traceparent"),
            self.status,
            self.cut if self.cut or record is None else record.outcome,
            time.time(),
            time.perf_counter() - request.started,
            self.body_bytes,
            record,
            self.span,
        )


def _is_readable_stream(headers: Headers) -> bool:
    """Return whether an answer with these headers is a stream of events that is not compressed."""
    return is_event_stream(headers) and not content_coding(headers)
