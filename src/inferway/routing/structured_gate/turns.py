"""Turns for work on shapes that little is done of at a time: they are fair between tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inferway.errors import QueueFullError, WaitTooLongError
from inferway.routing.limits.queue import FairQueue, Waiter
from inferway_structured.turns import Asker


class FairTurns:
    """Lets `most` work at a time, while `waiting` more wait for `seconds` at most
    (`inferway_structured.turns.Turns`). Of one event loop."""

    def __init__(self, most: int, waiting: int, seconds: float) -> None:
        self._free = most
        self._most_waiting = waiting
        self._seconds = seconds
        self._queue = FairQueue()
        self._futures: dict[Waiter, asyncio.Future[None]] = {}

    @property
    def num_waiting(self) -> int:
        return self._queue.size

    @asynccontextmanager
    async def turn(self, asker: Asker) -> AsyncIterator[None]:
        """Enter when it is the asker's turn. Raises QueueFullError, also for who is displaced, or
        WaitTooLongError."""
        if self._free:  # then no caller waits
            self._free -= 1
        else:
            await self._wait(asker)
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, asker: Asker) -> None:
        waiter = Waiter("", asker.tenant, asker.priority, deadline=0.0, came=0.0)
        self._make_room(waiter)
        self._queue.add(waiter)
        future = self._futures[waiter] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait([future], timeout=self._seconds)
        except asyncio.CancelledError:
            if not self._withdraw(waiter) and future.exception() is None:
                self._leave()
            raise
        if self._withdraw(waiter):
            raise WaitTooLongError(
                f"{self._queue.size} shapes of answers wait to be checked, this one for"
                f" {self._seconds:g} s; try again later"
            )
        future.result()

    def _make_room(self, waiter: Waiter) -> None:
        if self._queue.size < self._most_waiting:
            return
        refusal = QueueFullError(
            f"{self._queue.size} shapes of answers wait to be checked; try again later"
        )
        victim = self._queue.victim(waiter.priority, waiter.tenant)
        if victim is None:
            raise refusal
        future = self._futures[victim]
        self._withdraw(victim)
        future.set_exception(refusal)

    def _withdraw(self, waiter: Waiter) -> bool:
        """Take a waiter out of the queue. Return False if it does not wait any more."""
        self._futures.pop(waiter, None)
        return self._queue.remove(waiter)

    def _leave(self) -> None:
        waiter = self._queue.pop(lambda _: True)
        if waiter is None:
            self._free += 1
        else:
            self._futures.pop(waiter).set_result(None)
