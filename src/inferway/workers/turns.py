"""Limits of requests under way, and the queue before them, which the hub has for all workers.

Where only the number of all requests is limited, each worker has a few places of its own, which it
need not ask for (`own_places`); beyond them, and where engines have limits, it asks for each
request's turn. The hub's answer takes a fraction of a millisecond if there is room. Two workers may
give an engine its last place at the same moment: then it has one request more than its limit until
the first of them has ended.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

import msgspec

from inferway.config import FlowSettings
from inferway.errors import (
    ClientGoneError,
    QueueFullError,
    SaturatedError,
    WaitTooLongError,
)
from inferway.http.ends import BodySource, InQueue
from inferway.http.request_queue import RequestQueue, patience, ttft_seconds
from inferway.http.responder import Responder
from inferway.model import Headers
from inferway.routing.limits.queue import Waiter
from inferway.routing.limits.slot import Slot
from inferway.tasks import Tasks
from inferway.workers.messages import Enter, Full, Leave, Message, Move, Turn

_REFUSALS: Mapping[str, type[SaturatedError]] = {
    each.code: each for each in (QueueFullError, WaitTooLongError)
}
_HUB_AWAY = "the gateway's hub is away, which counts the requests under way"

Send = Callable[[Message], None]


OWN_SHARE = 4  # workers have one place in so many, all together


def own_places(flow: FlowSettings, workers: int, *, has_gate: bool) -> int:
    """Return how many places each worker has of its own. The hub has the rest for all, so that at
    least three quarters of all places can be with one worker, and never more than all are taken."""
    if flow.in_flight is None or flow.engine_in_flight is not None or has_gate:
        return 0
    return flow.in_flight // (OWN_SHARE * workers)


# a worker's side


class HubQueue:
    """Asks the hub for turns. It is given to `Auth` in place of its own queue's tickets."""

    def __init__(self, send: Send) -> None:
        self.full: frozenset[str] = frozenset()
        self.own = 0  # places of this worker's
        self._taken = 0  # of them
        self._send = send
        self._numbers = count(1)
        self._asked: OrderedDict[int, asyncio.Future[Turn]] = OrderedDict()
        self._is_away = False

    def ticket(self, responder: Responder, tenant: str) -> Slot:
        """Return a slot for a request."""
        return HubTicket(self, responder, tenant)

    async def turn(self, responder: Responder, ask: Enter) -> Turn:
        """Wait for the hub's answer. Raises SaturatedError or ClientGoneError."""
        if responder.ended:
            raise ClientGoneError("the client has gone")
        if self._is_away:
            raise SaturatedError(_HUB_AWAY)
        future: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._asked[ask.number] = future
        self._send(ask)
        responder.attach(InQueue(partial(self.withdraw, ask.number)))
        try:
            turn = await future
        except asyncio.CancelledError:
            self._asked.pop(ask.number, None)
            self.leave(ask.number)
            raise
        if turn.refusal is not None:
            kind = _REFUSALS.get(turn.code, SaturatedError)
            raise kind(turn.refusal, retry_after=turn.retry_after)
        return turn

    def takes_own(self) -> bool:
        """Take one of this worker's own places, unless none is free or others wait already."""
        if self._taken >= self.own or self._asked:
            return False
        self._taken += 1
        return True

    def give_back(self) -> None:
        """Give back one of this worker's own places, to whoever waits longest."""
        number = next(iter(self._asked), None)
        if number is None or self._taken > self.own:
            self._taken -= 1
            return
        future = self._asked.pop(number)
        self.leave(number)  # it does not need the hub's any more
        if future.done():
            self._taken -= 1
        else:
            future.set_result(_OWN_TURN)

    def next_number(self) -> int:
        return next(self._numbers)

    def heard(self, turn: Turn) -> None:
        """Take the hub's answer."""
        future = self._asked.pop(turn.number, None)
        if future is not None and not future.done():
            future.set_result(turn)
        elif turn.refusal is None:
            self.leave(turn.number)  # nobody waits for it any more

    def heard_full(self, told: Full) -> None:
        self.full = frozenset(told.engines)

    def hub_has_gone(self) -> None:
        """Nobody answers any more: who waits is refused, and nothing is full."""
        self._is_away, self.full = True, frozenset()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(SaturatedError(_HUB_AWAY))
        self._asked.clear()

    def withdraw(self, number: int) -> None:
        """The client has gone while its request waited."""
        future = self._asked.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(ClientGoneError("the client has gone"))
            self.leave(number)

    def move(self, number: int, engine: str) -> None:
        self._send(Move(number, engine))

    def leave(self, number: int) -> None:
        self._send(Leave(number))


_OWN_TURN = Turn(0, has_waited=True)  # one of the worker's own


