"""The outlet to one client: what is said in one turn of the loop goes together, and of answers no
more than it has room for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from inferway_llmd.ext_proc.wire.frames import FIRST_WINDOW, MAX_FRAME_BYTES

MAX_OUT_BYTES = 128 << 10  # that go out together, and in one turn of the loop
_MAX_UNREAD_BYTES = 8 << 20  # of answers to frames that want one, while the client reads nothing


class Sender(Protocol):
    """A call with more to send than there is room for."""

    stream: int

    def pump(self) -> None:
        """There is room; it may wait again."""


def _nobody() -> None:
    pass


class Outlet:
    """`open`, when the connection is made; `lost`, when it is. `stuck` is called when the client
    reads nothing for too long."""

    __slots__ = (
        *("_is_full", "_loop", "_out", "_out_bytes", "_stuck", "_transport"),
        *("corked", "max_frame", "paused", "waiting", "window"),
    )

    def __init__(self, stuck: Callable[[], None]) -> None:
        self.window = FIRST_WINDOW  # bytes that the client still takes, of all calls together
        self.max_frame = MAX_FRAME_BYTES
        self.paused = False  # answers have to wait
        self.corked = False  # what is written goes out with the next `flush`
        self._is_full = False  # the socket, as the transport says
        self._stuck = stuck
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self.waiting: OrderedDict[int, Sender] = (
            OrderedDict()
        )  # by stream, which is taken out when it ends

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def lost(self) -> None:
        self._transport = None
        self._stuck = _nobody  # else the connection would wait for the garbage collector
        self.waiting.clear()

    # what is said

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > MAX_OUT_BYTES:
            self.flush()  # so that `paused` is known
        elif not self.corked:  # several answers of one call go out together
            self.corked = True
            self._loop.call_soon(self._uncork)

    def _uncork(self) -> None:
        self.corked = False
        self.flush()

    def flush(self) -> None:
        out = self._out
        if not out:
            return
        size = self._out_bytes
        self._out, self._out_bytes = [], 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self.paused:
            if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
                self._stuck()
        elif size > MAX_OUT_BYTES:  # uvloop sends, and says that it is full, with its next turn
            self.paused = True
            self._loop.call_soon(self._look_again)

    # the calls that wait for room

    def pause(self) -> None:
        """Stop writing, because the socket is full."""
        self.paused = self._is_full = True

    def resume(self) -> None:
        self._is_full = False
        self._look_again()

    def _look_again(self) -> None:
        if not self._is_full:
            self.paused = False
            self.pump()

    def wait(self, call: Sender) -> None:
        """Have a stream pumped when there is room again."""
        self.waiting[call.stream] = call

    def pump(self) -> None:
        """Let waiting streams write, in turn, and no more of them than there is room for; each may
        wait again."""
        waiting = self.waiting
        while waiting and self.window > 0 and not self.paused:
            waiting.popitem(last=False)[1].pump()
