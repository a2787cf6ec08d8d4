"""The whole gateway with llm-d's flow control: who finds engines full waits, and goes on in the
order that the configuration says."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from tests.integration.conftest import Fleet, StartFleet, answering, until
from tests.integration.test_flow_control import COMPLETION, Engine, ask, named
from tests.scheduling.test_llm_d_samples import config

SCHEDULING = {
    "apiVersion": "llm-d.ai/v1",
    "kind": "EndpointPickerConfig",
    "featureGates": ["flowControl"],
    "plugins": [
        {"type": "queue-scorer"},
        {"type": "concurrency-detector", "parameters": {"maxConcurrency": 1}},
        {"type": "agent-identity"},
    ],
    "flowControl": {
        "saturationDetector": {"pluginRef": "concurrency-detector"},
        "defaultPriorityBand": {"fairnessPolicyRef": "round-robin-fairness-policy"},
        "defaultNegativePriorityBand": {"maxRequests": 1},
    },
}


async def waiting(fleet: Fleet, number: float, priority: str = "0") -> None:
    async def wait() -> bool:
        return await fleet.metric("inferway_flow_waiting", priority=priority) == number

    await until(wait)


async def test_no_more_than_saturate_the_engines_are_there_and_all_are_answered(
    start_fleet: StartFleet,
) -> None:
    engines = Engine()  # two, that count together
    async with answering(engines.answer) as a, answering(engines.answer) as b:
        fleet = await start_fleet(0, [named(a, "a"), named(b, "b")], scheduling=SCHEDULING)
        answers = [asyncio.ensure_future(ask(fleet)) for _ in range(10)]
        await waiting(fleet, 8)
        await until(lambda: _is(engines.at_once == 2))
        saturation = await fleet.metric("inferway_flow_saturation", model="m")
        engines.go.set()
        statuses = [(await answer).status for answer in answers]

    assert statuses == [200] * 10
    assert (engines.most, saturation) == (2, 1.0)


async def test_agents_take_turns_and_sheddable_requests_have_little_room(
    start_fleet: StartFleet,
) -> None:
    engine = Engine()
    async with answering(engine.answer) as url:
        fleet = await start_fleet(
            *(0, [named(url, "a")]), scheduling=SCHEDULING, objectives={"batch": -1}
        )
        went: list[str] = []

        async def send(session: str, **headers: str) -> int:
            answer = await ask(fleet, **{"x-claude-code-session-id": session, **headers})
            went.append(session)
            return answer.status

        asks = [asyncio.ensure_future(send("first"))]
        await until(lambda: _is(engine.at_once == 1))
        for number, session in enumerate(["a", "a", "a", "b"]):
            asks.append(asyncio.ensure_future(send(session)))
            await waiting(fleet, number + 1)
        batch = {"x-llm-d-inference-objective": "batch"}
        asks.append(asyncio.ensure_future(send("batch", **batch)))
        await waiting(fleet, 1, priority="-1")
        refused = await send("batch", **batch)
        went.remove("batch")
        engine.go.set()
        statuses = [await each for each in asks]

    assert refused == 429
    assert statuses == [200] * 6
    assert went == ["first", "a", "b", "a", "a", "batch"]


async def _is(held: bool) -> bool:
    return held


async def test_a_client_that_leaves_the_queue_holds_up_nobody(start_fleet: StartFleet) -> None:
    engine = Engine()
    async with answering(engine.answer) as url:
        fleet = await start_fleet(0, [named(url, "a")], scheduling=SCHEDULING)
        first = asyncio.ensure_future(ask(fleet))
        await until(lambda: _is(engine.at_once == 1))
        gone = asyncio.ensure_future(ask(fleet))
        await waiting(fleet, 1)
        second = asyncio.ensure_future(ask(fleet))
        await waiting(fleet, 2)
        gone.cancel()
        await waiting(fleet, 1)
        engine.go.set()

        assert [(await first).status, (await second).status] == [200, 200]
        await waiting(fleet, 0)
        assert await fleet.metric("inferway_flow_in_flight") == 0


async def test_load_that_only_metrics_show_holds_requests_back_until_it_is_gone(
    start_fleet: StartFleet,
) -> None:
    engine, queued = Engine(), [9.0]
    engine.go.set()

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        if request.path.startswith("/metrics"):
            return aiohttp.web.Response(
                text=f"vllm:num_requests_waiting {queued[0]}\nvllm:num_requests_running 0\n"
            )
        return await engine.answer(request)

    async with answering(answer) as url:
        scheduling = dict(config("router-soft-reflective-ceiling-epp-config"))
        fleet = await start_fleet(0, [named(url, "a")], scheduling=scheduling)
        await until(lambda: _has_load(fleet))
        asking = asyncio.ensure_future(ask(fleet))
        await waiting(fleet, 1)
        queued[0] = 0.0

        assert (await asking).status == 200


async def _has_load(fleet: Fleet) -> bool:
    return await fleet.metric("inferway_engine_waiting", engine="a") == 9


@pytest.mark.parametrize("name", ["guide-flow-control", "guide-agentic-serving"])
async def test_the_guides_flow_control_answers(name: str, start_fleet: StartFleet) -> None:
    engine = Engine()
    engine.go.set()
    async with answering(engine.answer) as url:
        fleet = await start_fleet(0, [named(url, "a")], scheduling=dict(config(name)))
        answers = [await fleet.post("/v1/completions", COMPLETION) for _ in range(3)]

    assert [answer.status for answer in answers] == [200, 200, 200]