class HubTicket:
    """A request's slot within the hub's limits (routing.limits.slot.Slot)."""

    __slots__ = (
        "_is_beside",
        "_is_own",
        "_number",
        "_place",
        "_queue",
        "_responder",
        "_tenant",
        "waited",
    )

    def __init__(
        self, queue: HubQueue, responder: Responder, tenant: str, *, is_beside: bool = False
    ) -> None:
        self._queue = queue
        self._responder = responder
        self._tenant = tenant
        self._is_beside = is_beside
        self._is_own = False  # its place is one of the worker's own
        self._number = 0  # 0: it is not inside the hub's limits
        self._place = ""
        self.waited = 0.0

    @property
    def limits_engines(self) -> bool:
        return bool(self._queue.full)

    async def enter(self, model: str, headers: Headers, priority: int) -> bool:
        if self._is_beside:
            return False
        if self._queue.takes_own():
            self._is_own = True
            return False
        loop = asyncio.get_running_loop()
        asked = loop.time()
        ask = Enter(
            self._queue.next_number(),
            model,
            self._tenant,
            priority,
            patience(headers, math.inf),
            ttft_seconds(headers),
        )
        turn = await self._queue.turn(self._responder, ask)
        self._is_own = turn is _OWN_TURN
        self._number, self._place = turn.number, turn.place
        self.waited = loop.time() - asked if turn.has_waited else 0.0
        return turn.has_waited

    def takes(self, engine: str) -> bool:
        return engine not in self._queue.full or engine == self._place

    def move(self, engine: str) -> None:
        if engine == self._place or self._is_own:
            return
        if not self._number:  # beside: it is inside from here on
            self._number = -self._queue.next_number()
        self._place = engine
        self._queue.move(self._number, engine)

    def leave(self) -> None:
        number, self._number = self._number, 0
        if self._is_own:
            self._is_own = False
            self._queue.give_back()
        elif number:
            self._queue.leave(number)

    def beside(self) -> Slot:
        return HubTicket(self._queue, self._responder, self._tenant, is_beside=True)


# the hub's side


class Turns:
    """The requests of all workers in the hub's own queue. `tell` sends a message to one worker,
    `tell_all` to each."""

    def __init__(
        self,
        queue: RequestQueue,
        tell: Callable[[int, Message], None],
        tell_all: Send,
        tasks: Tasks,
    ) -> None:
        self._queue = queue
        self._tell = tell
        self._tell_all = tell_all
        self._tasks = tasks
        self._inside: dict[tuple[int, int], _Inside] = {}  # (place of the worker, number)
        self._waiting: dict[tuple[int, int], Waiter] = {}
        self._full: frozenset[str] = frozenset()

    def set_settings(self, flow: FlowSettings, workers: int) -> None:
        """Keep these limits from now on, but for what the workers have themselves."""
        queue = self._queue
        own = own_places(flow, workers, has_gate=queue.limiter.gate is not None)
        if flow.in_flight is not None:
            flow = msgspec.structs.replace(flow, in_flight=flow.in_flight - own * workers)
        queue.set_settings(flow)

    def enter(self, place: int, ask: Enter) -> None:
        """A worker's request asks for its turn."""
        queue = self._queue
        limiter = queue.limiter
        engine = limiter.enter(ask.model, ask.priority)
        if engine is not None:
            self._give(place, ask, engine, has_waited=False)
            return
        now = queue.clock()
        most = min(ask.most_seconds, limiter.most_seconds(ask.priority))
        waiter = Waiter(ask.model, ask.tenant, ask.priority, now + most, now)
        if limiter.gate is not None:
            limiter.gate.order(waiter, ask.ttft_seconds)
        self._waiting[place, ask.number] = waiter
        self._tasks.spawn(self._wait(place, ask, waiter))

    def move(self, place: int, told: Move) -> None:
        """It goes to another engine. Numbers below 0 are of a request's second engine."""
        key = (place, told.number)
        inside = self._inside.get(key)
        if inside is None and told.number < 0:
            inside = self._inside[key] = _Inside("", "")
        if inside is None:
            return
        self._queue.limiter.move(inside.engine, told.engine)
        had, inside.engine = inside.engine, told.engine
        if had and had != told.engine:
            self._queue.freed()
        self._tell_full()

    def leave(self, place: int, number: int) -> None:
        """It has ended, or waits no longer."""
        waiter = self._waiting.pop((place, number), None)
        if waiter is not None:
            self._queue.withdraw(waiter)
            return
        inside = self._inside.pop((place, number), None)
        if inside is None:
            return
        if number < 0:
            self._queue.limiter.free(inside.engine)
            self._queue.freed()
        else:
            self._queue.leave(inside.engine, inside.model)
        self._tell_full()

    def ended(self, place: int) -> None:
        """A worker has ended, and all its requests with it."""
        for key in [key for key in (*self._waiting, *self._inside) if key[0] == place]:
            self.leave(*key)

    def tell_full_to(self, place: int) -> None:
        """Tell a new worker which engines are full."""
        self._tell(place, Full(sorted(self._full)))

    async def _wait(self, place: int, ask: Enter, waiter: Waiter) -> None:
        try:
            engine = await self._queue.wait(_Elsewhere(), waiter)
        except SaturatedError as e:
            self._waiting.pop((place, ask.number), None)
            refusal = Turn(ask.number, refusal=str(e), code=e.code, retry_after=e.retry_after or 1)
            self._tell(place, refusal)
        except ClientGoneError:
            pass  # withdrawn
        else:
            self._waiting.pop((place, ask.number), None)
            self._give(place, ask, engine, has_waited=True)

    def _give(self, place: int, ask: Enter, engine: str, *, has_waited: bool) -> None:
        self._inside[place, ask.number] = _Inside(ask.model, engine)
        self._tell_full()
        self._tell(place, Turn(ask.number, engine, has_waited))

    def _tell_full(self) -> None:
        full = frozenset(self._queue.limiter.full)
        if full != self._full:
            self._full = full
            self._tell_all(Full(sorted(full)))


class _Inside:
    """A request that has its turn."""

    __slots__ = ("engine", "model")

    def __init__(self, model: str, engine: str) -> None:
        self.model = model
        self.engine = engine


class _Elsewhere:
    """The client of a request that a worker has: it says when that has gone."""

    ended = False

    def attach(self, source: BodySource) -> None:
        del source
