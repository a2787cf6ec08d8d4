"""The queue of requests that wait for their turn: futures and a timer around
routing.limits.concurrency_limiter.

Nothing is taken from a request while it waits but its memory. It leaves the queue when its turn
comes, its time is over, somebody displaces it, or its client goes away, whichever is first. How
long a caller would wait for its answer to begin, its headers say:

x-slo-ttft-ms, x-llm-d-slo-ttft-ms   milliseconds to the first token
x-request-timeout-ms                 milliseconds for the whole request
x-stainless-read-timeout             seconds without a byte: OpenAI's own clients send it

A shorter time than the operator's can only hurt its sender, so these are taken from anybody. What
is no positive number is as if it were not there: the first two are refused where they are read
(routing/objectives), the others are not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf, isfinite

from inferway.config import FlowSettings
from inferway.errors import ClientGoneError, InferwayError
from inferway.http.ends import InQueue, WaitingClient
from inferway.http.gate_queues import GoodputQueue, SessionQueue
from inferway.http.responder import Responder
from inferway.model import Headers
from inferway.routing.limits.concurrency_limiter import (
    ConcurrencyLimiter,
    EnginesOf,
    OtherProcesses,
)
from inferway.routing.limits.queue import Waiter
from inferway.routing.limits.saturation_gate import SaturationGate
from inferway.routing.limits.slot import Slot
from inferway.routing.objectives import TTFT

_SWEEP_SECONDS = 0.1  # for deadlines, and engines that come, go or return

_UNITS = {  # in seconds
    **dict.fromkeys(TTFT, 0.001),
    b"x-request-timeout-ms": 0.001,
    b"x-stainless-read-timeout": 1.0,
}


class RequestQueue:
    """The queue of this process's requests, of which there is one. `clock` counts seconds; `gate`
    says who waits beside those for whom there is no place."""

    def __init__(
        self,
        settings: FlowSettings,
        engines_of: EnginesOf,
        clock: Callable[[], float],
        gate: SaturationGate | None = None,
        sessions: SessionQueue | None = None,
        others: OtherProcesses | None = None,
        is_suspended: Callable[[str], bool] = lambda _: False,
        goodput: GoodputQueue | None = None,
    ) -> None:
        """`others`: processes that keep the limits together with this one; each has a queue of its
        own. None: there is none. `is_suspended`: whether all engines of a model are."""
        self.limiter = ConcurrencyLimiter(settings, engines_of, gate, others, is_suspended)
        self._look_seconds = _SWEEP_SECONDS if others is None else others.look_seconds
        self._expires_at = 0.0  # when deadlines are looked at again, by `clock`
        self.sessions = sessions  # where new sessions wait first; None: they do not
        self.goodput = goodput  # where requests wait once their prompts are known; None: nowhere
        self.clock = clock
        self._futures: dict[Waiter, asyncio.Future[str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def num_waiting(self) -> int:
        """Return how many requests wait for their turn."""
        gates = [each.gate for each in (self.sessions, self.goodput) if each is not None]
        return self.limiter.num_waiting + sum([gate.queue.size for gate in gates])

    def ticket(self, responder: Responder, tenant: str) -> Ticket | None:
        """Return a slot for a request; None while nothing is limited."""
        limiter = self.limiter
        settings = limiter.settings
        if (
            settings.in_flight is None
            and settings.engine_in_flight is None
            and limiter.gate is None
            and self.sessions is None
            and self.goodput is None
        ):
            return None
        return Ticket(self, responder, tenant)

    def set_settings(self, settings: FlowSettings) -> None:
        """Keep these limits from now on; requests that wait may have their turn."""
        self.limiter.set_settings(settings)
        for each in (self.sessions, self.goodput):
            if each is not None:
                each.gate.most_waiting = settings.queue
        self.turns()

    async def hold(self, responder: Responder, waiter: Waiter) -> Ticket:
        """Wait until not all engines of a request's model are suspended; return its slot, which has
        had its turn. Raises as `wait` does."""
        return HeldTicket(self, responder, waiter, await self.wait(responder, waiter))

    def turns(self) -> None:
        """Let whoever has room now go on."""
        now = self.clock()
        while turns := self.limiter.turns(now):
            for waiter, place in turns:
                future = self._futures.pop(waiter)
                if future.cancelled():  # and its task does not know yet
                    self.limiter.leave(place, waiter.lane)
                    continue
                future.set_result(place)

    async def wait(self, responder: WaitingClient, waiter: Waiter) -> str:
        """Wait for the turn of a request; return its place. Raises SaturatedError or
        ClientGoneError."""
        if responder.ended:
            raise ClientGoneError("the client has gone")
        victim = self.limiter.wait(waiter)
        if victim is not None:
            self._refuse(victim, self.limiter.refusal(victim))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        self._futures[waiter] = future
        if self._timer is None:
            self._timer = loop.call_later(self._look_seconds, self._sweep)
        responder.attach(InQueue(partial(self.withdraw, waiter)))
        if self.limiter.gate is not None:
            self.turns()  # it may go on before earlier requests of lower priorities
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.withdraw(waiter)
            elif future.exception() is None:
                self.leave(future.result(), waiter.lane)
            raise

    def withdraw(self, waiter: Waiter) -> None:
        """The waiter does not wait any more; nothing happens if it has not."""
        future = self._futures.pop(waiter, None)
        if future is None:
            return
        self.limiter.withdraw(waiter)
        if not future.done():
            future.set_exception(ClientGoneError("the client has gone"))

    def leave(self, place: str, lane: str) -> None:
        """A request for the model `lane`, which held this place, has ended."""
        self.limiter.leave(place, lane)
        if self._futures:
            self.turns()

    def freed(self) -> None:
        """Let others go on: there may be room."""
        if self._futures:
            self.turns()

    def close(self) -> None:
        """Stop the timers: no request waits any more."""
        if self._timer is not None:
            self._timer.cancel()
        for each in (self.sessions, self.goodput):
            if each is not None:
                each.close()

    def _sweep(self) -> None:
        now = self.clock()
        if now >= self._expires_at:
            self._expires_at = now + _SWEEP_SECONDS
            for waiter, error in self.limiter.expire(now):
                self._refuse(waiter, error)
        self.turns()
        self._timer = None
        if self._futures:
            self._timer = asyncio.get_running_loop().call_later(self._look_seconds, self._sweep)

    def _refuse(self, waiter: Waiter, error: InferwayError) -> None:
        future = self._futures.pop(waiter)
        if not future.done():
            future.set_exception(error)


class Ticket:
    """A request's slot within the limits (routing.limits.slot.Slot)."""

    __slots__ = (
        *("_control", "_inside", "_is_let_in", "_lane", "_patience", "_place", "_priority"),
        *("_responder", "_tenant", "waited"),
    )

    def __init__(self, control: RequestQueue, responder: Responder, tenant: str) -> None:
        self._control = control
        self._responder = responder
        self._tenant = tenant
        self._inside = False
        self._is_let_in = False  # by `goodput`, which does not know yet that it is sent
        self._lane = ""
        self._priority = 0
        self._patience = inf  # seconds
        self._place = ""
        self.waited = 0.0  # seconds

    @property
    def limits_engines(self) -> bool:
        return bool(self._control.limiter.full)

    async def enter(self, model: str, headers: Headers, priority: int) -> bool:
        control, self._lane, self._priority = self._control, model, priority
        if control.goodput is not None:
            self._patience = patience(headers, control.limiter.most_seconds(priority))
        has_waited = control.sessions is not None and await self._enter_session(
            control.sessions, headers, priority
        )
        place = control.limiter.enter(model, priority)
        if place is not None:
            self._place, self._inside = place, True
            return has_waited
        now = control.clock()
        most = patience(headers, control.limiter.most_seconds(priority))
        waiter = Waiter(model, self._tenant, priority, now + most, now)
        if control.limiter.gate is not None:
            control.limiter.gate.order(waiter, ttft_seconds(headers))
        self._place = await control.wait(self._responder, waiter)
        self._inside = True
        self.waited += control.clock() - now
        return True

    async def _enter_session(self, sessions: SessionQueue, headers: Headers, priority: int) -> bool:
        """Wait until the request's session has room; return whether it had to."""
        name = sessions.gate.session(headers)
        if not name:
            return False
        clock = self._control.clock
        now = clock()
        has_waited = await sessions.enter(
            *(self._responder, self._lane, name, self._tenant, priority),
            patience=patience(headers, inf),
        )
        self.waited = clock() - now
        return has_waited

    async def wait_for_engine(self, spare: float) -> bool:
        control, goodput = self._control, self._control.goodput
        if goodput is None:
            return False
        now = control.clock()
        has_waited = await goodput.enter(
            *(self._responder, self._lane, self._tenant, self._priority),
            patience=self._patience,
            spare=spare,
        )
        self._is_let_in = True
        self.waited += control.clock() - now
        return has_waited

    def takes(self, engine: str) -> bool:
        return self._control.limiter.takes(engine, self._place)

    def move(self, engine: str) -> None:
        control, place = self._control, self._place
        self._sent()
        if engine == place or not (place or control.limiter.limits_engines):
            return
        control.limiter.move(place, engine)
        self._place = engine
        if place:
            control.freed()

    def leave(self) -> None:
        self._sent()
        if self._inside:
            self._inside = False
            self._control.leave(self._place, self._lane)

    def _sent(self) -> None:
        if self._is_let_in and self._control.goodput is not None:
            self._is_let_in = False
            self._control.goodput.gate.sent(self._lane)

    def beside(self) -> Slot:
        return _Beside(self._control)


