"""A turn of the event loop has an end, whatever a connection receives.

uvloop reads up to 32 times in one turn, 250 KiB each time, and the smallest unit of a protocol may
have two bytes. So each protocol of this project is a `SlicedProtocol`: it parses a bounded number
of the received bytes in a turn, and the rest in later turns. `LoopTurns` bounds the number of
connections in a turn.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import cast

CALLS_A_TURN = 16  # of connections; what each does is bounded by itself
READS_A_TURN = 2  # of connections that have sent more than one read takes
SLICE_BYTES = 16 * 1024  # that a connection may parse at once even while many wait for a turn
_FULL_READ_BYTES = 128 * 1024  # uvloop's buffer has 250 KiB, the TLS layer's as much


class LoopTurns:
    """Bounds the number of connections that are called in one turn of the loop. Connections with
    more to read or to answer than fits in one turn are called in the order in which they have
    asked, a few in each turn, because a client may have thousands of them. Large uploads are read
    in turn: each read takes as long as 30 small requests, and while a thread works on large bodies,
    each callback of the loop waits for that thread."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._reading: deque[Callable[[], object]] = deque()  # behind a full read
        self._due = False

    @property
    def are_short(self) -> bool:
        """True if more calls wait than are made in the next turn."""
        return len(self._waiting) > CALLS_A_TURN

    def ask(self, call: Callable[[], object]) -> None:
        """Call it in a turn of the loop to come."""
        self._waiting.append(call)
        self._begin()

    def ask_to_read(self, call: Callable[[], object]) -> None:
        """Call it in a turn of the loop to come, in which few connections read on."""
        self._reading.append(call)
        self._begin()

    def _begin(self) -> None:
        if (self._waiting or self._reading) and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        self._due = False
        try:
            for _ in range(min(CALLS_A_TURN, len(self._waiting))):
                self._waiting.popleft()()
            for _ in range(min(READS_A_TURN, len(self._reading))):
                self._reading.popleft()()
        finally:  # a fault of one costs the others their place in this turn
            self._begin()


class SlicedProtocol(asyncio.Protocol, ABC):
    """A protocol whose subclass parses the received bytes in `parse`. The socket is not read while
    received bytes wait for a turn, and between `hold` and `release`. A subclass that overrides
    `connection_made` or `connection_lost` calls the method of this class, too."""

    __slots__ = (
        *("_behind", "_start", "_turn_is_due", "_unread", "_wire"),
        *("is_held", "is_stopped", "needed_bytes", "turns"),
    )

    def __init__(self, turns: LoopTurns | None = None) -> None:
        """`turns`: shared by connections of the same owner."""
        self.turns = turns or LoopTurns()
        self.needed_bytes = 0  # unparsed bytes that must be there for the next `parse`
        self.is_held = False
        self.is_stopped = False  # the socket is not read
        self._wire: asyncio.Transport | None = None
        self._unread, self._start = b"", 0  # bytes that wait for a turn: from `_start` on
        self._behind = bytearray()  # bytes received after these, or too few for `parse`
        self._turn_is_due = False

    @abstractmethod
    def parse(self, data: bytes, start: int) -> int:
        """Parse a turn's share of the bytes from `start` on, and return where the unparsed bytes
        begin. `parse` gets these again: in a later turn if it has set `needed_bytes` to 0, else as
        soon as there are `needed_bytes` of them."""

    @property
    def has_unread(self) -> bool:
        """True if received bytes wait to be parsed, beyond those that `parse` has right now."""
        return bool(self._unread or self._behind)

    def hold(self) -> None:
        """Parse nothing and do not read the socket until `release`."""
        if not self.is_held:
            self.is_held = True
            self._set_reading()

    def release(self) -> None:
        """Parse and read on after `hold`. Bytes received meanwhile are parsed in a later turn."""
        if self.is_held:
            self.is_held = False
            if self._has_enough:
                self._ask_for_turn()
            self._set_reading()

    def forget_unread(self) -> None:
        """Drop the received bytes that are not parsed."""
        self._unread, self._behind = b"", bytearray()

    def take_unread(self) -> bytes:
        """Return the received bytes that are not parsed, which another protocol parses."""
        data = self._unread[self._start :] + self._behind
        self.forget_unread()
        return data

    def parse_all(self) -> None:
        """Parse the rest of the received bytes at once, at most those of one read: for a connection
        that is lost and gets no more turns."""
        data, start = self.take_unread(), 0
        self.needed_bytes = 0
        while start < len(data) and not self.needed_bytes:
            start = self.parse(data, start)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        if self.is_stopped or self._behind or len(data) > SLICE_BYTES:
            self._much_received(data)
            return
        start = self.parse(data, 0)
        if start < len(data):
            self._keep(data, start)
            self._set_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._wire = None
        self.forget_unread()

    # bytes that wait for later turns

    def _much_received(self, data: bytes) -> None:
        if self.is_stopped:  # TLS may still have some
            self._behind += data
            return
        if not self._behind and not self.turns.are_short:
            self._parse_from(data, 0)
        else:
            self._behind += data
            if self._has_enough and self.turns.are_short:
                self._ask_for_turn()
            elif self._has_enough:
                self._parse_from(*self._take_next())
        if len(data) > _FULL_READ_BYTES and not self._turn_is_due and not self.is_held:
            self._turn_is_due = True  # libuv would go on reading
            self.turns.ask_to_read(self._take_turn)
        self._set_reading()

    def _parse_from(self, data: bytes, start: int) -> None:
        start = self.parse(data, start)
        if start < len(data):
            self._keep(data, start)
        elif self._has_enough:
            self._ask_for_turn()

    def _keep(self, data: bytes, start: int) -> None:
        if self.needed_bytes:
            self._behind[:0] = memoryview(data)[start:]
        else:
            self._unread, self._start = data, start
        if self._has_enough:
            self._ask_for_turn()

    @property
    def _has_enough(self) -> bool:
        """True if `parse` has something to do."""
        return bool(self._unread) or len(self._behind) >= max(self.needed_bytes, 1)

    def _take_next(self) -> tuple[bytes, int]:
        """Return the bytes that are to be parsed next, and where they begin."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data, self._start
        data, self._behind = bytes(self._behind), bytearray()
        return data, 0

    def _ask_for_turn(self) -> None:
        if not self._turn_is_due and not self.is_held:
            self._turn_is_due = True
            self.turns.ask(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        try:
            if self._has_enough and not self.is_held:
                self._parse_from(*self._take_next())
        except BaseException:  # as uvloop does where `data_received` fails
            if self._wire is not None:
                self._wire.abort()
            raise
        self._set_reading()

    def _set_reading(self) -> None:
        stops = self._turn_is_due or self.is_held
        if stops == self.is_stopped:
            return
        self.is_stopped = stops
        wire = self._wire
        if wire is None or wire.is_closing():
            return
        if stops:
            wire.pause_reading()
        else:
            wire.resume_reading()
