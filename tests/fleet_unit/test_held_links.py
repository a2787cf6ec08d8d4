"""An engine is killed and comes back while its link is held on the way: what of its old life is
still in the pipe comes to a gateway that may know the new life already, under numbers that fit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fleet_unit.test_subscriber import (
    Publisher,
    matched,
    removed,
    run,
    settled,
    stored,
    subscriber,
    wait_until,
)
from tests.soak.engines import Wire

from inferway.events.stream import StreamState
from inferway.fleet.discovery import EventSource
from inferway.fleet.subscriber import EventSubscriber
from inferway.index.memory import MemoryIndex

NUM_OLD = 3  # batches of the old life that the gateway has applied; one more is held
ELSEWHERE = removed(77)  # so that no batch of the new life has the bytes of one of the old


@asynccontextmanager
async def linked_by(
    publisher: Publisher, wire: Wire, index: MemoryIndex
) -> AsyncIterator[EventSubscriber]:
    await wire.open()
    link = f"tcp://127.0.0.1:{wire.port}"
    follower = subscriber(EventSource(0, link, publisher.replay_endpoint), index)
    follower.start()
    try:
        await publisher.subscribed()
        yield follower
    finally:
        await follower.close()
        await wire.close()
        await publisher.close()


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("num_new", range(NUM_OLD + 3))
def test_of_a_life_that_ended_behind_a_held_link_nothing_is_believed(
    num_new: int, is_told: bool
) -> None:
    """`is_told`: the engine's HTTP server shows that it is back, before its link does."""

    async def scenario() -> None:
        publisher, index = Publisher(), MemoryIndex()
        wire = Wire(int(publisher.endpoint.rpartition(":")[2]))
        async with linked_by(publisher, wire, index) as follower:
            for block in range(NUM_OLD):
                await publisher.publish(stored(block, block + 1))
            await wait_until(lambda: matched(index) == NUM_OLD)
            await settled(follower, StreamState.EXACT)
            wire.hold()
            await publisher.publish(stored(NUM_OLD, NUM_OLD + 1))
            await publisher.restart()
            for block in range(num_new):
                await publisher.publish(stored(block, block + 1), ELSEWHERE)
            if is_told:
                follower.resync()
                await wait_until(lambda: follower.stream.stats.restarts == 1)

            wire.let_go()
            await publisher.subscribed()
            await publisher.publish(stored(num_new, num_new + 1), ELSEWHERE)
            await wait_until(lambda: follower.stream.stats.restarts > 0)
            await wait_until(lambda: follower.stream.last_seq == num_new)
            await settled(follower, StreamState.EXACT)

            assert matched(index) == num_new + 1

    run(scenario)