class HeldTicket(Ticket):
    """The slot of a request that was held, and has had its turn."""

    __slots__ = ()

    def __init__(
        self, control: RequestQueue, responder: Responder, waiter: Waiter, place: str
    ) -> None:
        super().__init__(control, responder, waiter.tenant)
        self._lane, self._place, self._inside = waiter.lane, place, True
        self._priority, self._patience = waiter.priority, waiter.deadline - control.clock()
        self.waited = control.clock() - waiter.came

    async def enter(self, model: str, headers: Headers, priority: int) -> bool:
        del model, headers, priority
        return True


class _Beside:
    """A second slot of a request that has its turn: at an engine, and none of all."""

    __slots__ = ("_control", "_place")

    waited = 0.0
    limits_engines = True

    def __init__(self, control: RequestQueue) -> None:
        self._control = control
        self._place = ""

    async def enter(self, model: str, headers: Headers, priority: int) -> bool:
        del model, headers, priority
        return False

    async def wait_for_engine(self, spare: float) -> bool:
        del spare
        return False

    def takes(self, engine: str) -> bool:
        return self._control.limiter.takes(engine, self._place)

    def move(self, engine: str) -> None:
        place, self._place = self._place, engine
        self._control.limiter.move(place, engine)
        if place and place != engine:
            self._control.freed()

    def leave(self) -> None:
        place, self._place = self._place, ""
        if place:
            self._control.limiter.free(place)
            self._control.freed()

    def beside(self) -> Slot:
        return _Beside(self._control)


def patience(headers: Headers, most: float) -> float:
    """Return the seconds that a caller would wait for its turn, `most` at most."""
    for name, value in headers:
        unit = _UNITS.get(name)
        if unit is not None:
            most = min(most, _seconds(value, unit, most))
    return most


def ttft_seconds(headers: Headers) -> float | None:
    """Return the seconds to the first token that the caller asks for; None if it does not."""
    for name, value in headers:
        if name in TTFT:
            seconds = _seconds(value, _UNITS[name], 0.0)
            return seconds or None
    return None


def _seconds(value: bytes, unit: float, otherwise: float) -> float:
    try:
        seconds = float(value) * unit
    except ValueError:
        return otherwise
    return seconds if isfinite(seconds) and seconds > 0 else otherwise
