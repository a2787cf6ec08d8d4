"""One connection to an engine: one exchange at a time, HTTP/1.1, kept alive between them.

Rule 1: the connection serves the next exchange only if the last answer ended where HTTP says
        it ends, nothing came after it, and neither side asked to close.
Rule 2: an answer without Content-Length and chunks ends with the connection; any other
        answer that the connection's end cuts off is an error, never an end.
Rule 3: 1xx answers are skipped (101: we never ask to switch, so it is an error). They have
        no body (RFC 9112, 6.3), but llhttp reads the one that is announced by a status it does
        not know, so that this is an error. Trailers are dropped. Beyond what llhttp refuses, an
        answer is garbage whose version is not 1.1 or 1.0, whose status is not 100 to 599, that
        has any transfer coding but `chunked` once, or `chunked` in HTTP/1.0 (RFC 9112, 6.1), or
        more than MAX_HEADERS fields. (It takes RTSP/1.1 for HTTP/1.1; we do not mind.)
Rule 4: if a *reused* connection ends before the first byte of an answer, the exchange is sent
        once more on a fresh one. Engines close idle connections, and that close crosses our
        request on the wire; a generation has no effect but its answer, so that even a request
        that was read twice does no harm.

What arrived in one read is handed on as one piece: head, body, end. Of more than SLICE_BYTES,
each slice is one (`loop_turns`): they grow while its chunks are large, and the rest of a body whose
length is known is one.

state       deadline (see `pool`)             bytes arrive           connection ends
idle        idle_keep_alive                   drop                   forget
waiting     first_byte, to the first body     -> answering           rule 4, or fail
answering   idle_stream, anew with each read  on_chunk               rule 2
            that is more than `is_waiting`
paused      none: it is the client who waits  -                      fail
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from inferway.errors import EngineLostError, UpstreamError, UpstreamTimeoutError
from inferway.loop_turns import SLICE_BYTES, SlicedProtocol
from inferway.model import Headers
from inferway.upstream.headers import HOP_BY_HOP, PLAIN_CONNECTION, named_by_connection

if TYPE_CHECKING:
    from inferway.upstream.exchange import UpstreamRequest
    from inferway.upstream.pool import Origin

NEVER = float("inf")
MAX_HEAD_BYTES = 256 * 1024
MAX_HEADERS = 256
# Our answer carries our own request id, which is the one the engine got.
_ENDS_HERE = HOP_BY_HOP | {b"content-length", b"x-request-id"}
_BODILESS = frozenset({204, 304})
_INTERIM = frozenset({100, 102, 103})  # whose body llhttp does not read, whatever they announce
_FEW_PIECES = 64  # of a body in a slice: then it is no flood of tiny ones, and may be larger
_NO_CODING = frozenset({b"identity", b""})
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})
_MOST_SHORT = 2048  # bytes of an event of a stream; nearly each is a chunk, and comes alone
# The first line of a chunk as servers write it -> bytes of the whole chunk.
_SHORT_CHUNKS = {b"%x\r\n" % n: len(b"%x\r\n\r\n" % n) + n for n in range(1, _MOST_SHORT)}


class EngineConnection(SlicedProtocol):
    """A connection that carries one exchange at a time. `origin` owns it; it tells `origin` when it
    is idle and when it is gone."""

    __slots__ = (
        "_answers",
        "_awaited",
        "_between_chunks",
        "_complete",
        "_exchange",
        "_flowing",
        "_head",
        "_headers",
        "_in_body",
        "_key",
        "_parser",
        "_pieces",
        "_pool",
        "_received",
        "_reusable",
        "_slice_bytes",
        "_until_close",
        "deadline",
        "origin",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin.pool.turns)
        self.origin = origin
        self._pool = origin.pool
        self.deadline = NEVER
        self._exchange: UpstreamRequest | None = None
        self._answers = 0  # exchanges that this connection has served to their end
        self._parser = httptools.HttpResponseParser(self)
        self._forget_answer()

    def _forget_answer(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: tuple[int, Headers, int | None] | None = None
        self._pieces: list[bytes] = []
        self._key = b""  # of the head that is being parsed, if it may be known from then on
        self._received = 0  # bytes of this exchange's answer before its body began
        self._slice_bytes = SLICE_BYTES  # that are parsed in a turn
        self._awaited = 0  # bytes of the body that are still to come, if its head says how many
        self._in_body = False  # the head is complete
        self._flowing = False  # a piece of the body has been handed on
        self._between_chunks = False  # the parser has read a chunk, and nothing behind it
        self._complete = False
        self._reusable = True
        self._until_close = False

    # -------------------------------------------------------------- for pool and UpstreamRequest

    def send(self, exchange: UpstreamRequest) -> None:
        """Write the request. The connection must be idle."""
        self._exchange = exchange
        exchange.connection = self
        self.deadline = self._pool.time() + self._pool.timeouts.first_byte
        if len(exchange.pieces) == 1:
            self.transport.write(exchange.pieces[0])
        else:
            self.transport.writelines(exchange.pieces)
        if exchange.paused:
            self.pause()

    @property
    def is_idle(self) -> bool:
        """True if no exchange is under way."""
        return self._exchange is None

    def pause(self) -> None:
        self.deadline = NEVER
        self.hold()

    def resume(self) -> None:
        timeouts = self._pool.timeouts
        seconds = timeouts.idle_stream if self._flowing else timeouts.first_byte
        self.deadline = self._pool.time() + seconds
        self.release()

    def drop(self) -> None:
        """Close at once; the exchange, if any, hears nothing."""
        self._exchange = None
        self.deadline = NEVER
        self.transport.abort()

    def timed_out(self) -> None:
        """Fail the exchange, because the deadline has passed."""
        timeouts = self._pool.timeouts
        name = "idle_stream" if self._flowing else "first_byte"
        self.fail(
            UpstreamTimeoutError(
                f"engine {self.origin.label}: nothing came for {getattr(timeouts, name):g} s"
                f" (timeouts.{name}); the answer is lost"
            )
        )

    def fail(self, error: UpstreamError) -> None:
        """Close at once; the exchange, if any, fails with `error`."""
        exchange = self._exchange
        self.drop()
        if exchange is not None:
            exchange.fail(error)

    # ---------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.origin.opened(self)

    def data_received(self, data: bytes) -> None:
        # A whole chunk that follows another one leaves the parser as it is, and needs none.
        if self._between_chunks and not (self.is_held or self.has_unread):
            start = data.find(b"\n", 0, 6) + 1
            if _SHORT_CHUNKS.get(data[:start]) == len(data) and data.endswith(b"\r\n"):
                self._deliver_chunk(data[start:-2])
                return
        elif self._received == 0 and self._take_known(data):
            return
        super().data_received(data)

    def _take_known(self, data: bytes) -> bool:
        """Return whether `data` is one whole answer whose head has been read before, and take
        it."""
        exchange = self._exchange
        if exchange is None or exchange.is_head or self._in_body:
            return False
        if self.is_held or self.has_unread:
            return False
        known, self._key, start = self._pool.heads.find(data)
        if known is None:
            return False
        self._in_body = self._complete = True
        self._head, self._pieces = (*known, len(data) - start), [data[start:]]
        self._deliver_safely(exchange, start)
        return True

    def parse(self, data: bytes, start: int) -> int:
        exchange, all_of_it = self._exchange, len(data)
        if exchange is None:
            self.transport.abort()
            return all_of_it
        end = min(start + max(self._slice_bytes, self._awaited), all_of_it)
        piece = data if end - start == all_of_it else memoryview(data)[start:end]
        try:
            self._parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            if self._head is not None and self._head[0] == 101:
                self._hand_over(exchange, data[start + e.args[0] :])
                return all_of_it
            if not self._complete:
                self._garbage(e.__context__ if isinstance(e.__context__, _BadAnswerError) else e)
                return all_of_it
            self._reusable = False
        if not self._in_body:
            self._wait_for_head(end - start)
            return end
        if self._between_chunks and not (end == all_of_it and data.endswith(b"\r\n")):
            self._between_chunks = False  # a part of the next one has come
        if end < all_of_it or self.has_unread:
            self._reusable = self._reusable and not self._complete
            is_coarse = len(self._pieces) < _FEW_PIECES
            self._slice_bytes = 2 * self._slice_bytes if is_coarse else SLICE_BYTES
        self._deliver_safely(exchange, end - start)
        return end

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self.parse_all()
        finally:
            super().connection_lost(exc)
            self._lost(exc)

    def _lost(self, exc: Exception | None) -> None:
        self.origin.lost(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None or exchange.over:
            return
        exchange.connection = None
        if self._until_close and exc is None:
            exchange.finish(b"")
        elif self._answers and not self._received and not exchange.retried:
            exchange.retried = exchange.was_read = True
            self._pool.stats.retried += 1
            self.origin.connect(exchange)
        else:
            when = "before its answer" if not self._in_body else "in the middle of its answer"
            why = f": {exc}" if exc else ""
            exchange.fail(
                EngineLostError(f"engine {self.origin.label} closed the connection {when}{why}")
            )

    # ------------------------------------------------------------------- httptools' callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            self._reusable = False
        elif self._headers:  # those of an informational answer
            self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            self._headers.append((name.lower(), value.rstrip()))
        elif name.lower() in _FRAMING:
            self._reusable = False  # as a trailer it still moves llhttp

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        parser = self._parser
        status = parser.get_status_code()
        headers = self._headers
        fields = dict(headers)
        keep_alive = parser.should_keep_alive()
        assert self._exchange is not None
        if status == 101 and self._exchange.switch is not None:
            self._head = (status, headers, None)
            return
        if not keep_alive or b"connection" in fields or not 200 <= status < 600:
            # else it is HTTP/1.1: the others are kept alive only if they say so
            self._check_line(status)
            if status < 200:
                self._key = b""
                self._check_bodiless(status, fields)
                return
        if len(fields) != len(headers) or len(fields) > MAX_HEADERS:
            _merge_repeated(headers, fields)
        length = fields.get(b"content-length")
        ends_here = _ENDS_HERE
        if fields.get(b"connection", b"close") not in PLAIN_CONNECTION:
            ends_here = ends_here | named_by_connection(headers)
        if b"transfer-encoding" in fields:
            self._check_coding(fields[b"transfer-encoding"])
        elif length is None and status not in _BODILESS:
            self._until_close = True
        self._awaited = int(length or 0)
        self._head = (
            status,
            [header for header in headers if header[0] not in ends_here],
            None if length is None else self._awaited,
        )
        self._in_body = True
        self._reusable = keep_alive
        if fields.get(b"content-encoding", b"identity") not in _NO_CODING:
            self._exchange.is_encoded = True
            self._pool.warn_of_coding(self.origin.label, fields[b"content-encoding"])
        if self._exchange.is_head:
            self._until_close = False
            self._complete = True
        elif (
            self._key
            and keep_alive
            and not (
                status in _BODILESS or b"transfer-encoding" in fields or self._exchange.is_encoded
            )
        ):
            self._pool.heads.add(self._key, self._head[:2])

    def on_body(self, body: bytes) -> None:
        if self._complete:
            self._reusable = False  # of an unasked answer, or of one to HEAD
        else:
            self._pieces.append(body)
            self._awaited -= len(body)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        self._between_chunks = False
        if self._in_body:
            self._complete = True

    # ----------------------------------------------------------------------------- the checks

    def _check_line(self, status: int) -> None:
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _BadAnswerError(f"HTTP version {version}")
        if not 100 <= status < 600:
            raise _BadAnswerError(f"status {status:03}")

    def _check_bodiless(self, status: int, fields: dict[bytes, bytes]) -> None:
        if status not in _INTERIM and (
            b"transfer-encoding" in fields or b"content-length" in fields
        ):
            raise _BadAnswerError(f"status {status} with a body")

    def _check_coding(self, coding: bytes) -> None:
        if coding.lower() != b"chunked":
            raise _BadAnswerError(f"transfer-encoding {coding[:40]!r}")
        if self._parser.get_http_version() == "1.0":
            raise _BadAnswerError("transfer-encoding in HTTP/1.0")

    # ------------------------------------------------------------------------------- delivery

    def _wait_for_head(self, size: int) -> None:
        self._received += size
        if self._received > MAX_HEAD_BYTES:
            self._garbage(ValueError(f"a head over {MAX_HEAD_BYTES} bytes"))

    def _deliver_safely(self, exchange: UpstreamRequest, size: int) -> None:
        try:
            self._deliver(exchange, size)
        except Exception as error:
            self.drop()
            exchange.crashed(error)

    def _deliver(self, exchange: UpstreamRequest, size: int) -> None:
        if self._head is not None:
            self._received += size
            head, self._head = self._head, None
            exchange.pieces = ()
            exchange.sink.on_head(*head)
            if self._exchange is not exchange:
                return
        pieces = self._pieces
        if self._complete:
            self._release(exchange, pieces)
        elif pieces:
            self._pieces = []
            self._flowing = True
            self._hand_on(exchange, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _hand_on(self, exchange: UpstreamRequest, piece: bytes) -> None:
        exchange.is_waiting = False
        exchange.sink.on_chunk(piece)
        if self._exchange is exchange and not (exchange.paused or exchange.is_waiting):
            self.deadline = self._pool.time() + self._pool.timeouts.idle_stream

    def _deliver_chunk(self, chunk: bytes) -> None:
        """Hand on a chunk that was not the first."""
        exchange = self._exchange
        assert exchange is not None
        try:
            self._hand_on(exchange, chunk)
        except Exception as error:
            self.drop()
            exchange.crashed(error)

    def _release(self, exchange: UpstreamRequest, pieces: list[bytes]) -> None:
        """The answer is complete: idle again, or closed, and only then the sink is told."""
        reusable = self._reusable and not self._until_close
        if self.transport.get_write_buffer_size():
            reusable = False  # it was answered before it was all sent
        self.release()
        if exchange.is_head:
            self._parser = httptools.HttpResponseParser(self)  # the old one waits for a body
        self._exchange = None
        self._answers += 1
        self._forget_answer()
        if reusable:
            self.origin.idled(self)
        else:
            self.transport.abort()
        exchange.finish(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _hand_over(self, exchange: UpstreamRequest, said: bytes) -> None:
        """The engine has switched to another protocol, and has said this in it."""
        assert self._head is not None
        assert exchange.switch is not None
        headers = self._head[1]
        ends_here = _ENDS_HERE | named_by_connection(headers)
        self._exchange, self.deadline = None, NEVER
        exchange.over, exchange.connection = True, None
        self.transport.set_protocol(
            exchange.switch(self, [each for each in headers if each[0] not in ends_here], said)
        )

    def _garbage(self, error: Exception) -> None:
        self.fail(UpstreamError(f"engine {self.origin.label} sent what is not HTTP/1.1: {error}"))


class _BadAnswerError(Exception):
    """An answer that llhttp lets pass and we do not."""


def _merge_repeated(headers: list[tuple[bytes, bytes]], fields: dict[bytes, bytes]) -> None:
    if len(headers) > MAX_HEADERS:
        raise _BadAnswerError(f"{len(headers)} headers, over the limit of {MAX_HEADERS}")
    for name in (b"connection", b"transfer-encoding"):
        if name in fields:
            fields[name] = b", ".join([value for given, value in headers if given == name])
