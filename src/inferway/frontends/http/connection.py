"""One client's connection: bytes -> requests, in order, one answered at a time.

Receiving and answering go on independently:

receiving     a request has begun to arrive and is not complete
answering     a Responder is in charge; further complete requests wait in `_queue`
closing       nothing more is read as a request; the connection ends after the answer

receiving  answering   deadline
no         no          keep_alive: closed silently
yes        no          request_body, from the request's first byte: 408
any        yes         none, or idle_stream while the client does not read: aborted

Rule 1: what is refused is answered with 400 (or 408, 413, 414, 417, 431, 501), then the
        connection closes: after bytes that have two readings there is no next request.
        llhttp is strict about lines, names and chunks. Beyond it we refuse (RFC 9112, 9110):
        RTSP and ICE, which it reads as HTTP; versions but 1.1 and 1.0; CONNECT; targets that
        are no path (message.read_target); HTTP/1.1 without Host, a Host that is none; Host or
        framing fields given twice; any coding but `chunked`, and each in HTTP/1.0; framing
        that outweighs what it carries. What llhttp skips is as if it were not there: empty
        lines before a request line, also with a bare CR or LF; spaces between its parts.
        An offered upgrade is ignored: the head is read again without it, because llhttp
        would take a body for the new protocol.
Rule 2: pipelined requests are answered in order. While the queue is full, or the client does
        not read, nothing is read from it. In one turn of the loop a connection has at most
        SLICE_BYTES parsed, beyond the body of one request, and MAX_QUEUED answers: what else
        it sent at once waits for the next turn, and so no client holds the loop.
Rule 3: 100 Continue is sent only when the body is awaited and no answer is in its way.
Rule 4: the client's end of stream counts as its going away, also when it only closed its
        sending side: no OpenAI client half-closes, and an engine must stop at once. uvloop
        tells of it one turn of the loop after the request; `has_gone` looks at the socket.
Rule 5: after an early refusal the socket is closed for sending only, and what still comes is
        thrown away for a while: a close with unread bytes would be a reset, which may
        destroy the answer before the client has read it.
"""

from __future__ import annotations

import asyncio
import re
import select
import time
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from inferway.errors import BadHttpError, RequestError
from inferway.frontends.http.head_checks import (
    SMALL_BODY_BYTES,
    bodies_full,
    body_too_large,
    check_coding,
    check_length,
    expects_continue,
    head_too_large,
    may_be_large,
    merge_repeated,
    too_many_headers,
    without_upgrade,
)
from inferway.frontends.http.message import (
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    Request,
    is_host,
    is_request_id,
)
from inferway.frontends.http.responder import Responder

if TYPE_CHECKING:
    from inferway.frontends.http.server import HttpServer

NEVER = float("inf")
LINGER_SECONDS = 2.0
MAX_QUEUED = 16
SLICE_BYTES = 16 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_HEADERS: list[tuple[bytes, bytes]] = []
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux; hang-ups and errors are always told
_MAX_FRAMING = 16  # bytes around each byte of a chunked body, beyond what a head may have


class _BodyNotAwaitedError(Exception):
    """The handler refuses the request for its head."""


