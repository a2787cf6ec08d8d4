"""Engines that sleep, are paused or scale: their operator tells the engine, not the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, simulated, until

from inferway.config import FlowSettings, ProbeSettings
from inferway_sim.engine import SimulatedEngine

NO_PROBE = ProbeSettings(join=False)
BOTH = [simulated(dev_mode=True)] * 2


def named(fleet: Fleet, engine: SimulatedEngine) -> str:
    return next(e.name for e in fleet.gateway.fleet.engines if e.url == engine.url)


async def tell(fleet: Fleet, path: str, engine: int = 0, json: Any = None) -> None:
    """What an operator tells the engine itself."""
    async with fleet.http.post(fleet.engines[engine].url + path, json=json) as answer:
        assert answer.status == 200


async def state(fleet: Fleet, engine: int = 0) -> str:
    told = (await fleet.get("/admin/engines")).body["engines"]
    name = named(fleet, fleet.engines[engine])
    return next(str(each["state"]) for each in told if each["name"] == name)


async def until_state(fleet: Fleet, wanted: str, engine: int = 0) -> None:
    async def is_so() -> bool:
        return await state(fleet, engine) == wanted

    await until(is_so)


async def until_held(fleet: Fleet, number: int = 1) -> None:
    async def are_held() -> bool:
        return fleet.gateway.auth.control.num_waiting() == number

    await until(are_held)


@asynccontextmanager
async def asking(fleet: Fleet, **headers: str) -> AsyncIterator[asyncio.Task[Answer]]:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
    task = asyncio.create_task(fleet.post("/v1/chat/completions", body, **headers))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


HALTS = pytest.mark.parametrize(
    ("halt", "name", "go_on"),
    [
        ("/sleep?level=1", "asleep", "/wake_up"),
        ("/sleep?level=0", "asleep", "/resume"),
        ("/pause", "paused", "/resume"),
        ("/pause?mode=keep", "paused", "/resume"),
    ],
)


@HALTS
async def test_the_other_engine_answers_all_while_one_is_suspended(
    start_fleet: StartFleet, halt: str, name: str, go_on: str
) -> None:
    fleet = await start_fleet(BOTH)
    await tell(fleet, halt)
    await until_state(fleet, name)

    answers = [await fleet.chat(f"{number}") for number in range(6)]

    assert {answer.engine for answer in answers} == {named(fleet, fleet.engines[1])}
    assert await fleet.metric("inferway_engine_suspended", engine=answers[0].engine) == 0
    own = named(fleet, fleet.engines[0])
    assert await fleet.metric("inferway_engine_suspended", engine=own) == 1
    assert await fleet.metric("inferway_engines", state=name) == 1
    await tell(fleet, go_on)
    await until_state(fleet, "ready")


@HALTS
async def test_a_request_is_held_until_its_only_engine_goes_on(
    start_fleet: StartFleet, halt: str, name: str, go_on: str
) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await tell(fleet, halt)
    await until_state(fleet, name)
    async with asking(fleet) as held:
        await until_held(fleet)
        assert fleet.engines[0].num_requests == 0

        await tell(fleet, go_on)

        assert (await held).status == 200
    assert await fleet.metric("inferway_engine_failures_total") == 0
    assert fleet.gateway.auth.control.limiter.in_flight == 0


async def test_a_held_request_that_may_wait_no_longer_gets_503_and_why(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await tell(fleet, "/sleep")
    await until_state(fleet, "asleep")

    async with asking(fleet, **{"x-request-timeout-ms": "200"}) as held:
        answer = await held

    assert answer.status == 503
    assert answer.headers["Retry-After"] == "5"
    assert answer.body["error"]["code"] == "engines_suspended"
    own = named(fleet, fleet.engines[0])
    assert f"{own} sleeps; the request has waited" in answer.body["error"]["message"]


async def test_a_request_is_held_although_nothing_is_limited(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE, flow=FlowSettings(in_flight=None))
    await tell(fleet, "/pause")
    await until_state(fleet, "paused")
    async with asking(fleet) as held:
        await until_held(fleet)
        await tell(fleet, "/resume")
        assert (await held).status == 200


async def test_held_requests_go_on_within_the_limits(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE, flow=FlowSettings(engine_in_flight=1))
    await tell(fleet, "/pause")
    await until_state(fleet, "paused")
    async with asking(fleet) as a, asking(fleet) as b, asking(fleet) as c:
        await until_held(fleet, 3)
        await tell(fleet, "/resume")
        assert [answer.status for answer in await asyncio.gather(a, b, c)] == [200] * 3
    assert fleet.gateway.auth.control.limiter.engines == {}


async def test_a_client_that_goes_is_held_no_longer(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await tell(fleet, "/sleep")
    await until_state(fleet, "asleep")
    async with asking(fleet):
        await until_held(fleet)

    await until_held(fleet, 0)


async def test_a_request_that_was_sent_just_before_a_pause_is_answered_after_it(
    start_fleet: StartFleet,
) -> None:
    """It is inside the engine, which says nothing: that is no outage."""
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await tell(fleet, "/simulate", json={"stalled": True})
    async with asking(fleet) as sent:

        async def has_come() -> bool:
            return fleet.engines[0].num_requests == 1

        await until(has_come)
        await tell(fleet, "/pause?mode=keep")
        await until_state(fleet, "paused")
        await tell(fleet, "/resume")
        assert (await sent).status == 200
    assert fleet.gateway.fleet.engines[0].outage is None


async def cached(fleet: Fleet) -> int:
    return fleet.gateway.index.num_blocks(0)


async def until_cached(fleet: Fleet, wanted: bool) -> None:
    async def is_so() -> bool:
        return bool(await cached(fleet)) == wanted

    await until(is_so)


@pytest.mark.parametrize("level", [1, 2])
async def test_what_was_believed_of_a_cache_is_dropped_once_its_engine_sleeps(
    start_fleet: StartFleet, level: int
) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await fleet.chat(LONG)
    await until_cached(fleet, True)

    await tell(fleet, f"/sleep?level={level}")  # its event comes with its next step alone

    await until_cached(fleet, False)
    await tell(fleet, "/wake_up")
    await until_state(fleet, "ready")
    assert (await fleet.chat(LONG)).cached_tokens == 0
    await until_cached(fleet, True)
    assert (await fleet.chat(LONG)).matched > 0


@pytest.mark.parametrize(
    ("path", "name"), [("/pause?clear_cache=false", "paused"), ("/sleep?level=0", "asleep")]
)
async def test_what_an_engine_keeps_is_still_believed(
    start_fleet: StartFleet, path: str, name: str
) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await fleet.chat(LONG)
    await until_cached(fleet, True)
    await tell(fleet, path)
    await until_state(fleet, name)
    await tell(fleet, "/wake_up")
    await until_state(fleet, "ready")

    answer = await fleet.chat(LONG)

    assert answer.matched == answer.cached_tokens // 16 > 0


async def test_what_was_believed_is_dropped_when_the_weights_change(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await fleet.chat(LONG)
    await until_cached(fleet, True)

    await tell(fleet, "/pause?clear_cache=false")
    await tell(fleet, "/update_weights")
    await until_cached(fleet, False)
    await tell(fleet, "/resume")


async def test_an_engine_that_scales_is_waited_for(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await tell(fleet, "/simulate", json={"scaling": True})
    async with asking(fleet) as held:  # it is refused, and held then
        await until_state(fleet, "scaling")
        await tell(fleet, "/simulate", json={})
        assert (await held).status == 200

    (engine,) = fleet.gateway.fleet.engines
    assert engine.outage is None
    assert await fleet.metric("inferway_engine_failures_total", engine=engine.name) == 0
    await until_state(fleet, "ready")


async def test_a_request_that_an_engine_refuses_as_it_scales_goes_to_another(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(BOTH)
    first = (await fleet.chat(LONG)).engine
    at = next(i for i, engine in enumerate(fleet.engines) if named(fleet, engine) == first)
    await tell(fleet, "/simulate", at, {"scaling": True})

    answers = [await fleet.chat(LONG) for _ in range(4)]

    assert {(answer.status, answer.engine == first) for answer in answers} == {(200, False)}
    assert await fleet.metric("inferway_engine_failures_total", engine=first) == 0
    await until_state(fleet, "scaling", at)


async def test_the_probes_of_an_engine_go_on_with_it(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(BOTH[:1])
    await tell(fleet, "/pause")
    await until_state(fleet, "paused")
    await tell(fleet, "/resume")

    async def agrees() -> bool:
        (engine,) = (await fleet.get("/ready")).body["engines"]
        return bool(engine["probes"]["smollm2"]["state"] == "agrees")

    await until(agrees)


async def test_ready_names_the_suspension(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(BOTH[:1], probe=NO_PROBE)
    await tell(fleet, "/pause")
    await until_state(fleet, "paused")

    (engine,) = (await fleet.get("/ready")).body["engines"]

    assert (engine["healthy"], engine["suspension"]) == (True, "paused")
