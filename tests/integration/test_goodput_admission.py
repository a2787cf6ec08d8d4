"""The whole gateway with goodput-admission: requests wait for an engine that is free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.integration.conftest import Answer, Fleet, StartFleet, answering, until
from tests.integration.test_flow_control import Engine, named

from inferway.config import FlowSettings

SCHEDULING: dict[str, Any] = {
    "apiVersion": "llm-d.ai/v1",
    "kind": "EndpointPickerConfig",
    "plugins": [{"type": "expected-ttft"}, {"type": "goodput-admission"}],
}
LONG = "You read every file twice before you change a word of it. " * 700  # 10,000 tokens


async def ask(fleet: Fleet, **headers: str) -> Answer:
    body = {"model": "m", "prompt": LONG, "max_tokens": 1, "stream": True}
    return await fleet.post("/v1/completions", body, **headers)


async def waiting(fleet: Fleet, number: int) -> None:
    async def wait() -> bool:
        return await fleet.metric("inferway_goodput_waiting") == number

    await until(wait)


async def came(engines: Sequence[Engine], number: int) -> None:
    async def have_come() -> bool:
        return sum(engine.seen for engine in engines) == number

    await until(have_come)


@asynccontextmanager
async def two_busy(
    start_fleet: StartFleet, **settings: Any
) -> AsyncIterator[tuple[Fleet, list[Engine], list[asyncio.Task[Answer]]]]:
    """Two engines that have a long prompt each, and one request that waits."""
    engines = [Engine(), Engine()]
    async with answering(engines[0].answer) as a, answering(engines[1].answer) as b:
        fleet = await start_fleet(
            0, [named(a, "a"), named(b, "b")], scheduling=SCHEDULING, **settings
        )
        asked = [asyncio.create_task(ask(fleet)) for _ in range(2)]
        await came(engines, 2)
        asked.append(asyncio.create_task(ask(fleet)))
        await waiting(fleet, 1)
        yield fleet, engines, asked


async def test_a_request_goes_to_the_engine_that_is_free_first(start_fleet: StartFleet) -> None:
    async with two_busy(start_fleet) as (fleet, engines, asked):
        assert [engine.at_once for engine in engines] == [1, 1]
        engines[1].go.set()
        answer = await asked[2]
        engines[0].go.set()
        others = [(await each).status for each in asked[:2]]
        went = await fleet.metric("inferway_goodput_waited_total", outcome="in-time")

    assert (answer.status, answer.engine) == (200, "b")
    assert (others, went) == ([200, 200], 1)


async def test_a_client_that_goes_away_waits_no_longer(start_fleet: StartFleet) -> None:
    async with two_busy(start_fleet) as (fleet, engines, asked):
        asked[2].cancel()
        await waiting(fleet, 0)
        for engine in engines:
            engine.go.set()
        assert [(await each).status for each in asked[:2]] == [200, 200]
        assert sum(engine.seen for engine in engines) == 2
        assert (await ask(fleet)).status == 200


async def test_one_that_has_waited_for_as_long_as_it_may_gets_429(start_fleet: StartFleet) -> None:
    async with two_busy(start_fleet, flow=FlowSettings(queue=1)) as (fleet, engines, asked):
        full = await ask(fleet)
        asked[2].cancel()
        await waiting(fleet, 0)
        late = await ask(fleet, **{"x-slo-ttft-ms": "200"})
        for engine in engines:
            engine.go.set()
        assert [(await each).status for each in asked[:2]] == [200, 200]

    assert (full.status, full.body["error"]["code"]) == (429, "queue_full")
    assert (late.status, late.body["error"]["code"]) == (429, "wait_too_long")
    assert full.headers["Retry-After"] == "5"
