"""One client's connection: bytes -> requests, in order, one answered at a time.

Receiving and answering go on independently:

receiving     a request has begun to arrive and is not complete
answering     a Responder is in charge; further complete requests wait in `_queue`
closing       nothing more is read as a request; the connection ends after the answer

receiving  answering   deadline
no         no          keep_alive: closed silently
yes        no          request_body, from the request's first byte: 408
any        yes         half of stream_keep_alive, then anew: a stream's client gets a comment if it
                       has been sent nothing since; idle_stream while it does not read: aborted

Rule 1: what is refused is answered with 400 (or 408, 413, 414, 417, 431, 501), then the
        connection closes: after bytes that have two readings there is no next request.
        llhttp is strict about lines, names and chunks. Beyond it we refuse (RFC 9112, 9110):
        RTSP and ICE, which it reads as HTTP; versions but 1.1 and 1.0; CONNECT; targets that
        are no path (message.read_target); HTTP/1.1 without Host, a Host that is none; Host or
        framing fields given twice; any coding but `chunked`, and each in HTTP/1.0; framing
        that outweighs what it carries. What llhttp skips is as if it were not there: empty
        lines before a request line, also with a bare CR or LF; spaces between its parts.
        The offer of another version of HTTP is ignored: the head is read again without it,
        because llhttp would take a body for the new protocol. Other upgrades are carried
        (`tunnel`) or refused.
Rule 2: pipelined requests are answered in order. While the queue is full, or the client does
        not read, nothing is read from it. In one turn of the loop a connection has at most
        SLICE_BYTES parsed (`loop_turns`), beyond the body of one request, and MAX_QUEUED
        answers: what else it sent at once waits for the next turn, and so no client holds the
        loop.
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
from inferway.http.ends import BodySource
from inferway.http.message import UNIX_CLIENT, Request
from inferway.http.request_reader import RequestReader
from inferway.http.responder import Responder
from inferway.loop_turns import SLICE_BYTES, SlicedProtocol

if TYPE_CHECKING:
    from inferway.http.server import HttpServer

NEVER = float("inf")
LINGER_SECONDS = 2.0
MAX_QUEUED = 16
_HEAD_END = re.compile(rb"\r\n\r\n")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux; hang-ups and errors are always told


class ClientConnection(SlicedProtocol):
    """See the module."""

    __slots__ = (
        "_lingering",
        "_pump_due",
        "_pumping",
        "_queue",
        "_reader",
        "_responder",
        "_timed",
        "client",
        "closing",
        "deadline",
        "server",
        "transport",
        "writable",
    )

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.turns)
        self.server = server
        self.deadline = NEVER
        self.closing = False
        self.writable = True
        self._queue: deque[Request | RequestError] = deque()
        self._reader = RequestReader(server, self._queue)
        self._responder: Responder | None = None
        self._timed = False  # the deadline is that of the request being received
        self._pumping = False
        self._pump_due = False  # in a turn to come
        self._lingering = False

    @property
    def source(self) -> BodySource | None:
        """The source of its request's answer; None if no request is being answered."""
        return None if self._responder is None else self._responder.source

    # ---------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        peer = transport.get_extra_info("peername")  # of a Unix socket: "", or None
        self.client: str = peer[0] if peer else UNIX_CLIENT
        self._reader.client = self.client
        self.server.opened(self)
        self._idle()

    def parse(self, data: bytes, start: int) -> int:
        if self.closing or self._lingering:
            return len(data)
        has_to_answer = self._queue and self._responder is None and self.writable
        if not has_to_answer:  # else that comes first
            if not start and self._reader.take_known(data):
                start = len(data)
            elif len(data) - start > SLICE_BYTES:
                start = self._parse_slice(data, start)
            else:
                start = self._feed(data, start, len(data))
        if not self._pump_due:
            self._pump(1 if self.turns.are_short else MAX_QUEUED)
        return start

    def _parse_slice(self, data: bytes, start: int) -> int:
        """Parse a turn's share of the received bytes, and the rest of a body whose head is in it:
        parsing that in one piece costs no more than one copy."""
        reader = self._reader
        head = None if reader.receiving else _HEAD_END.search(data, start, start + SLICE_BYTES)
        if head is not None:
            start = self._feed(data, start, head.end())
        awaited = reader.awaited_bytes()
        if not awaited:
            start = self._feed(data, start, start + SLICE_BYTES)
            awaited = reader.awaited_bytes()
        return self._feed(data, start, start + awaited)

    def _feed(self, data: bytes, start: int, end: int) -> int:
        """Give the reader these bytes. Return where the unparsed ones begin."""
        size = len(data)
        if start >= min(end, size):
            return start
        is_all = start == 0 and end >= size
        if self._reader.feed(data if is_all else memoryview(data)[start:end]):
            return min(end, size)
        if self._reader.behind is not None:
            self._reader.behind += data[end:]
            self.hold()
        else:
            self._stop_reading()
        return size

    def eof_received(self) -> None:
        if self._responder is not None:
            self.transport.abort()  # rule 4; a close would first wait until all is read
        # and without an answer under way the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closing = True
        self._drop_queue()
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
        self._time_answer()
        if self._responder.source is not None:
            self._responder.source.resume()

    def _continue(self) -> None:
        if self._reader.takes_continue():
            self.transport.write(_CONTINUE)

    def _stop_reading(self) -> None:
        """Throw away whatever still comes."""
        self._lingering = True
        self.forget_unread()

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
        if self._queue or self.is_held:
            self._end_turn()
        if self._reader.receiving and self._responder is None and not self.closing:
            if not self._timed:
                self._time_request()
            self._continue()

    def _end_turn(self) -> None:
        """Something is left for the next one, or was from the one before."""
        if self.closing:
            return
        if self._queue and self._responder is None and self.writable and not self._pump_due:
            self._pump_due = True
            self.turns.ask(self._take_pump_turn)
        if len(self._queue) < MAX_QUEUED:
            self.release()
        elif not self._lingering:
            self.hold()

    def _take_pump_turn(self) -> None:
        self._pump_due = False
        parses = self._turn_is_due and self.has_unread and not self.is_held
        if not self.closing and not parses:  # else `parse` pumps, in this turn
            self._pump()

    def _answer(self, item: Request | RequestError) -> None:
        self._time_answer()
        self._timed = False
        if isinstance(item, Request):
            self._responder = Responder(self, item)
            self.server.serve(item, self._responder)
            return
        self.closing = True
        request = Request.to("-", b"/-", time.perf_counter())
        request.id = self.server.new_request_id()
        self._responder = Responder(self, request)
        self.server.stats.answering += 1
        self.server.stats.refused += 1
        self._responder.send_error(item)

    def switch(self, protocol: asyncio.Protocol) -> bytes:
        """Hand the connection over to another protocol, for the request under way. Return what the
        client has said in it already. This connection still hears when it is lost, and when the
        client does not read."""
        said = (self._reader.behind or b"") + self.take_unread()
        self.deadline = NEVER
        self.transport.set_protocol(protocol)
        self.release()
        return said

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
        elif self._queue:
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

    def _time_answer(self) -> None:
        seconds = self.server.timeouts.stream_keep_alive / 2
        self.deadline = self.server.time() + seconds if seconds else NEVER

    def _time_request(self) -> None:
        self._timed = True
        self.deadline = self.server.time() + self.server.timeouts.request_body

    def _finish(self) -> None:
        self.closing = True
        self._drop_queue()
        if self._lingering and self.transport.can_write_eof():
            self.deadline = self.server.time() + LINGER_SECONDS
            self.transport.write_eof()
            self.release()
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
        """True if the client has closed, also where the transport has not told us yet. A system
        call; on macOS only a reset is seen."""
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HUNG_UP)
        return bool(poll.poll(0))

    def timed_out(self) -> None:
        """Handle that the deadline of this connection has passed."""
        if self._responder is not None and self.writable:
            self._time_answer()
            self._responder.keep_alive()
            return
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
