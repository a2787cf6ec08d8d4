"""Requests of several workers within limits that hold for all of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.config import FlowSettings
from inferway.errors import ClientGoneError, QueueFullError, WaitTooLongError
from inferway.fleet.shared_columns import SharedColumns, shared_memory
from inferway.fleet.shared_places import LOOK_SECONDS, WAITS_SECONDS, SharedPlaces
from inferway.http.ends import BodySource
from inferway.http.request_queue import RequestQueue
from inferway.routing.limits.slot import Slot

WORKERS = 2
ROWS = {"a": 0, "b": 1}


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
    """A hub's memory, and the queues of its workers. A worker looks when it is told to."""

    flow: FlowSettings
    now: float = 100.0
    queues: list[RequestQueue] = field(default_factory=list)
    hub: SharedColumns = field(init=False)

    @contextmanager
    def open(self) -> Iterator[World]:
        memory = shared_memory(WORKERS + 1)
        processes = [SharedColumns(memory, place) for place in range(WORKERS + 1)]
        os.close(memory)
        for each in processes:
            each.grow(len(ROWS))
        self.hub, *workers = processes
        for columns in workers:
            places = SharedPlaces(columns, ROWS.get, self._clock)
            queue = RequestQueue(self.flow, lambda _: ROWS, self._clock, others=places)
            self.queues.append(queue)
        try:
            yield self
        finally:
            for queue in self.queues:
                queue.close()

    def _clock(self) -> float:
        return self.now

    async def ask(self, worker: int) -> Asked:
        client: Any = Client()
        slot = self.queues[worker].ticket(client, "")
        assert slot is not None
        asked = Asked(client, slot, asyncio.ensure_future(slot.enter("m", (), 0)))
        await asyncio.sleep(0)
        return asked

    async def look(self, *workers: int) -> None:
        for worker in workers:
            self.queues[worker].turns()
        for _ in range(3):  # tasks go on
            await asyncio.sleep(0)


@given(
    limit=st.integers(1, 6),
    story=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 9)), max_size=60),
)
@settings(deadline=None)
def test_no_more_are_inside_than_may_be_and_nobody_waits_for_nothing(
    limit: int, story: list[tuple[int, int, int]]
) -> None:
    async def run(world: World) -> None:
        asked: list[Asked] = []
        for what, worker, which in story:
            if what == 0:
                asked.append(await world.ask(worker))
            elif what in (1, 2):
                world.now += what * LOOK_SECONDS
                await world.look(worker)
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

        while asked:  # all have their turn at last
            for _ in range(limit):
                await world.look(0, 1)
            inside = [each for each in asked if each.is_inside]
            assert len(inside) == min(limit, len(asked))
            for each in inside:
                each.slot.leave()
                asked.remove(each)
        assert not world.hub.places[:2].any()

    with World(FlowSettings(in_flight=limit, queue=1000)).open() as world:
        asyncio.run(run(world))


async def test_a_worker_looks_by_itself_whether_another_one_has_freed_a_place() -> None:
    with World(FlowSettings(in_flight=1)).open() as world:
        first, second = await world.ask(0), await world.ask(1)
        assert not second.task.done()

        first.slot.leave()

        assert await second.task
        assert second.slot.waited == 0.0  # by a clock that stands still


async def test_of_workers_that_wait_the_one_with_fewer_requests_goes_first() -> None:
    with World(FlowSettings(in_flight=2)).open() as world:
        busy = [await world.ask(0) for _ in range(3)]
        other = await world.ask(1)
        await world.look(1)

        busy[0].slot.leave()
        await world.look(0)
        assert not busy[2].task.done()
        await world.look(1)
        assert other.is_inside

        busy[1].slot.leave()
        await world.look(0)
        assert busy[2].is_inside


async def test_a_worker_that_does_not_look_holds_up_nobody() -> None:
    with World(FlowSettings(in_flight=2)).open() as world:
        busy = [await world.ask(0) for _ in range(3)]
        await world.ask(1)
        await world.look(1)
        world.now += WAITS_SECONDS

        busy[0].slot.leave()
        await world.look(0)

        assert busy[2].is_inside


async def test_a_worker_whose_clients_have_gone_holds_up_nobody() -> None:
    with World(FlowSettings(in_flight=2)).open() as world:
        busy = [await world.ask(0) for _ in range(3)]
        gone = await world.ask(1)
        await world.look(1)
        assert gone.client.source is not None
        gone.client.source.client_gone()

        busy[0].slot.leave()
        await world.look(0)

        assert busy[2].is_inside
        with pytest.raises(ClientGoneError):
            await gone.task


async def test_those_who_wait_with_any_worker_fill_the_queue() -> None:
    with World(FlowSettings(in_flight=1, queue=1)).open() as world:
        await world.ask(0)
        await world.ask(0)
        refused = await world.ask(1)

        with pytest.raises(QueueFullError, match="1 requests are with the engines and 1 wait"):
            await refused.task
        assert world.queues[1].num_waiting() == 1


async def test_who_has_waited_for_too_long_is_refused_though_its_worker_looks_more_often() -> None:
    with World(FlowSettings(in_flight=1, queue_seconds=1.0)).open() as world:
        await world.ask(0)
        late = await world.ask(1)
        world.now += 2.0

        with pytest.raises(WaitTooLongError):
            await late.task


async def test_an_engine_that_is_full_is_so_for_all_workers() -> None:
    with World(FlowSettings(engine_in_flight=1)).open() as world:
        first, second = await world.ask(0), await world.ask(1)
        engine, other = ("a", "b") if world.hub.at_engines[1, 0] else ("b", "a")

        assert second.slot.limits_engines
        assert not second.slot.takes(engine)
        assert second.slot.takes(other)  # it holds a place there
        first.slot.leave()
        assert second.slot.takes(engine)
        second.slot.move(engine)
        assert world.hub.at_engines[:, ROWS[engine]].sum() == 1
        assert world.hub.at_engines[:, ROWS[other]].sum() == 0


async def test_the_second_engine_of_a_request_is_given_back() -> None:
    with World(FlowSettings(engine_in_flight=2)).open() as world:
        request = await world.ask(0)
        beside = request.slot.beside()
        beside.move("a")
        beside.move("b")
        assert world.hub.at_engines.sum() == 2

        beside.leave()
        request.slot.leave()

        assert not world.hub.at_engines.any()


async def test_a_worker_that_ends_gives_all_back() -> None:
    with World(FlowSettings(in_flight=2, engine_in_flight=2)).open() as world:
        for _ in range(3):
            await world.ask(0)
        other = await world.ask(1)
        assert not other.task.done()

        world.queues[0].close()
        world.hub.process_ended(1)

        assert await other.task
        assert world.hub.places[0].tolist() == [0.0, 0.0, 1.0]
        assert not other.slot.limits_engines
        assert world.hub.at_engines.sum() == 1
