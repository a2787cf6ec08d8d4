"""The queue of new sessions that wait until caches have room for them: futures and a timer around
routing.limits.session_gate.

A client waits for as long as its headers say (http.request_queue); without them, until its turn.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial

from inferway.errors import ClientGoneError, InferwayError
from inferway.http.ends import InQueue, WaitingClient
from inferway.routing.limits.queue import Waiter
from inferway.routing.limits.session_gate import SessionGate

_SWEEP_SECONDS = 0.5  # for deadlines, and for room that comes unannounced: sessions that are over


class SessionQueue:
    """The new sessions that wait at a gateway. `clock` counts seconds."""

    def __init__(self, gate: SessionGate, clock: Callable[[], float]) -> None:
        self.gate = gate
        self._clock = clock
        self._futures: dict[Waiter, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def enter(
        self, client: WaitingClient, model: str, name: bytes, tenant: str, priority: int,
        patience: float = math.inf,
    ) -> bool:  # fmt: skip
        """Return once a turn of that session may go on, and whether it had to wait, `patience`
        seconds at most. Raises SaturatedError or ClientGoneError."""
        now = self._clock()
        if self.gate.enters(model, name, now):
            return False
        if client.ended:
            raise ClientGoneError("the client has gone")
        waiter = Waiter(model, tenant, priority, now + patience, now)
        self.gate.wait(waiter, name)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._futures[waiter] = future
        if self._timer is None:
            self._timer = loop.call_later(_SWEEP_SECONDS, self._sweep)
        client.attach(InQueue(partial(self._client_gone, waiter)))
        try:
            await future
        finally:
            self._futures.pop(waiter, None)
            self.gate.withdraw(waiter)
        return True

    def close(self) -> None:
        """Stop the timer: no request waits any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        now = self._clock()
        for waiter, error in self.gate.expire(now):
            self._tell(waiter, error)
        for waiter in self.gate.turns(now):
            self._tell(waiter, None)
        self._timer = None
        if self._futures:
            self._timer = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _client_gone(self, waiter: Waiter) -> None:
        self.gate.withdraw(waiter)
        self._tell(waiter, ClientGoneError("the client has gone"))

    def _tell(self, waiter: Waiter, error: InferwayError | None) -> None:
        future = self._futures.pop(waiter, None)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
