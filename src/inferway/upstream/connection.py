"""One connection to an engine: one exchange at a time, HTTP/1.1, kept alive between them.

Rule 1: the connection serves the next exchange only if the last answer ended where HTTP says
        it ends, nothing came after it, and neither side asked to close.
Rule 2: an answer without Content-Length and chunks ends with the connection; any other
        answer that the connection's end cuts off is an error, never an end.
Rule 3: 1xx answers are skipped (101: we never ask to switch, so it is an error). Trailers
        are dropped.
Rule 4: if a *reused* connection ends before the first byte of an answer, the exchange is sent
        once more on a fresh one. Engines close idle connections, and that close crosses our
        request on the wire; a generation has no effect but its answer, so that even a request
        that was read twice does no harm.

What arrived in one read is handed on as one piece: head, body, end.

state       deadline (see `pool`)             bytes arrive           connection ends
idle        idle_keep_alive                   drop                   forget
waiting     first_byte, to the first body     -> answering           rule 4, or fail
answering   idle_stream, anew with each read  on_chunk               rule 2
paused      none: it is the client who waits  -                      fail
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.upstream.headers import HOP_BY_HOP, named_by_connection

if TYPE_CHECKING:
    from inferway.upstream.exchange import Exchange
    from inferway.upstream.pool import Origin

NEVER = float("inf")
MAX_HEAD_BYTES = 256 * 1024
# Our answer carries our own request id, which is the one the engine got.
_ENDS_HERE = HOP_BY_HOP | {b"content-length", b"x-request-id"}
_BODILESS = frozenset({204, 304})


class EngineConnection(asyncio.Protocol):
    """See the module. `origin` owns it; it tells `origin` when it is idle and when it is gone."""

    __slots__ = (
        "_answers",
        "_complete",
        "_exchange",
        "_head",
        "_headers",
        "_in_body",
        "_keep_alive",
        "_parser",
        "_pieces",
        "_pool",
        "_received",
        "_surplus",
        "_until_close",
        "deadline",
        "origin",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._pool = origin.pool
        self.deadline = NEVER
        self._exchange: Exchange | None = None
        self._answers = 0  # exchanges that this connection has served to their end
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: tuple[int, list[tuple[bytes, bytes]], int | None] | None = None
        self._pieces: list[bytes] = []
        self._received = 0  # bytes of this exchange's answer before its body began
        self._in_body = False
        self._complete = False
        self._keep_alive = True
        self._surplus = False
        self._until_close = False

    # ------------------------------------------------------------------ for pool and Exchange

    def send(self, exchange: Exchange) -> None:
        """Writes the request. The connection must be idle."""
        self._exchange = exchange
        exchange.connection = self
        self.deadline = self._pool.time() + self._pool.timeouts.first_byte
        self.transport.write(exchange.payload)
        if exchange.paused:
            self.pause()

    def pause(self) -> None:
        self.deadline = NEVER
        self.transport.pause_reading()

    def resume(self) -> None:
        self.deadline = self._pool.time() + self._pool.timeouts.idle_stream
        self.transport.resume_reading()

    def drop(self) -> None:
        """Closes at once; the exchange, if any, hears nothing."""
        self._exchange = None
        self.deadline = NEVER
        self.transport.abort()

    def timed_out(self) -> None:
        """The deadline has passed."""
        timeouts = self._pool.timeouts
        seconds = timeouts.idle_stream if self._in_body else timeouts.first_byte
        self.fail(
            UpstreamTimeoutError(
                f"engine {self.origin.label}: nothing came for {seconds:g} s; the answer is lost"
            )
        )

    def fail(self, error: UpstreamError) -> None:
        """Closes at once; the exchange, if any, fails with `error`."""
        exchange = self._exchange
        self.drop()
        if exchange is not None:
            exchange.fail(error)

    # ---------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.origin.opened(self)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            if not self._complete:
                self._garbage(e)
                return
            self._surplus = True
        self._deliver(exchange, len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.origin.lost(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None or exchange.over:
            return
        if self._until_close and exc is None:
            exchange.finish(b"")
        elif self._answers and not self._received and not exchange.retried:
            exchange.retried = True
            self._pool.stats.retried += 1
            self.origin.connect(exchange)
        else:
            when = "before its answer" if not self._in_body else "in the middle of its answer"
            why = f": {exc}" if exc else ""
            exchange.fail(
                UpstreamError(f"engine {self.origin.label} closed the connection {when}{why}")
            )

    # ------------------------------------------------------------------- httptools' callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True
        else:
            self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        headers = self._headers
        fields = dict(headers)
        length = fields.get(b"content-length")
        ends_here = _ENDS_HERE
        if len(fields.get(b"connection", b"")) > len(b"keep-alive"):
            ends_here = ends_here | named_by_connection(headers)
        self._head = (
            status,
            [header for header in headers if header[0] not in ends_here],
            None if length is None else int(length),
        )
        self._in_body = True
        self._keep_alive = self._parser.should_keep_alive()
        bodiless = status in _BODILESS
        self._until_close = length is None and b"transfer-encoding" not in fields and not bodiless
        assert self._exchange is not None
        if self._exchange.is_head:
            self._until_close = False
            self._complete = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._in_body:
            self._complete = True

    # ------------------------------------------------------------------------------- delivery

    def _deliver(self, exchange: Exchange, size: int) -> None:
        sink = exchange.sink
        head = self._head
        if head is not None:
            self._head = None
            self._received += size
            sink.on_head(*head)
            if self._exchange is not exchange:
                return
        elif not self._in_body:
            self._received += size
            if self._received > MAX_HEAD_BYTES:
                self._garbage(ValueError(f"a head over {MAX_HEAD_BYTES} bytes"))
            return
        pieces = self._pieces
        chunk = b""
        if pieces:
            chunk = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._pieces = []
        if self._complete:
            self._release(exchange, chunk)
            return
        if chunk:
            sink.on_chunk(chunk)
            if self._exchange is exchange and not exchange.paused:
                pool = self._pool
                self.deadline = pool.time() + pool.timeouts.idle_stream

    def _release(self, exchange: Exchange, chunk: bytes) -> None:
        """The answer is complete: idle again, or closed, and only then the sink is told."""
        self._exchange = None
        reusable = (
            self._keep_alive
            and not self._surplus
            and not self._until_close
            and not self.transport.get_write_buffer_size()  # answered before it was all sent
        )
        if exchange.paused:
            self.transport.resume_reading()
        if exchange.is_head:
            self._parser = httptools.HttpResponseParser(self)  # the old one waits for a body
        self._answers += 1
        self._reset()
        if reusable:
            self.origin.idled(self)
        else:
            self.transport.abort()
        exchange.finish(chunk)

    def _garbage(self, error: Exception) -> None:
        self.fail(UpstreamError(f"engine {self.origin.label} sent what is not HTTP/1.1: {error}"))
