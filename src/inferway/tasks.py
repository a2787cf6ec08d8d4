"""Work beside the requests: kept until it ends, and heard of if it fails; in slices; or later."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable

SLICE_SECONDS = 0.001
_BYTES_A_SECOND = 0.6e9  # half as many as text is made of


class TimeSlice:
    """The time for which one piece of work may hold the event loop before others get a turn."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.end = 0.0  # by the clock
        self._clock = clock

    @property
    def is_over(self) -> bool:
        """True if others should get a turn now."""
        return self._clock() >= self.end

    def begin(self) -> None:
        """Begin a slice."""
        self.end = self._clock() + SLICE_SECONDS

    async def rest(self) -> None:
        """Give others a turn, and begin the next slice. Reading what is there already never gives
        up the event loop by itself."""
        await asyncio.sleep(0)
        self.begin()


def give_way(num_bytes: int) -> None:
    """Let other threads run for twice as long as it took to make text of so many bytes, in which
    time none could: many such steps, one after the other, would hold up threads of short ones."""
    time.sleep(num_bytes / _BYTES_A_SECOND)


async def happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Return whether the event came within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def next_multiple(now: float, seconds: float) -> float:
    """Return when the next whole multiple of `seconds` is. What is done again and again, no matter
    at what moment, is done then: so an idle process wakes once for all of it."""
    return (math.floor(now / seconds + 0.01) + 1) * seconds


class Nap:
    """A pause that others may cut short."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def sleep_until(self, when: float) -> None:
        """Sleep until then, by the loop's clock, or as `wake_at` says."""
        loop = asyncio.get_running_loop()
        self._over = over = loop.create_future()
        self._timer = loop.call_at(when, _end, over)
        try:
            await over
        finally:
            self._timer.cancel()
            self._over = self._timer = None

    def wake_at(self, when: float) -> None:
        """Let tasks that sleep wake then."""
        if self._timer is not None and self._over is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(when, _end, self._over)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Tasks:
    """The background tasks of one owner. A task that ends by an error is logged with the text
    `failed`."""

    def __init__(self, log: logging.Logger, failed: str) -> None:
        self.running: set[asyncio.Task[None]] = set()  # the event loop alone would lose them
        self._log = log
        self._failed = failed

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.running.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancels those that run; returns when they have ended."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s", self._failed, exc_info=error)


class Later:
    """Calls what it is given `seconds` later, or up to a tenth of that later still: one timer
    serves many calls."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()  # when each is due
        self._is_timed = False

    def __call__(self, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._waiting.append((loop.time() + self._seconds, call))
        if not self._is_timed:
            self._is_timed = True
            loop.call_later(self._seconds, self._due)

    def _due(self) -> None:
        loop, waiting = asyncio.get_running_loop(), self._waiting
        now = loop.time()
        try:
            while waiting and waiting[0][0] <= now:
                waiting.popleft()[1]()
        finally:
            self._is_timed = bool(waiting)
            if waiting:
                loop.call_later(max(waiting[0][0] - now, self._seconds / 10), self._due)
