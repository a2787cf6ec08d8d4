"""What /metrics and /admin/engines tell of event streams that are not as they should be."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.integration.conftest import StartFleet, until

from inferway.config import EngineSettings
from inferway_sim.config import EventsConfig
from inferway_sim.engine import SimulatedEngine
from inferway_sim.publisher import EventPublisher

EMPTY_BATCH = msgspec.msgpack.encode([1.5, []])
NOT_MSGPACK = b"\xc1"


@pytest.fixture
async def publisher() -> AsyncIterator[EventPublisher]:
    sockets = EventPublisher(EventsConfig(), "tcp://*:0", "127.0.0.1")
    sockets.start()
    yield sockets
    await sockets.stop()


async def test_batches_that_cannot_be_read_are_counted_when_they_are_asked_for_again(
    start_fleet: StartFleet, publisher: EventPublisher
) -> None:
    def heard_from_the_publisher(engine: SimulatedEngine) -> EngineSettings:
        source = publisher.source
        replay = (source.replay_endpoint or "").replace("*", "127.0.0.1")
        return EngineSettings(
            url=engine.url,
            name="e",
            events=source.endpoint.replace("*", "127.0.0.1"),
            replay=replay,
            block_size=16,
        )

    for payload in (EMPTY_BATCH, NOT_MSGPACK, EMPTY_BATCH):
        publisher.publish(payload)
    fleet = await start_fleet(1, by_hand=heard_from_the_publisher)
    of = {"engine": "e", "rank": "0"}

    async def has_come() -> bool:
        return await fleet.metric("inferway_event_batches_total", **of) >= 3

    await until(has_come)
    [engine] = (await fleet.get("/admin/engines")).body["engines"]

    assert await fleet.metric("inferway_stream_unreadable_total", **of) == 1
    assert engine["endpoints"][0]["stream"]["unreadable"] == 1
