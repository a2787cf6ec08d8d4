"""Requests of several workers within the limits that the hub keeps."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.config import FlowSettings
from inferway.errors import ClientGoneError, QueueFullError
from inferway.http.ends import BodySource
from inferway.http.request_queue import RequestQueue
from inferway.routing.limits.slot import Slot
from inferway.tasks import Tasks
from inferway.workers.messages import Enter, Full, Leave, Message, Move, Turn
from inferway.workers.turns import HubQueue, Turns, own_places

WORKERS = 2
ENGINES = frozenset({"a", "b"})
log = logging.getLogger(__name__)


@dataclass
class Client:
    """Of a request that waits."""

    ended: bool = False
    source: BodySource | None = None

    def attach(self, source: BodySource) -> None:
        self.source = source


@dataclass
class Asked:
    """A request, from when it asks for its turn."""

    client: Client
    slot: Slot
    task: asyncio.Task[bool]

    @property
    def is_inside(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


@dataclass
class World:
    """A hub and its workers. Messages between them are on their way until they are delivered."""

    flow: FlowSettings
    now: float = 0.0
    to_hub: list[deque[Message]] = field(init=False)
    to_worker: list[deque[Message]] = field(init=False)

    def __post_init__(self) -> None:
        self.to_hub = [deque() for _ in range(WORKERS)]
        self.to_worker = [deque() for _ in range(WORKERS)]
        self.queue = RequestQueue(self.flow, lambda _: ENGINES, lambda: self.now)
        self.turns = Turns(
            self.queue,
            lambda place, message: self.to_worker[place].append(message),
            self._to_all,
            Tasks(log, "a turn was lost"),
        )
        self.turns.set_settings(self.flow, WORKERS)
        self.workers = [HubQueue(sent.append) for sent in self.to_hub]
        for worker in self.workers:
            worker.own = own_places(self.flow, WORKERS, has_gate=False)

    def _to_all(self, message: Message) -> None:
        for sent in self.to_worker:
            sent.append(message)

    def ask(self, worker: int) -> Asked:
        client: Any = Client()
        slot = self.workers[worker].ticket(client, "")
        return Asked(client, slot, asyncio.ensure_future(slot.enter("m", (), 0)))

    async def deliver(self, way: list[deque[Message]], worker: int) -> None:
        if way[worker]:
            message = way[worker].popleft()
            if way is self.to_hub:
                self._to_hub(worker, message)
            else:
                self._to_worker(worker, message)
        for _ in range(5):  # tasks go on
            await asyncio.sleep(0)

    async def deliver_all(self) -> None:
        await asyncio.sleep(0)
        while any(self.to_hub) or any(self.to_worker):
            for worker in range(WORKERS):
                await self.deliver(self.to_hub, worker)
                await self.deliver(self.to_worker, worker)

    def _to_hub(self, worker: int, message: Message) -> None:
        match message:
            case Enter():
                self.turns.enter(worker, message)
            case Move():
                self.turns.move(worker, message)
            case Leave():
                self.turns.leave(worker, message.number)

    def _to_worker(self, worker: int, message: Message) -> None:
        match message:
            case Turn():
                self.workers[worker].heard(message)
            case Full():
                self.workers[worker].heard_full(message)


@given(
    limit=st.integers(1, 24),
    story=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 9)), max_size=60),
)
@settings(deadline=None)
def test_no_more_are_inside_than_may_be_and_nobody_waits_for_nothing(
    limit: int, story: list[tuple[int, int, int]]
) -> None:
    async def run() -> None:
        world = World(FlowSettings(in_flight=limit, queue=1000))
        asked: list[Asked] = []
        for what, worker, which in story:
            if what == 0:
                asked.append(world.ask(worker))
            elif what in (1, 2):
                await world.deliver((world.to_hub, world.to_worker)[what - 1], worker)
            elif asked:
                request = asked[which % len(asked)]
                if what == 3 and request.is_inside:
                    request.slot.leave()
                    asked.remove(request)
                elif what == 4 and not request.task.done() and request.client.source is not None:
                    request.client.source.client_gone()
                    with pytest.raises(ClientGoneError):
                        await request.task
                    asked.remove(request)
            await asyncio.sleep(0)
            assert sum(each.is_inside for each in asked) <= limit

        await world.deliver_all()
        waiting = [each for each in asked if not each.task.done()]
        inside = [each for each in asked if each.is_inside]
        assert len(inside) <= limit
        assert not waiting or len(inside) >= limit * 3 // 4
        while inside:  # all have their turn at last
            for each in inside:
                each.slot.leave()
                asked.remove(each)
            await world.deliver_all()
            inside = [each for each in asked if each.is_inside]
        assert not asked
        assert world.queue.limiter.in_flight == 0
        world.queue.close()

    asyncio.run(run())


async def test_who_finds_no_room_in_the_queue_is_refused_as_by_one_process() -> None:
    world = World(FlowSettings(in_flight=1, queue=0))
    first, second = world.ask(0), world.ask(1)
    await world.deliver_all()

    assert first.is_inside
    with pytest.raises(QueueFullError, match="1 requests are with the engines"):
        await second.task


async def test_an_engine_that_is_full_is_so_for_all_workers() -> None:
    world = World(FlowSettings(engine_in_flight=1))
    first = world.ask(0)
    await world.deliver_all()
    engine = world.queue.limiter.full.copy().pop()
    second = world.ask(1)
    await world.deliver_all()

    assert second.slot.limits_engines
    assert not second.slot.takes(engine)
    (other,) = ENGINES - {engine}
    assert second.slot.takes(other)  # it holds a place there
    first.slot.leave()
    await world.deliver_all()
    assert second.slot.takes(engine)
    second.slot.move(engine)
    await world.deliver_all()
    assert world.queue.limiter.engines == {engine: 1}


async def test_the_second_engine_of_a_request_is_given_back() -> None:
    world = World(FlowSettings(engine_in_flight=2))
    request = world.ask(0)
    await world.deliver_all()
    beside = request.slot.beside()
    beside.move("a")
    beside.move("b")
    await world.deliver_all()
    assert sum(world.queue.limiter.engines.values()) == 2

    beside.leave()
    request.slot.leave()
    await world.deliver_all()

    assert world.queue.limiter.engines == {}
    assert world.queue.limiter.in_flight == 0


async def test_a_worker_that_ends_gives_all_back() -> None:
    world = World(FlowSettings(in_flight=2))
    for _ in range(3):
        world.ask(0)
    await world.deliver_all()
    other = world.ask(1)
    await world.deliver_all()
    assert not other.task.done()

    world.turns.ended(0)
    await world.deliver_all()

    assert other.is_inside
    assert world.queue.limiter.in_flight == 1


async def test_without_its_hub_a_worker_refuses_what_it_cannot_count() -> None:
    world = World(FlowSettings(in_flight=1))
    waiting = world.ask(0)
    await asyncio.sleep(0)

    world.workers[0].hub_has_gone()
    later = world.ask(0)

    for request in (waiting, later):
        with pytest.raises(Exception, match="hub is away"):
            await request.task


@pytest.mark.parametrize(
    ("flow", "has_gate", "expected"),
    [
        (FlowSettings(in_flight=10_000), False, 1250),
        (FlowSettings(in_flight=7), False, 0),
        (FlowSettings(in_flight=10_000), True, 0),
        (FlowSettings(in_flight=10_000, engine_in_flight=8), False, 0),
        (FlowSettings(in_flight=None), False, 0),
    ],
)
def test_a_workers_own_places(flow: FlowSettings, has_gate: bool, expected: int) -> None:
    assert own_places(flow, WORKERS, has_gate=has_gate) == expected