class ClientConnection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_again",
        "_body",
        "_body_bytes",
        "_expects",
        "_first",
        "_headers",
        "_lingering",
        "_parser",
        "_partial",
        "_paused",
        "_pumping",
        "_queue",
        "_read",
        "_received",
        "_receiving",
        "_request",
        "_responder",
        "_searched",
        "_target",
        "_timed",
        "_turn_due",
        "_unread",
        "client",
        "closing",
        "deadline",
        "server",
        "transport",
        "writable",
    )

    transport: asyncio.Transport
    _body: bytes | bytearray

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.deadline = NEVER
        self.closing = False
        self.writable = True
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request | RequestError] = deque()
        self._responder: Responder | None = None
        self._pumping = False
        self._turn_due = False  # the loop calls `_take_turn` next time
        self._paused = False  # nothing is read from the client
        self._lingering = False
        self._unread: bytes | memoryview = b""  # has been received, and waits for its turn
        self._read: bytes | memoryview = b""  # what is being parsed
        self._first = False  # it began with the request that is being parsed
        self._again = b""  # a head whose upgrade is ignored
        self._expects = False
        self.on_message_begin()
        self._receiving = False

    # ---------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        peer = transport.get_extra_info("peername")  # of a Unix socket: "", or None
        self.client: str = peer[0] if peer else "unix"
        self.server.opened(self)
        self._idle()

    def data_received(self, data: bytes) -> None:
        if self.closing or self._lingering:
            return
        if len(data) > SLICE_BYTES or self._unread:
            self._unread = b"".join((self._unread, data)) if self._unread else memoryview(data)
            if not self._queue:
                self._parse_slice()
        else:
            self._parse(data)
        if (self._queue or self._unread) and not self._turn_due:
            self._pump()

    def _parse_slice(self) -> None:
        """Parses a turn's share of what was received."""
        size = SLICE_BYTES
        if self._request is not None:  # a body of known length costs no more than its copying
            length = int(self._request.fields.get(b"content-length", 0))
            size = max(size, length - self._body_bytes)
        unread = self._unread
        self._unread = unread[size:]
        self._parse(unread[:size])

    def _parse(self, data: bytes | memoryview) -> None:
        self._read, self._searched = data, 0
        self._first = not self._receiving
        behind = None
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as e:
                behind = memoryview(data)[e.args[0] :]
            if behind is not None:  # outside the except: a refusal is known by its __context__
                self._ignore_upgrade(behind)
        except httptools.HttpParserCallbackError as e:
            if isinstance(e.__context__, _BodyNotAwaitedError):
                self._answer_head()
            elif isinstance(e.__context__, RequestError):
                self._refuse(e.__context__)
            else:
                raise
        except httptools.HttpParserError as e:
            self._refuse(BadHttpError(f"not an HTTP/1.1 request: {e}"))
        if self._receiving:
            self._after_part(data)
        self._read = b""

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """Reads the head again without it, and what comes after."""
        while True:
            self._parser = httptools.HttpRequestParser(self)
            self._read, self._again = self._again, b""
            self._first, self._searched = True, 0
            self._parser.feed_data(self._read)
            self._read, self._searched = rest, 0
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as e:
                rest = rest[e.args[0] :]

    def eof_received(self) -> None:
        if self._responder is not None:
            self.transport.abort()  # rule 4; a close would first wait until all is read
        # and without an answer under way the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # how it ended makes no difference to us
        self.closing = True
        self._drop_queue()
        self._drop_body()
        self._unread = b""
        del self._parser  # it refers to us: a body would stay until the garbage collector runs
        self.server.lost(self)
        if self._responder is not None:
            self._responder.client_gone()

    def pause_writing(self) -> None:
        self.writable = False
        self.deadline = self.server.time() + self.server.timeouts.idle_stream
        if self._responder is not None and self._responder.source is not None:
            self._responder.source.pause()

    def resume_writing(self) -> None:
        self.writable = True
        if self._responder is None:
            self._idle()
            self._pump()
            return
        self.deadline = NEVER
        if self._responder.source is not None:
            self._responder.source.resume()

    # ------------------------------------------------------------------- httptools' callbacks

    def on_message_begin(self) -> None:
        self._receiving = True
        self._timed = False
        self._request: Request | None = None  # once its head is complete
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""
        self._body_bytes = 0
        self._received = 0  # bytes: of the head, and then of what follows it
        self._partial: bytes | bytearray = b""  # the head so far, in reads before this one

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is None:  # else a trailer: dropped
            self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        headers = self._headers
        fields = dict(headers)
        if len(headers) > MAX_HEADERS or len(self._read) > MAX_TARGET_BYTES or self._partial:
            self._check_size(headers)
        if len(fields) != len(headers):
            merge_repeated(headers, fields)
        parser = self._parser
        method = parser.get_method().decode()
        self._request = request = Request(method, self._target, 0.0)
        request.headers = headers
        request.fields = fields
        place = len(method) + 1 + len(self._target)
        if self._first and self._read[place : place + 11] == b" HTTP/1.1\r\n":
            self._searched, http11 = place + 11, True
        else:
            request.http11 = http11 = self._is_http11(method)
        host = fields.get(b"host")
        if host is None:
            if http11:
                raise BadHttpError("host: required header is missing")
        elif not is_host(host):
            raise BadHttpError(f"host {host[:100]!r}: expected HOST or HOST:PORT")
        length = fields.get(b"content-length")
        if b"transfer-encoding" in fields:
            check_coding(request)
        elif length is not None:
            check_length(length, self.server.limits.body_bytes)
        if b"expect" in fields:
            self._expects = expects_continue(request)
        if may_be_large(fields) and not self.server.awaits_body(request):
            raise _BodyNotAwaitedError
        self._received = -len(self._read)
        if parser.should_upgrade():
            self._again = without_upgrade(request, self._target)

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._body_bytes += size
        bodies = self.server.bodies
        bodies.held += size
        if self._body_bytes > self.server.limits.body_bytes:
            raise body_too_large(self.server.limits.body_bytes)
        if bodies.held > bodies.limit and self._body_bytes > SMALL_BODY_BYTES:
            raise bodies_full(bodies.limit)
        if self._body_bytes == size:
            self._body = body
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += body

    def on_message_complete(self) -> None:
        if self._again:
            return  # it is about to be read again
        request = self._request
        assert request is not None
        if self._body_bytes:
            request.body = bytes(self._body)  # the same object, if it is bytes already
            request.memory = self.server.bodies
            self._body = b""
        request.keep_alive = self._parser.should_keep_alive()
        self._received_whole(request)

    def _received_whole(self, request: Request) -> None:
        self._receiving = self._first = self._expects = False
        request.started = time.perf_counter()
        given = request.fields.get(b"x-request-id")
        request.id = given if given and is_request_id(given) else self.server.new_request_id()
        self._headers, self._request = _NO_HEADERS, None  # an idle connection keeps nothing
        self._queue.append(request)

    # ----------------------------------------------------------------------------- the checks

    def _is_http11(self, method: str) -> bool:
        """Of a request that came in parts, or after others, or with white space: its line is
        somewhere. Raises BadHttpError unless it is HTTP, 1.1 or 1.0."""
        before, self._partial = self._partial, b""
        line = rb"%b *%b *(HTTP|RTSP|ICE)/" % (method.encode(), re.escape(self._target))
        found = re.compile(line).search(before + self._read, self._searched)
        if found is None or found[1] != b"HTTP":
            raise BadHttpError("request line: expected METHOD TARGET HTTP/1.1")
        self._searched = max(0, found.end() - len(before))
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadHttpError(f"HTTP version {version}: expected 1.1 or 1.0")
        return version == "1.1"

    def _check_size(self, headers: list[tuple[bytes, bytes]]) -> None:
        if len(headers) > MAX_HEADERS:
            raise too_many_headers(len(headers))
        if len(self._target) > MAX_TARGET_BYTES:
            raise BadHttpError(f"request target: over {MAX_TARGET_BYTES} bytes", status=414)
        limit = self.server.limits.header_bytes
        if len(self._partial) + len(self._read) > limit:
            size = sum([len(name) + len(value) + 4 for name, value in headers])
            if size > limit:
                raise head_too_large(limit)

    def _after_part(self, data: bytes | memoryview) -> None:
        """A read ended inside a request."""
        limit = self.server.limits.header_bytes
        if self._request is None:
            if self._first or self._partial:  # else: no telling where in `data` it began
                self._received += len(data)
            self._partial = self._partial or bytearray()
            self._partial += data
            if self._received > limit:
                self._refuse(head_too_large(limit))
                return
            if len(self._headers) > MAX_HEADERS:
                self._refuse(too_many_headers(len(self._headers)))
                return
        else:
            self._received += len(data)
            if self._received - _MAX_FRAMING * self._body_bytes > limit:
                self._refuse(head_too_large(limit))
                return
        if self._responder is not None or self._queue:
            return
        if not self._timed:
            self._time_request()
        self._continue()

    def _continue(self) -> None:
        if self._expects and not self._body_bytes:
            self._expects = False
            self.transport.write(_CONTINUE)

    # -------------------------------------------------------------------------- the answering

    def _refuse(self, error: RequestError) -> None:
        """Answers `error` when its turn comes, and reads no further request."""
        self._drop_body()
        self._receiving = False
        self._lingering = True
        self._unread = b""
        self._queue.append(error)
        self._pump()

    def _answer_head(self) -> None:
        """The handler answers the request without its body, and no further request is read."""
        request = self._request
        assert request is not None
        self._received_whole(request)
        self._lingering = True
        self._unread = b""
        self._pump()

    def _drop_body(self) -> None:
        if self._receiving:
            self.server.bodies.held -= self._body_bytes
        self._body = b""

    def _drop_queue(self) -> None:
        for item in self._queue:
            if isinstance(item, Request):
                item.forget_body()
        self._queue.clear()

    def _pump(self) -> None:
        """Answers what waits, one after the other, until one takes its time or the turn is
        over."""
        if self._pumping:
            return
        self._pumping = True
        try:
            for _ in range(MAX_QUEUED):
                if not self._queue or self._responder is not None or not self.writable:
                    break
                self._answer(self._queue.popleft())
        finally:
            self._pumping = False
        if self.closing:
            return
        if (self._queue or self._unread) and self._responder is None and self.writable:
            self._turn_due = True
            self.server.next_turn(self._take_turn)
        if not self._lingering:
            self._pause_or_resume()

    def _take_turn(self) -> None:
        self._turn_due = False
        if self.closing:
            return
        if self._unread and not self._queue:
            self._parse_slice()
        if not self._turn_due:
            self._pump()

    def _pause_or_resume(self) -> None:
        paused = bool(self._unread) or len(self._queue) >= MAX_QUEUED
        if paused != self._paused:
            self._paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _answer(self, item: Request | RequestError) -> None:
        self.deadline = NEVER
        if isinstance(item, Request):
            self._responder = Responder(self, item)
            self.server.serve(item, self._responder)
            return
        self.closing = True
        request = Request("-", b"/-", time.perf_counter())
        request.id = self.server.new_request_id()
        self._responder = Responder(self, request)
        self.server.stats.answering += 1
        self.server.stats.refused += 1
        self._responder.send_error(item)

    def cut(self, why: str) -> None:
        """Resets the connection; the access log says `why` of the answer under way."""
        if self._responder is not None:
            self._responder.cut = why
        self.abort()

    def abort(self) -> None:
        """Resets the connection; what was not sent yet is lost."""
        self.closing = True
        self.transport.abort()

    def answered(self, responder: Responder) -> None:
        """`responder` has ended: the next request's turn, or the end."""
        responder.request.forget_body()
        self.server.answered(responder)
        self._responder = None
        if self.closing or not responder.request.keep_alive:
            self._finish()
        elif self._queue or self._unread:
            self._pump()
        else:
            self._idle()

    def _idle(self) -> None:
        """Nothing is being answered: wait for the rest of a request, or for the next."""
        if self._receiving:
            self._time_request()
            self._continue()
        elif self.writable:
            self.deadline = self.server.time() + self.server.timeouts.keep_alive

    def _time_request(self) -> None:
        self._timed = True
        self.deadline = self.server.time() + self.server.timeouts.request_body

    def _finish(self) -> None:
        self.closing = True
        self._drop_queue()
        if self._lingering and self.transport.can_write_eof():
            self.deadline = self.server.time() + LINGER_SECONDS
            self.transport.write_eof()
            self.transport.resume_reading()
            return
        self.deadline = self.server.time() + self.server.timeouts.idle_stream
        self.transport.close()

    # ------------------------------------------------------------------------- for the server

    @property
    def buffered_bytes(self) -> int:
        """Written, and not yet taken by the socket."""
        return self.transport.get_write_buffer_size()

    @property
    def has_gone(self) -> bool:
        """Whether the client has closed, which nobody may have told us yet. A system call; on
        macOS only a reset is seen."""
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HUNG_UP)
        return bool(poll.poll(0))

    def timed_out(self) -> None:
        """The deadline has passed."""
        self.deadline = NEVER
        self.server.stats.timed_out += 1
        if self._responder is not None or self.closing:
            self.cut("client_stalled")
        elif self._receiving:
            seconds = self.server.timeouts.request_body
            why = f"request: not complete within {seconds:g} s (timeouts.request_body)"
            self._refuse(BadHttpError(why, status=408))
        else:
            self._finish()

    def drain(self) -> None:
        """Ends after the answer under way, at once if there is none."""
        self.closing = True
        if self._responder is None:
            self._finish()
