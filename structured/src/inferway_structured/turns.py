"""Turns for work that little is done of at a time: its tenant, its waiters, and its rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import NamedTuple, Protocol

from inferway_structured.errors import SaturatedError

MAX_WAITING = 64
WAIT_SECONDS = 5.0


class Asker(NamedTuple):
    """The tenant whose work it is, and its priority: as in the gateway's queue of requests."""

    tenant: str = ""
    priority: int = 0


ANYBODY = Asker()


class Turns(Protocol):
    """Lets so many work at a time, while so many more wait, each for so many seconds at most. Used
    from one event loop."""

    @property
    def num_waiting(self) -> int: ...

    def turn(self, asker: Asker) -> AbstractAsyncContextManager[None]:
        """Enter when it is the asker's turn. Raises SaturatedError."""


# (how many work at a time, how many more wait, for how many seconds)
MakeTurns = Callable[[int, int, float], Turns]


class FirstComeTurns:
    """Turns in the order in which work comes, whoever asks."""

    def __init__(self, most: int, waiting: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(most)
        self._most_waiting = waiting
        self._seconds = seconds
        self.num_waiting = 0

    @asynccontextmanager
    async def turn(self, asker: Asker) -> AsyncIterator[None]:  # noqa: ARG002
        """Enter when it is this one's turn. Raises SaturatedError if too many wait, or after too
        long a time."""
        if self._free.locked() and self.num_waiting >= self._most_waiting:
            raise SaturatedError(self._words())
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError:
            raise SaturatedError(self._words()) from None
        finally:
            self.num_waiting -= 1
        try:
            yield
        finally:
            self._free.release()

    def _words(self) -> str:
        return f"{self.num_waiting} shapes of answers wait to be checked; try again in a moment"


class TokenBucket:
    """Lets so many pass each second, and as many of them at once, but one at least."""

    def __init__(self, per_second: float, clock: Callable[[], float] = monotonic) -> None:
        """`clock` counts seconds."""
        self._per_second = per_second
        self._clock = clock
        self._tokens = self._most = max(per_second, 1.0)
        self._filled = clock()

    def take(self) -> bool:
        """Return whether another one may pass; that one is counted."""
        now = self._clock()
        self._tokens = min(self._tokens + (now - self._filled) * self._per_second, self._most)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
