"""One end of the connection between the hub and a worker, or a follower: messages in order, over a
Unix socket.

What is sent in one turn of the event loop goes out together. What comes in is handed on a
millisecond's worth at a time, so that thousands of blocks from the hub hold up no request. A reader
that falls far behind is told of by `stuck`: whoever asks ends that process, and nothing is lost but
its connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec

from inferway.tasks import TimeSlice
from inferway.workers.messages import Message

MOST_WAITING_BYTES = 256 * 1024 * 1024  # that a reader leaves unread: then it is stuck
_HIGH_WATER_BYTES = 4 * 1024 * 1024  # above it, `drained` waits
_MOST_MESSAGES = 16  # in one frame
_MOST_FRAMES = 256  # read and not handed on; then no more are read
_LENGTH_BYTES = 4


class Link(asyncio.Protocol):
    """`open` it on a connected socket. `heard` gets each message, `lost` is called once, when the
    other end has gone. `messages`: what is told."""

    def __init__(
        self, heard: Callable[[Any], None], lost: Callable[[], None], messages: Any = Message
    ) -> None:
        self._heard = heard
        self._lost = lost
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[messages])
        self._outgoing: list[Any] = []
        self._incoming: deque[bytes] = deque()
        self._decoded: deque[Any] = deque()  # of the first frame
        self._read = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_due = False  # what came is being handed on in a turn to come
        self._is_paused = False
        self._writable = asyncio.Event()
        self._slice = TimeSlice()

    async def open(self, end: socket.socket) -> None:
        """Take over the socket."""
        end.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self, end)

    def close(self) -> None:
        """Send what is to be sent, then close. `lost` is not called, and nothing more is heard."""
        self._lost, self._heard = _nothing, _unheard
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def send(self, message: Any) -> None:
        """Send a message, in this turn of the loop. Nothing happens once the other end has gone."""
        if not self._outgoing and self._transport is not None:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(message)

    async def drained(self) -> None:
        """Return once the other end has read most of what was sent."""
        self._flush()
        await self._writable.wait()

    @property
    def is_stuck(self) -> bool:
        """Whether the other end has not read for far too long."""
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() > MOST_WAITING_BYTES

    def _flush(self) -> None:
        messages, self._outgoing = self._outgoing, []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        for start in range(0, len(messages), _MOST_MESSAGES):
            frame = self._encoder.encode(messages[start : start + _MOST_MESSAGES])
            transport.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)

    def _hand_on(self) -> None:
        self._is_due = False
        self._slice.begin()
        while not self._slice.is_over and self._next():
            self._heard(self._decoded.popleft())
        if self._incoming or self._decoded:
            self._soon()
        if self._is_paused and len(self._incoming) < _MOST_FRAMES // 2:
            self._is_paused = False
            assert self._transport is not None
            self._transport.resume_reading()

    def _next(self) -> bool:
        """Whether there is another message, in `_decoded`."""
        while not self._decoded and self._incoming:
            self._decoded.extend(self._decoder.decode(self._incoming.popleft()))
        return bool(self._decoded)

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._hand_on)

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._writable.set()
        self._flush()

    def data_received(self, data: bytes) -> None:
        read = self._read
        read += data
        start = 0
        while len(read) - start >= _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            end = begin + int.from_bytes(read[start:begin], "little")
            if len(read) < end:
                break
            self._incoming.append(bytes(read[begin:end]))
            start = end
        del read[:start]
        if self._incoming:
            self._soon()
        if len(self._incoming) > _MOST_FRAMES and not self._is_paused:
            self._is_paused = True
            assert self._transport is not None
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._writable.set()
        try:
            while self._next():  # what it had still said
                self._heard(self._decoded.popleft())
        finally:
            lost, self._lost = self._lost, _nothing
            lost()


def _nothing() -> None:
    """Nobody waits for it any more."""


def _unheard(_: object) -> None:
    """It came too late: who had said it counts as gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets: the hub's, and the worker's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
