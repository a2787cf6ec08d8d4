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
        SLICE_BYTES parsed, beyond the body of one request, and MAX_QUEUED answers, and is not
        read from again after a read that was full: what else it sent at once waits for the
        next turn, and so no client holds the loop.
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

from inferway.errors import BadHttpError, InferwayError, RequestError
from inferway.http.message import UNIX_CLIENT, Request
from inferway.http.request_reader import RequestReader
from inferway.http.responder import BodySource, Responder

if TYPE_CHECKING:
    from inferway.http.server import HttpServer

NEVER = float("inf")
LINGER_SECONDS = 2.0
MAX_QUEUED = 16
SLICE_BYTES = 16 * 1024
_FULL_READ_BYTES = 128 * 1024  # uvloop's buffer has 250 KiB, the TLS layer's as much
_HEAD_END = re.compile(rb"\r\n\r\n")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux; hang-ups and errors are always told


class ClientConnection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_lingering",
        "_paused",
        "_pumping",
        "_queue",
        "_reader",
        "_responder",
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

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.deadline = NEVER
        self.closing = False
        self.writable = True
        self._queue: deque[Request | RequestError] = deque()
        self._reader = RequestReader(server, self._queue)
        self._responder: Responder | None = None
        self._timed = False  # the deadline is that of the request being received
        self._pumping = False
        self._turn_due = False  # the loop calls `_take_turn` next time
        self._paused = False  # nothing is read from the client
        self._lingering = False
        self._unread: bytes | memoryview = b""  # has been received, and waits for its turn

    @property
    def source(self) -> BodySource | None:
        """Who answers its request, if anybody does."""
        return None if self._responder is None else self._responder.source

    # ---------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        peer = transport.get_extra_info("peername")  # of a Unix socket: "", or None
        self.client: str = peer[0] if peer else UNIX_CLIENT
        self._reader.client = self.client
        self.server.opened(self)
        self._idle()

    def data_received(self, data: bytes) -> None:
        if len(data) > _FULL_READ_BYTES:  # libuv would go on, up to 32 times
            self.transport.pause_reading()
            self.server.next_turn(self._read_on)
        if self.closing or self._lingering:
            return
        if len(data) > SLICE_BYTES or self._unread:
            self._unread = b"".join((self._unread, data)) if self._unread else memoryview(data)
            if not self._queue and (self._responder is not None or not self.server.turns.are_short):
                self._read_slice()
        elif not self._reader.feed(data):
            self._stop_reading()
        if not self._turn_due:
            self._pump(1 if self.server.turns.are_short else MAX_QUEUED)

    def _read_on(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _read_slice(self) -> None:
        """Reads a turn's share of what was received, and the rest of a body whose head is in it:
        that costs no more than its copying, once if it is read in one piece."""
        reader = self._reader
        head = None if reader.receiving else _HEAD_END.search(self._unread, 0, SLICE_BYTES)
        if head is not None:
            self._feed_unread(head.end())
        awaited = reader.awaited_bytes()
        if not awaited:
            self._feed_unread(SLICE_BYTES)
            awaited = reader.awaited_bytes()
        if awaited:
            self._feed_unread(awaited)

    def _feed_unread(self, size: int) -> None:
        unread = self._unread
        if unread:
            self._unread = unread[size:] or b""  # an empty view would keep all that it is a part of
            if not self._reader.feed(unread[:size]):
                self._stop_reading()

    def eof_received(self) -> None:
        if self._responder is not None:
            self.transport.abort()  # rule 4; a close would first wait until all is read
        # and without an answer under way the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # how it ended makes no difference to us
        self.closing = True
        self._drop_queue()
        self._unread = b""
        self._reader.close()
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

    def _continue(self) -> None:
        if self._reader.takes_continue():
            self.transport.write(_CONTINUE)

    def _stop_reading(self) -> None:
        """What still comes is thrown away."""
        self._lingering = True
        self._unread = b""

    # -------------------------------------------------------------------------- the answering

    def _drop_queue(self) -> None:
        for item in self._queue:
            if isinstance(item, Request):
                item.forget_body()
        self._queue.clear()

    def _pump(self, most: int = MAX_QUEUED) -> None:
        """Answers what waits, one after the other, until one takes its time or the turn is
        over: `most` of them."""
        if self._pumping:
            return
        self._pumping = True
        try:
            for _ in range(most):
                if not self._queue or self._responder is not None or not self.writable:
                    break
                self._answer(self._queue.popleft())
        finally:
            self._pumping = False
        if self._queue or self._unread or self._paused:
            self._end_turn()
        if self._reader.receiving and self._responder is None and not self.closing:
            if not self._timed:
                self._time_request()
            self._continue()

    def _end_turn(self) -> None:
        """Something is left for the next one, or was from the one before."""
        if self.closing:
            return
        if (self._queue or self._unread) and self._responder is None and self.writable:
            self._turn_due = True
            self.server.next_turn(self._take_turn)
        paused = bool(self._unread) or len(self._queue) >= MAX_QUEUED
        if paused != self._paused and not self._lingering:
            self._paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _take_turn(self) -> None:
        self._turn_due = False
        if self.closing:
            return
        if self._unread and not self._queue:
            self._read_slice()
        self._pump()

    def _answer(self, item: Request | RequestError) -> None:
        self.deadline = NEVER
        self._timed = False
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

    def shut_down(self, error: InferwayError) -> None:
        """Ends the answer under way, if there is any, and then the connection."""
        self.closing = True
        if self._responder is None:
            self.abort()
        else:
            self._responder.shut_down(error)

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
        if self._reader.receiving:
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
        """Handle that the deadline of this connection has passed."""
        self.deadline = NEVER
        self.server.stats.timed_out += 1
        if self._responder is not None or self.closing or not self.writable:
            self.cut("client_stalled")
        elif self._reader.receiving:
            seconds = self.server.timeouts.request_body
            why = f"request: not complete within {seconds:g} s (timeouts.request_body)"
            self._reader.drop()
            self._stop_reading()
            self._queue.append(BadHttpError(why, status=408))
            self._pump()
        else:
            self._finish()

    def drain(self) -> None:
        """Ends after the answer under way, at once if there is none."""
        self.closing = True
        if self._responder is None:
            self._finish()
