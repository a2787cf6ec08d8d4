"""One client's connection: HTTP/2 frames in, calls served, frames out.

What is left out, as a server of gRPC may: push, priorities, compression of messages and of our
headers, and deadlines (`grpc-timeout`: who sets one cancels the call itself).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from inferway.frontends.ext_proc.wire.call import WINDOW_BYTES, Call, Open
from inferway.frontends.ext_proc.wire.fields import (
    MAX_HEADER_BYTES,
    ConnectionFault,
    FieldReader,
    Fields,
)
from inferway.frontends.ext_proc.wire.frames import (
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
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Fault,
    Status,
    frame,
    goaway,
    number_in,
    reset,
    settings,
    settings_in,
    window_update,
)

log = logging.getLogger("inferway.picker")

_CONNECTION_WINDOW = 16 << 20  # bytes of all calls together, before there is word of room
_TELL_BYTES = _CONNECTION_WINDOW // 2
_MAX_CALLS = 10_000  # at a time; a client with more opens another connection
_MAX_OUT_BYTES = 128 << 10  # that go out together, and in one turn of the loop
_MAX_UNREAD_BYTES = 8 << 20  # of answers to frames that want one, while the client reads nothing
_CLOSE_SECONDS = 5.0  # for a client that broke the rules to take why
_DEAR = 5  # frames for nothing: what one counts that costs more than the others
_DRAINING = b"draining"  # a ping whose answer says that the client knows

_GREETING = settings(WINDOW_BYTES, _MAX_CALLS, MAX_HEADER_BYTES) + window_update(
    0, _CONNECTION_WINDOW - FIRST_WINDOW
)
_TLS_HANDSHAKE = b"\x16\x03"
_KIND_AT = 3  # of a frame's head
_PRIORITY_BYTES = 5


@dataclass(frozen=True, slots=True)
class Patience:
    """What asks for nothing (pings, resets before an answer, empty frames, ...) is taken so often
    in so long. A flood of it has no other end (CVE-2019-9511 to 9518, CVE-2023-44487,
    CVE-2024-27316)."""

    frames: int = 100_000
    seconds: float = 10.0


_PATIENCE = Patience()


class Connection(asyncio.Protocol):
    """`methods`: path -> who opens calls of it. `opened`, `closed`: told of the connection."""

    def __init__(
        self,
        methods: Mapping[bytes, Open],
        max_message: int,
        opened: Callable[[Connection], None],
        closed: Callable[[Connection], None],
        patience: Patience = _PATIENCE,
    ) -> None:
        self.window = FIRST_WINDOW
        self.max_frame = MAX_FRAME_BYTES
        self.max_message = max_message
        self.paused = False
        self._is_full = False  # the socket, as the transport says
        self.was_made = False  # with TLS: its handshake is done
        self.calls: dict[int, Call] = {}
        self._methods = methods
        self._opened = opened
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._rest = b""  # of a frame that has not come wholly
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._corked = False  # what is written goes out together
        self._call_window = FIRST_WINDOW  # of a new call
        self._last_stream = 0
        self._untold = 0  # bytes that came since the client was told of room
        self._waiting: OrderedDict[int, Call] = (
            OrderedDict()
        )  # calls that have more to send than there is room for
        self._fields = FieldReader()
        self._block: tuple[int, int, bytearray] | None = None  # headers that are not whole
        self._drains = self._drained = self._closes = False
        self._patience = patience
        self._idle_count, self._idle_since = 0, self._loop.time()

    # ---------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.was_made = True
        self._transport.write(_GREETING)
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._waiting.clear()
        calls, self.calls = list(self.calls.values()), {}
        for call in calls:
            call.gone()
        self._closed(self)

    def pause_writing(self) -> None:
        self.paused = self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._look_again()

    def _look_again(self) -> None:
        if not self._is_full:
            self.paused = False
            self._pump()

    def data_received(self, data: bytes) -> None:
        if self._closes:  # TLS may still have some
            return
        if self._rest:
            data = self._rest + data
        self._corked = True
        try:
            at = self._frames(data) if self._greeted else self._preface(data)
            self._rest = data[at:]
        except ConnectionFault as e:
            self._fail(e)
        finally:
            self._corked = False
            self._flush()

    @property
    def socket(self) -> socket.socket | None:
        return None if self._transport is None else self._transport.get_extra_info("socket")

    # ------------------------------------------------------------------------------------ closing

    def drain(self) -> None:
        """Takes no more calls, once the client knows; closes behind the last one."""
        if not self._drains and self._transport is not None:
            self._drains = True
            self.write(goaway(MAX_WINDOW, Fault.NO_ERROR) + frame(PING, 0, 0, _DRAINING))

    def _told_of_drain(self) -> None:
        self._drained = True
        self.write(goaway(self._last_stream, Fault.NO_ERROR))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._drained and not self.calls:
            self._flush()
            self.close()

    def greeted_or_closed(self) -> None:
        """It has had its time to say that it speaks HTTP/2."""
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
        self.write(goaway(self._last_stream, error.fault, str(error)))
        self._flush()
        self._rest = b""
        self.close()
        self._loop.call_later(_CLOSE_SECONDS, self.abort)  # it may read nothing

    def _idle(self, cost: int = 1) -> None:
        """A frame has come that asks for nothing."""
        self._idle_count += cost
        if self._idle_count > self._patience.frames:
            now = self._loop.time()
            if now - self._idle_since < self._patience.seconds:
                raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "a flood of frames for nothing")
            self._idle_count, self._idle_since = 0, now

    # ----------------------------------------------------------------------------- call.Link

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > _MAX_OUT_BYTES:
            self._flush()  # so that `paused` is known
        elif not self._corked:  # several answers of one call go out together
            self._corked = True
            self._loop.call_soon(self._uncork)

    def waits(self, call: Call) -> None:
        self._waiting[call.stream] = call

    def overrun(self, call: Call) -> None:
        if call.stream in self.calls:
            self._reset(call.stream, Fault.FLOW_CONTROL_ERROR)

    def over(self, call: Call) -> None:
        self.calls.pop(call.stream, None)
        self._waiting.pop(call.stream, None)
        self._close_if_done()

    def _uncork(self) -> None:
        self._corked = False
        self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        transport = self._transport
        if not out or transport is None or transport.is_closing():
            return
        transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self.paused:
            if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
                self.abort()
        elif size > _MAX_OUT_BYTES:  # uvloop sends, and says that it is full, with its next turn
            self.paused = True
            self._loop.call_soon(self._look_again)

    def _pump(self) -> None:
        """In turn, and no more of them than there is room for: each may wait again."""
        waiting = self._waiting
        while waiting and self.window > 0 and not self.paused:
            waiting.popitem(last=False)[1].pump()

    # ------------------------------------------------------------------------------------- frames

    def _preface(self, data: bytes) -> int:
        if not data.startswith(PREFACE):
            if PREFACE.startswith(data):
                return 0
            raise ConnectionFault(Fault.PROTOCOL_ERROR, _not_http2(data))
        if len(data) < len(PREFACE) + HEAD_BYTES:
            return 0
        if data[len(PREFACE) + _KIND_AT] != SETTINGS:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "settings do not come first")
        self._greeted = True
        return self._frames(data, len(PREFACE))

    def _frames(self, data: bytes, at: int = 0) -> int:
        """Where the first one starts that has not come wholly."""
        end = len(data)
        while end - at >= HEAD_BYTES:
            start = at + HEAD_BYTES
            head = int.from_bytes(data[at:start])
            stop = start + (head >> 48)
            if stop - start > MAX_FRAME_BYTES:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, f"a frame of {stop - start} bytes")
            if stop > end:
                break
            kind = head >> 40 & 0xFF
            at = stop
            if self._block is not None and kind != CONTINUATION:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "headers were not continued")
            read = _READ.get(kind)
            if read is None:  # to be ignored
                self._idle()
            else:
                read(self, head >> 32 & 0xFF, head & 0x7FFFFFFF, data[start:stop])
        return at

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._untold += size
        if self._untold >= _TELL_BYTES:
            self.write(window_update(0, self._untold))
            self._untold = 0
        call = self.calls.get(stream)
        if flags & PADDED:
            payload = _unpadded(payload)
        if not payload and not flags & END_STREAM:
            self._idle()
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
        if flags & PADDED:
            payload = _unpadded(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "a priority that is cut off")
            payload = payload[_PRIORITY_BYTES:]
        if flags & END_HEADERS:
            self._whole_headers(flags, stream, payload)
        else:
            self._block = (flags, stream, bytearray(payload))

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or self._block[1] != stream:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "nothing to be continued")
        self._idle()
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
            self._idle(_DEAR)
        else:
            self._last_stream = stream
            if fields is None:
                self._refuse(reset(stream, Fault.PROTOCOL_ERROR))
            else:
                self._open(stream, fields, ended=bool(flags & END_STREAM))

    def _refuse(self, words: bytes) -> None:
        self._idle(_DEAR)
        self.write(words)

    def _open(self, stream: int, fields: Fields, *, ended: bool) -> None:
        if self._drained or len(self.calls) >= _MAX_CALLS:
            self._refuse(reset(stream, Fault.REFUSED_STREAM))
            return
        if fields.get(b":method") != b"POST" or not fields.get(b"content-type", b"").startswith(
            b"application/grpc"
        ):
            self._refuse(frame(HEADERS, END_HEADERS | END_STREAM, stream, NOT_GRPC))
            if not ended:
                self.write(reset(stream, Fault.NO_ERROR))
            return
        call = Call(self, stream, self._call_window)
        path = fields.get(b":path", b"")
        opens = self._methods.get(path)
        if opens is None:
            self._idle(_DEAR)
            call.client_ended = ended
            call.finish(Status.UNIMPLEMENTED, f"no method {path.decode('latin-1')}")
            return
        self.calls[stream] = call
        call.handler = opens(call)
        if ended:
            call.ended()

    def _rst_stream(self, _: int, stream: int, payload: bytes) -> None:
        _check_size(payload, 4)
        call = self.calls.pop(stream, None)
        if call is None:
            self._no_call(stream)
            return
        self._waiting.pop(stream, None)
        call.gone()
        if not call.begun:
            self._idle(_DEAR)
        self._close_if_done()

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, f"settings of stream {stream}")
        if len(payload) % 6 or (flags & ACK and payload):
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "settings of a wrong size")
        self._idle()
        if flags & ACK:
            return
        said = settings_in(payload)
        if INITIAL_WINDOW_SIZE in said:
            self._set_call_window(said[INITIAL_WINDOW_SIZE])
        if MAX_FRAME_SIZE in said:
            if not MAX_FRAME_BYTES <= said[MAX_FRAME_SIZE] < 1 << 24:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "frames of a size that may not be")
            self.max_frame = min(said[MAX_FRAME_SIZE], _MAX_OUT_BYTES)
        self.write(frame(SETTINGS, ACK, 0))
        if INITIAL_WINDOW_SIZE in said:
            for call in list(self.calls.values()):
                call.pump()

    def _set_call_window(self, window: int) -> None:
        self._idle(len(self.calls) // 20)
        more = window - self._call_window
        most = max((call.window for call in self.calls.values()), default=0)
        if window > MAX_WINDOW or most + more > MAX_WINDOW:
            raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "a window of more than 2^31 - 1")
        for call in self.calls.values():
            call.window += more
        self._call_window = window

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        _check_size(payload, 8)
        if stream:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, f"a ping on stream {stream}")
        self._idle()
        if not flags & ACK:
            self.write(frame(PING, ACK, 0, payload))
        elif payload == _DRAINING and not self._drained:
            self._told_of_drain()

    def _window_update(self, _: int, stream: int, payload: bytes) -> None:
        _check_size(payload, 4)
        more = number_in(payload)
        call = self.calls.get(stream)
        if not stream:
            self.window += more
            if not more:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "room for nothing")
            if self.window > MAX_WINDOW:
                raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "the window cannot grow so")
            self._pump()
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
        _check_size(payload, _PRIORITY_BYTES)
        self._idle()

    def _goaway(self, _: int, stream: int, __: bytes) -> None:
        """The client opens no more calls here; those under way go on."""
        if stream:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, f"a goodbye of stream {stream}")
        self._idle()

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise ConnectionFault(Fault.PROTOCOL_ERROR, "clients do not push")

    def _no_call(self, stream: int) -> None:
        """Of a stream that is over, frames may still come: they were under way."""
        if stream > self._last_stream or not stream % 2:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, f"a frame of stream {stream}, not opened")

    def _reset(self, stream: int, fault: Fault) -> None:
        call = self.calls.pop(stream)
        self._waiting.pop(stream, None)
        self.write(reset(stream, fault))
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


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(Fault.PROTOCOL_ERROR, "more padding than there is")
    return payload[1 : len(payload) - payload[0]]


def _check_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise ConnectionFault(Fault.FRAME_SIZE_ERROR, f"{len(payload)} bytes instead of {size}")


def _not_http2(data: bytes) -> str:
    if data.startswith(_TLS_HANDSHAKE):
        return "it speaks TLS, and --secure-serving=false says that nobody does"
    return "it speaks no HTTP/2, or not at once; gRPC without TLS does"
