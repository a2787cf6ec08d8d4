"""One end of the connection between the hub and a worker: messages in order, over a Unix socket.

What is sent in one turn of the event loop goes out together. What comes in is handed on a
millisecond's worth at a time, so that thousands of blocks from the hub hold up no request. A reader
that falls far behind is told of by `stuck`: whoever asks ends that process, and nothing is lost but
its connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

from inferway.cluster.bus.messages import Message
from inferway.loop_turns import SlicedProtocol
from inferway.tasks import TimeSlice

log = logging.getLogger("inferway")

MOST_WAITING_BYTES = 256 * 1024 * 1024  # that a reader leaves unread: then it is stuck
_HIGH_WATER_BYTES = 4 * 1024 * 1024  # above it, `drained` waits
_MOST_MESSAGES = 16  # in one frame
_LENGTH_BYTES = 4


class Link(SlicedProtocol):
    """`open` it on a connected socket, and `listen`. What comes before somebody listens is kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._kept: list[Message] = []
        self._has_come = asyncio.Event()  # the first message, or the end
        self._heard: Callable[[Message], None] = self._keep_message
        self._lost: Callable[[], None] = _nothing
        self._is_lost = False
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[Message])
        self._outgoing: list[Message] = []
        self._decoded: deque[Message] = deque()  # of a frame, and not handed on yet
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._slice = TimeSlice(clock)

    async def open(self, end: socket.socket) -> None:
        """Take over the socket."""
        end.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self, end)

    async def first(self) -> Message | None:
        """Return the first message; None if the other end has gone. Nobody listens yet."""
        await self._has_come.wait()
        return self._kept.pop(0) if self._kept else None

    def listen(self, heard: Callable[[Message], None]) -> None:
        """Have `heard` get each message, also those that have come already."""
        kept, self._kept = self._kept, []
        self._heard = heard
        for message in kept:
            self._hand_on(message)

    def when_lost(self, lost: Callable[[], None]) -> None:
        """Have `lost` called once, when the other end has gone, or now if it has."""
        if self._is_lost:
            lost()
        else:
            self._lost = lost

    def _keep_message(self, message: Message) -> None:
        self._kept.append(message)
        self._has_come.set()

    def close(self) -> None:
        """Send what is to be sent, then close. `lost` is not called, and nothing more is heard."""
        self._lost, self._heard = _nothing, _nothing
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def send(self, message: Message) -> None:
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
        """The other end has not read for far too long."""
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

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._writable.set()
        self._flush()

    def parse(self, data: bytes, start: int) -> int:
        """Hand on messages for a millisecond. A frame counts as parsed with its last message."""
        self._slice.begin()
        while True:
            begin = start + _LENGTH_BYTES
            end = begin + int.from_bytes(data[start:begin], "little")
            if len(data) < end:
                self.needed_bytes = max(begin, end) - start
                return start
            if not self._decoded:
                self._decoded.extend(self._decoder.decode(memoryview(data)[begin:end]))
            while self._decoded and not self._slice.is_over:
                self._hand_on(self._decoded.popleft())
            if not self._decoded:
                start = end
            if self._slice.is_over:
                self.needed_bytes = 0
                return start

    def _hand_on(self, message: Message) -> None:
        try:
            self._heard(message)
        except Exception as e:  # the other end goes on, and so must the link
            log.error(
                "%s from another process was not taken, by a fault of the gateway",
                type(message).__name__,
                exc_info=e,
            )

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        try:
            self.parse_all()  # what it had still said
        finally:
            super().connection_lost(exc)
            self._is_lost = True
            self._has_come.set()
            lost, self._lost = self._lost, _nothing
            lost()


def _nothing(*_: object) -> None:
    """Nobody waits for it, or not any more."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets: the hub's, and the worker's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
