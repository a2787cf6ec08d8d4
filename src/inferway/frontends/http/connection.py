"""One client's connection: bytes -> requests, in order, one answered at a time.

Receiving and answering go on independently:

receiving     a request has begun to arrive and is not complete
answering     a Responder is in charge; further complete requests wait in `_queue`
closing       nothing more is read as a request; the connection ends after the answer

receiving  answering   deadline
no         no          keep_alive: closed silently
yes        no          request_body, from the request's first byte: 408
any        yes         none, or idle_stream while the client does not read: aborted

Rule 1: what llhttp refuses is answered with 400 (or 413, 414, 417, 431, 501), then the
        connection closes: after bytes that have two readings there is no next request.
        Beyond llhttp we refuse Content-Length beside Transfer-Encoding, any transfer coding
        but `chunked`, repeated Content-Length, Transfer-Encoding or Host, HTTP/1.1 without
        Host, HTTP/1.0 with Transfer-Encoding, and other versions.
Rule 2: pipelined requests are answered in order. While the queue is full, or the client does
        not read, nothing is read from it.
Rule 3: 100 Continue is sent only when the body is awaited and no answer is in its way.
Rule 4: the client's end of stream counts as its going away, also when it only closed its
        sending side: no OpenAI client half-closes, and an engine must stop at once.
Rule 5: after an early refusal the socket is closed for sending only, and what still comes is
        thrown away for a while: a close with unread bytes would be a reset, which may
        destroy the answer before the client has read it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from inferway.errors import BadHttpError, BodyTooLargeError, RequestError
from inferway.frontends.http.message import (
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    Request,
    is_request_id,
)
from inferway.frontends.http.responder import Responder

if TYPE_CHECKING:
    from inferway.frontends.http.server import HttpServer

NEVER = float("inf")
LINGER_SECONDS = 2.0
MAX_QUEUED = 16
_ONCE = frozenset({b"content-length", b"transfer-encoding", b"host"})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_expects",
        "_fed",
        "_fields",
        "_head_complete",
        "_headers",
        "_http11",
        "_lingering",
        "_parser",
        "_progress",
        "_pumping",
        "_queue",
        "_receiving",
        "_responder",
        "_silent_bytes",
        "_target",
        "_timed",
        "closing",
        "deadline",
        "server",
        "transport",
        "writable",
    )

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.deadline = NEVER
        self.closing = False
        self.writable = True
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request | RequestError] = deque()
        self._responder: Responder | None = None
        self._pumping = False
        self._lingering = False
        self._receiving = False
        self._silent_bytes = 0  # received of a head, or of framing, since the last progress
        self._progress = False
        self._timed = False  # the deadline is the one of the request being received
        self.on_message_begin()
        self._receiving = False
        self._fields: dict[bytes, bytes] = {}
        self._http11 = True
        self._expects = False

    # ---------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.server.opened(self)
        self._idle()

    def data_received(self, data: bytes) -> None:
        if self.closing and (self._lingering or self._responder is None):
            return
        self._fed = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as e:
            if not isinstance(e.__context__, RequestError):
                raise
            self._refuse(e.__context__)
        except httptools.HttpParserUpgrade:
            self.closing = True  # RFC 9110 7.8: an upgrade may be ignored; what follows is lost
        except httptools.HttpParserError as e:
            self._refuse(BadHttpError(f"not an HTTP/1.1 request: {e}"))
        if self._receiving:
            self._after_part()
        if self._queue:
            self._pump()

    def eof_received(self) -> None:
        if self._responder is not None:
            self.transport.abort()  # rule 4; a close would first wait until all is read
        # and without an answer under way the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # how it ended makes no difference to us
        self.closing = True
        self._queue.clear()
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
        self._head_complete = False
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_complete:  # else a trailer: dropped
            self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        headers = self._headers
        self._fields = fields = dict(headers)
        if len(headers) > MAX_HEADERS or self._fed + self._silent_bytes > MAX_TARGET_BYTES:
            self._check_size(headers)
        if len(fields) != len(headers):
            _refuse_repeated(headers)
        version = self._parser.get_http_version()
        self._http11 = version == "1.1"
        self._expects = False
        if not self._http11 and version != "1.0":
            raise BadHttpError(f"HTTP version {version}: expected 1.1 or 1.0")
        if self._http11 and b"host" not in fields:
            raise BadHttpError("host: required header is missing")
        if b"transfer-encoding" in fields:
            self._check_coding(fields)
        elif b"content-length" in fields:
            length = fields[b"content-length"]
            if not length.isdigit():
                raise BadHttpError(f"content-length {length[:40]!r}: expected digits")
            if int(length) > self.server.limits.body_bytes:
                raise self._too_large()
        if b"expect" in fields and self._http11:
            if fields[b"expect"].lower() != b"100-continue":
                raise BadHttpError("expect: only '100-continue' is known", status=417)
            self._expects = True
        self._head_complete = self._progress = True

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self._body_bytes += len(body)
        if self._body_bytes > self.server.limits.body_bytes:
            raise self._too_large()
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._receiving = False
        self._progress = True
        self._silent_bytes = 0
        parser, fields, body = self._parser, self._fields, self._body
        if parser.should_upgrade() and (b"content-length" in fields or len(fields) == 0):
            raise BadHttpError("upgrade: not supported for a request with a body")
        method = parser.get_method().decode()
        request = Request(method, self._target, time.perf_counter())
        request.headers = self._headers
        request.fields = fields
        request.body = body[0] if len(body) == 1 else b"".join(body)
        request.http11 = self._http11
        request.keep_alive = parser.should_keep_alive()
        given = fields.get(b"x-request-id")
        request.id = given if given and is_request_id(given) else self.server.new_request_id()
        self._queue.append(request)
        if len(self._queue) == MAX_QUEUED:
            self.transport.pause_reading()

    # ----------------------------------------------------------------------------- the checks

    def _check_size(self, headers: list[tuple[bytes, bytes]]) -> None:
        if len(headers) > MAX_HEADERS:
            raise BadHttpError(
                f"{len(headers)} headers, over the limit of {MAX_HEADERS}", status=431
            )
        if len(self._target) > MAX_TARGET_BYTES:
            raise BadHttpError(f"request target: over {MAX_TARGET_BYTES} bytes", status=414)
        limit = self.server.limits.header_bytes
        if self._fed + self._silent_bytes > limit:
            size = sum([len(name) + len(value) + 4 for name, value in headers])
            if size > limit:
                raise _head_too_large(limit)

    def _check_coding(self, fields: dict[bytes, bytes]) -> None:
        if b"content-length" in fields:
            raise BadHttpError("content-length and transfer-encoding: only one may be given")
        if not self._http11:
            raise BadHttpError("transfer-encoding: not known in HTTP/1.0")
        codings = [coding.strip() for coding in fields[b"transfer-encoding"].lower().split(b",")]
        if codings != [b"chunked"]:  # RFC 9112 6.1 and 6.3: without a last chunk it has no end
            status = 501 if codings[-1] == b"chunked" else 400
            raise BadHttpError("transfer-encoding: only 'chunked' is known", status=status)

    def _too_large(self) -> BodyTooLargeError:
        limit = self.server.limits.body_bytes
        return BodyTooLargeError(f"body: over the limit of {limit} bytes (limits.body_bytes)")

    def _after_part(self) -> None:
        """A read ended inside a request."""
        if self._progress:
            self._progress = False
            self._silent_bytes = 0
        else:
            self._silent_bytes += self._fed
            if self._silent_bytes > self.server.limits.header_bytes:
                self._refuse(_head_too_large(self.server.limits.header_bytes))
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
        self._receiving = False
        self._parser = httptools.HttpRequestParser(_Deaf())
        self._lingering = True
        self._queue.append(error)
        self._pump()

    def _pump(self) -> None:
        """Answers what waits, one after the other, until one takes its time."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._queue and self._responder is None and self.writable:
                if len(self._queue) == MAX_QUEUED and not self._lingering:
                    self.transport.resume_reading()
                self._answer(self._queue.popleft())
        finally:
            self._pumping = False

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

    def abort(self) -> None:
        """Resets the connection; what was not sent yet is lost."""
        self.closing = True
        self.transport.abort()

    def answered(self, responder: Responder) -> None:
        """`responder` has ended: the next request's turn, or the end."""
        self.server.answered(responder)
        self._responder = None
        if self.closing or not responder.request.keep_alive:
            self._finish()
        elif self._queue:
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
        self._queue.clear()
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

    def timed_out(self) -> None:
        """The deadline has passed."""
        self.deadline = NEVER
        self.server.stats.timed_out += 1
        if self._responder is not None or self.closing:
            self.abort()
        elif self._receiving:
            seconds = self.server.timeouts.request_body
            self._refuse(BadHttpError(f"request: not complete within {seconds:g} s", status=408))
        else:
            self._finish()

    def drain(self) -> None:
        """Ends after the answer under way, at once if there is none."""
        self.closing = True
        if self._responder is None:
            self._finish()


class _Deaf:
    """A parser's listener that hears nothing."""


def _head_too_large(limit: int) -> BadHttpError:
    return BadHttpError(
        f"header: over the limit of {limit} bytes (limits.header_bytes)", status=431
    )


def _refuse_repeated(headers: list[tuple[bytes, bytes]]) -> None:
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in _ONCE and name in seen:
            raise BadHttpError(f"{name.decode()}: given more than once")
        seen.add(name)
