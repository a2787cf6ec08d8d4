"""One client's connection: HTTP/2 frames in, calls served, frames out.

What is left out, as a server of gRPC may: push, priorities, compression of messages and of our
headers, and deadlines (`grpc-timeout`: who sets one cancels the call itself).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from inferway.loop_turns import LoopTurns, SlicedProtocol
from inferway_llmd.ext_proc.wire.call import WINDOW_BYTES, Call, Open
from inferway_llmd.ext_proc.wire.fields import MAX_HEADER_BYTES, FieldReader, Fields
from inferway_llmd.ext_proc.wire.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    GOAWAY,
    HAS_PRIORITY,
    HEAD_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    NOT_GRPC,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_BYTES,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFault,
    Fault,
    Status,
    check_of_connection,
    check_size,
    frame,
    goaway,
    header_block,
    not_http2,
    number_in,
    reset,
    settings,
    settings_in,
    unpadded,
    window_update,
)
from inferway_llmd.ext_proc.wire.outlet import MAX_OUT_BYTES, Outlet

log = logging.getLogger("inferway.picker")

_CONNECTION_WINDOW = 16 << 20  # bytes of all calls together, before there is word of room
_TELL_BYTES = _CONNECTION_WINDOW // 2
_MAX_CALLS = 10_000  # at a time; a client with more opens another connection
_CLOSE_SECONDS = 5.0  # for a client that broke the rules to take why
_TURN_FRAMES = 64  # that are read in a turn of the loop, in which all other connections wait
_TURN_BYTES = 4 * MAX_FRAME_BYTES
_DEAR = 5  # frames for nothing: what one counts that costs more than the others
_DRAINING = b"draining"  # a ping whose answer says that the client knows

_GREETING = settings(WINDOW_BYTES, _MAX_CALLS, MAX_HEADER_BYTES) + window_update(
    0, _CONNECTION_WINDOW - FIRST_WINDOW
)
_KIND_AT = 3  # of a frame's head


@dataclass(frozen=True, slots=True)
class Patience:
    """The number of useless frames that a client may send in so many seconds: pings, empty frames,
    resets of unanswered calls. A flood of them has no other end (CVE-2019-9511 to 9518,
    CVE-2023-44487, CVE-2024-27316)."""

    frames: int = 100_000
    seconds: float = 10.0


_PATIENCE = Patience()


class Flood:
    """The amount of useless frames that one client has sent."""

    __slots__ = ("_clock", "_count", "_patience", "_since")

    def __init__(self, patience: Patience, clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self._count, self._since = 0, clock()

    def count(self, cost: int = 1) -> None:
        """Count a frame that asks for nothing; `cost`: it is as dear as so many. Raises
        ConnectionFault."""
        self._count += cost
        if self._count > self._patience.frames:
            now = self._clock()
            if now - self._since < self._patience.seconds:
                raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "a flood of frames for nothing")
            self._count, self._since = 0, now


class Connection(SlicedProtocol):
    """`methods`: path -> who opens calls of it. `opened`, `closed`: told of the connection."""

    def __init__(
        self,
        methods: Mapping[bytes, Open],
        max_message: int,
        opened: Callable[[Connection], None],
        closed: Callable[[Connection], None],
        patience: Patience = _PATIENCE,
        turns: LoopTurns | None = None,
    ) -> None:
        super().__init__(turns)
        self.max_message = max_message
        self.was_made = False  # with TLS: its handshake is done
        self.calls: dict[int, Call] = {}
        self._methods = methods
        self._opened = opened
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._outlet = Outlet(self.abort)
        self._call_window = FIRST_WINDOW  # of a new call
        self._last_stream = 0
        self._untold = 0  # bytes that came since the client was told of room
        self._fields = FieldReader()
        self._block: tuple[int, int, bytearray] | None = None  # headers that are not whole
        self._drains = self._drained = self._closes = False
        self._flood = Flood(patience, self._loop.time)

    # ---------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)
        self.was_made = True
        self._outlet.open(self._transport)
        self._transport.write(_GREETING)
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._transport = None
        self._outlet.lost()
        calls, self.calls = list(self.calls.values()), {}
        for call in calls:
            call.gone()
        self._closed(self)

    def pause_writing(self) -> None:
        self._outlet.pause()

    def resume_writing(self) -> None:
        self._outlet.resume()

    def parse(self, data: bytes, start: int) -> int:
        if self._closes or self._transport is None:
            return len(data)
        outlet = self._outlet
        outlet.corked = True  # what is answered goes out together
        try:
            return self._frames(data, start) if self._greeted else self._preface(data, start)
        except ConnectionFault as e:
            self._fail(e)
            return len(data)
        finally:
            outlet.corked = False
            outlet.flush()

    @property
    def socket(self) -> socket.socket | None:
        return None if self._transport is None else self._transport.get_extra_info("socket")

    # ------------------------------------------------------------------------------------ closing

    def drain(self) -> None:
        """Takes no more calls, once the client knows; closes behind the last one."""
        if not self._drains and self._transport is not None:
            self._drains = True
            self._outlet.write(goaway(MAX_WINDOW, Fault.NO_ERROR) + frame(PING, 0, 0, _DRAINING))

    def _told_of_drain(self) -> None:
        self._drained = True
        self._outlet.write(goaway(self._last_stream, Fault.NO_ERROR))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._drained and not self.calls:
            self._outlet.flush()
            self.close()

    def greeted_or_closed(self) -> None:
        """Close the connection if the client has not begun to speak HTTP/2 in time."""
        if not self._greeted:
            self.abort()

    def close(self) -> None:
        self._closes = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closes = True
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: ConnectionFault) -> None:
        log.warning("a proxy's connection is closed: %s", error)
        self._outlet.write(goaway(self._last_stream, error.fault, str(error)))
        self._outlet.flush()
        self.close()
        self._loop.call_later(_CLOSE_SECONDS, self.abort)  # it may read nothing

    # -------------------------------------------------------------------- call.CallTransport

    def overrun(self, call: Call) -> None:
        if call.stream in self.calls:
            self._reset(call.stream, Fault.FLOW_CONTROL_ERROR)

    def over(self, call: Call) -> None:
        self.calls.pop(call.stream, None)
        self._outlet.waiting.pop(call.stream, None)
        self._close_if_done()

    # ------------------------------------------------------------------------------------- frames

    def _preface(self, data: bytes, start: int) -> int:
        begun, kind = data[start : start + len(PREFACE)], start + len(PREFACE) + _KIND_AT
        if not PREFACE.startswith(begun):
            raise ConnectionFault(Fault.PROTOCOL_ERROR, not_http2(data))
        if len(data) - start < len(PREFACE) + HEAD_BYTES:
            self.needed_bytes = len(data) - start + 1
            return start
        if data[kind] != SETTINGS:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "settings do not come first")
        self._greeted = True
        return self._frames(data, start + len(PREFACE))

    def _frames(self, data: bytes, at: int) -> int:
        """Read frames; return where the first one starts that must wait."""
        end, most = len(data), at + _TURN_BYTES
        self.needed_bytes = 0
        for _ in range(_TURN_FRAMES):
            if at >= most:
                break
            start = at + HEAD_BYTES
            if start > end:
                self.needed_bytes = HEAD_BYTES
                break
            head = int.from_bytes(data[at:start])
            stop = start + (head >> 48)
            if stop - start > MAX_FRAME_BYTES:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, f"a frame of {stop - start} bytes")
            if stop > end:
                self.needed_bytes = stop - at
                break
            kind = head >> 40 & 0xFF
            at = stop
            if self._block is not None and kind != CONTINUATION:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "headers were not continued")
            read = _READ.get(kind)
            if read is None:  # to be ignored
                self._flood.count()
            else:
                read(self, head >> 32 & 0xFF, head & 0x7FFFFFFF, data[start:stop])
        return at

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._untold += size
        if self._untold >= _TELL_BYTES:
            self._outlet.write(window_update(0, self._untold))
            self._untold = 0
        call = self.calls.get(stream)
        if flags & PADDED:
            payload = unpadded(payload)
        if not payload and not flags & END_STREAM:
            self._flood.count()
        if call is None:
            self._no_call(stream)
            return
        if call.client_ended:
            self._reset(stream, Fault.STREAM_CLOSED)
            return
        call.received(payload, size)
        if flags & END_STREAM and stream in self.calls:
            call.ended()

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream % 2:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, f"headers of stream {stream}")
        block = header_block(flags, payload) if flags & (PADDED | HAS_PRIORITY) else payload
        if flags & END_HEADERS:
            self._whole_headers(flags, stream, block)
        else:
            self._block = (flags, stream, bytearray(block))

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or self._block[1] != stream:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "nothing to be continued")
        self._flood.count()
        first_flags, _, block = self._block
        block += payload
        if len(block) > MAX_HEADER_BYTES:
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "headers are too large")
        if flags & END_HEADERS:
            self._block = None
            self._whole_headers(first_flags, stream, bytes(block))

    def _whole_headers(self, flags: int, stream: int, block: bytes) -> None:
        fields = self._fields.read(block)  # always: the table's state is the connection's
        call = self.calls.get(stream)
        if call is not None:  # trailers; gRPC's clients have none, but may
            if call.client_ended:
                self._reset(stream, Fault.STREAM_CLOSED)
            elif fields is None or not flags & END_STREAM:
                self._reset(stream, Fault.PROTOCOL_ERROR)
            else:
                call.ended()
        elif stream <= self._last_stream:  # over: they may have been under way
            self._flood.count(_DEAR)
        else:
            self._last_stream = stream
            if fields is None:
                self._refuse(reset(stream, Fault.PROTOCOL_ERROR))
            else:
                self._open(stream, fields, ended=bool(flags & END_STREAM))

    def _refuse(self, words: bytes) -> None:
        self._flood.count(_DEAR)
        self._outlet.write(words)

    def _open(self, stream: int, fields: Fields, *, ended: bool) -> None:
        if self._drained or len(self.calls) >= _MAX_CALLS:
            self._refuse(reset(stream, Fault.REFUSED_STREAM))
            return
        if fields.get(b":method") != b"POST" or not fields.get(b"content-type", b"").startswith(
            b"application/grpc"
        ):
            self._refuse(frame(HEADERS, END_HEADERS | END_STREAM, stream, NOT_GRPC))
            if not ended:
                self._outlet.write(reset(stream, Fault.NO_ERROR))
            return
        call = Call(self, self._outlet, stream, self._call_window)
        opens = self._methods.get(path := fields.get(b":path", b""))
        if opens is None:
            self._flood.count(_DEAR)
            call.client_ended = ended
            call.finish(Status.UNIMPLEMENTED, f"no method {path.decode('latin-1')}")
            return
        self.calls[stream] = call
        call.handler = opens(call)
        if ended:
            call.ended()

    def _rst_stream(self, _: int, stream: int, payload: bytes) -> None:
        check_size(payload, 4)
        call = self.calls.pop(stream, None)
        if call is None:
            self._no_call(stream)
            return
        self._outlet.waiting.pop(stream, None)
        call.gone()
        if not call.begun:
            self._flood.count(_DEAR)
        self._close_if_done()

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        check_of_connection(stream, "settings")
        self._flood.count()
        if flags & ACK:
            check_size(payload, 0)
            return
        said = settings_in(payload)
        if INITIAL_WINDOW_SIZE in said:
            self._set_call_window(said[INITIAL_WINDOW_SIZE])
        if MAX_FRAME_SIZE in said:
            self._outlet.max_frame = min(said[MAX_FRAME_SIZE], MAX_OUT_BYTES)
        self._outlet.write(frame(SETTINGS, ACK, 0))
        if INITIAL_WINDOW_SIZE in said:
            for call in list(self.calls.values()):
                call.pump()

    def _set_call_window(self, window: int) -> None:
        self._flood.count(len(self.calls) // 20)
        more = window - self._call_window
        most = max((call.window for call in self.calls.values()), default=0)
        if window > MAX_WINDOW or most + more > MAX_WINDOW:
            raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "a window of more than 2^31 - 1")
        for call in self.calls.values():
            call.window += more
        self._call_window = window

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        check_size(payload, 8)
        check_of_connection(stream, "a ping")
        self._flood.count()
        if not flags & ACK:
            self._outlet.write(frame(PING, ACK, 0, payload))
        elif payload == _DRAINING and not self._drained:
            self._told_of_drain()

    def _window_update(self, _: int, stream: int, payload: bytes) -> None:
        check_size(payload, 4)
        more = number_in(payload)
        call = self.calls.get(stream)
        if not stream:
            self._outlet.window += more
            if not more:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "room for nothing")
            if self._outlet.window > MAX_WINDOW:
                raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "the window cannot grow so")
            self._outlet.pump()
        elif call is None:
            self._no_call(stream)
        elif not more:
            self._reset(stream, Fault.PROTOCOL_ERROR)
        elif call.window + more > MAX_WINDOW:
            self._reset(stream, Fault.FLOW_CONTROL_ERROR)
        else:
            call.window += more
            call.pump()

    def _priority(self, _: int, stream: int, payload: bytes) -> None:
        """Nobody heeds it any more (RFC 9113, 5.3.2)."""
        if not stream:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "a priority of no stream")
        check_size(payload, PRIORITY_BYTES)
        self._flood.count()

    def _goaway(self, _: int, stream: int, __: bytes) -> None:
        """The client opens no more calls here; those under way go on."""
        check_of_connection(stream, "a goodbye")
        self._flood.count()

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise ConnectionFault(Fault.PROTOCOL_ERROR, "clients do not push")

    def _no_call(self, stream: int) -> None:
        """Let a frame of a stream that is over pass: it was under way."""
        if stream > self._last_stream or not stream % 2:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, f"a frame of stream {stream}, not opened")

    def _reset(self, stream: int, fault: Fault) -> None:
        call = self.calls.pop(stream)
        self._outlet.waiting.pop(stream, None)
        self._outlet.write(reset(stream, fault))
        call.gone()
        self._close_if_done()


_READ: Final[Mapping[int, Callable[[Connection, int, int, bytes], None]]] = {
    DATA: Connection._data,
    HEADERS: Connection._headers,
    PRIORITY: Connection._priority,
    RST_STREAM: Connection._rst_stream,
    SETTINGS: Connection._settings,
    PUSH_PROMISE: Connection._push_promise,
    PING: Connection._ping,
    GOAWAY: Connection._goaway,
    WINDOW_UPDATE: Connection._window_update,
    CONTINUATION: Connection._continuation,
}
