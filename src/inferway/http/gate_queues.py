"""The queues of requests that a gate lets wait: futures and a timer around routing.limits.

SessionQueue    new sessions, until caches have room for them     session_gate
GoodputQueue    requests, until an engine can begin their prompt  goodput_gate

A request leaves its queue when the gate lets it go on or refuses it, or when its client goes away,
whichever is first. The caller says for how long it may wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from inferway.errors import ClientGoneError, InferwayError
from inferway.http.ends import InQueue, WaitingClient
from inferway.routing.limits.goodput_gate import GoodputGate
from inferway.routing.limits.queue import Waiter
from inferway.routing.limits.session_gate import SessionGate

_SESSIONS_SECONDS = 0.5  # for room that comes unannounced: sessions that are over
_GOODPUT_SECONDS = 0.02  # the prompts that engines have before them get shorter all the time


class LetsWait(Protocol):
    """Says which of the requests that wait go on."""

    def turns(self, now: float) -> Sequence[Waiter]:
        """Take those that go on now out of the queue."""

    def expire(self, now: float) -> Sequence[tuple[Waiter, InferwayError]]:
        """Take those that are refused out of the queue; return each with its error."""

    def withdraw(self, waiter: Waiter) -> None:
        """The waiter does not wait any more; nothing happens if it has not."""


_G = TypeVar("_G", bound=LetsWait)


class GateQueue(Generic[_G]):
    """The requests that wait before one gate. `clock` counts seconds; the gate is asked every
    `look_seconds` while any waits."""

    def __init__(self, gate: _G, clock: Callable[[], float], look_seconds: float) -> None:
        self.gate = gate
        self._clock = clock
        self._look_seconds = look_seconds
        self._futures: dict[Waiter, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def _wait(self, client: WaitingClient, waiter: Waiter) -> None:
        """Return once the waiter, which the gate has in its queue, may go on. Raises SaturatedError
        or ClientGoneError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._futures[waiter] = future
        if self._timer is None:
            self._timer = loop.call_later(self._look_seconds, self._look)
        client.attach(InQueue(partial(self._client_gone, waiter)))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._does_not_go(waiter)
            raise
        finally:
            self._futures.pop(waiter, None)
            self.gate.withdraw(waiter)

    def _does_not_go(self, waiter: Waiter) -> None:
        """Note that a request that the gate has let go on has ended instead."""

    def close(self) -> None:
        """Stop the timer: no request waits any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._clock()
        for waiter, error in self.gate.expire(now):
            self._tell(waiter, error)
        for waiter in self.gate.turns(now):
            self._tell(waiter, None)
        self._timer = None
        if self._futures:
            self._timer = asyncio.get_running_loop().call_later(self._look_seconds, self._look)

    def _client_gone(self, waiter: Waiter) -> None:
        self.gate.withdraw(waiter)
        self._tell(waiter, ClientGoneError("the client has gone"))

    def _tell(self, waiter: Waiter, error: InferwayError | None) -> None:
        future = self._futures.pop(waiter, None)
        if future is None or future.done():
            if error is None:
                self._does_not_go(waiter)
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class SessionQueue(GateQueue[SessionGate]):
    """The turns of new sessions that wait at a gateway."""

    def __init__(self, gate: SessionGate, clock: Callable[[], float]) -> None:
        super().__init__(gate, clock, _SESSIONS_SECONDS)

    async def enter(
        self, client: WaitingClient, model: str, name: bytes, tenant: str, priority: int,
        patience: float,
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
        await self._wait(client, waiter)
        return True


class GoodputQueue(GateQueue[GoodputGate]):
    """The requests that wait until an engine can begin their prompts soon."""

    def __init__(self, gate: GoodputGate, clock: Callable[[], float]) -> None:
        super().__init__(gate, clock, _GOODPUT_SECONDS)

    async def enter(
        self, client: WaitingClient, model: str, tenant: str, priority: int, *, patience: float,
        spare: float,
    ) -> bool:  # fmt: skip
        """Return once a request for that model may go on, and whether it had to wait, `patience`
        seconds at most; after `spare` seconds it is late. `sent` of the gate must be called then.
        Raises SaturatedError or ClientGoneError."""
        now, gate = self._clock(), self.gate
        if gate.enters(model, now):
            return False
        if client.ended:
            raise ClientGoneError("the client has gone")
        waiter = gate.wait(model, tenant, priority, now, most=patience, spare=spare)
        await self._wait(client, waiter)
        return True

    def _does_not_go(self, waiter: Waiter) -> None:
        self.gate.sent(waiter.lane)
