"""Engines that come and go while requests are on their way."""

from __future__ import annotations

import asyncio

from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.config import EngineSettings
from inferway_sim.config import LatencyModel
from inferway_sim.engine import SimulatedEngine


def settings_of(*engines: SimulatedEngine) -> list[EngineSettings]:
    return [EngineSettings(url=engine.url) for engine in engines]


async def engines_of(fleet: Fleet, requests: int = 12) -> set[str]:
    answers = [await fleet.chat(f"topic {i}: {LONG}") for i in range(requests)]
    assert {answer.status for answer in answers} == {200}
    return {f"http://{answer.engine}" for answer in answers}


async def test_an_engine_that_comes_gets_requests(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    another = await fleet.start_engine(simulated())

    await fleet.gateway.fleet.set_engines(settings_of(*fleet.engines, another))

    assert await engines_of(fleet) == {fleet.engines[0].url, another.url}


async def test_an_engine_that_goes_gets_none_and_its_blocks_are_forgotten(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(2)
    await engines_of(fleet)
    stays, goes = fleet.engines
    [holder] = [
        e.holder
        for engine in fleet.gateway.fleet.engines
        for e in engine.endpoints
        if engine.url == goes.url
    ]

    await fleet.gateway.fleet.set_engines(settings_of(stays))

    assert await engines_of(fleet) == {stays.url}
    assert fleet.gateway.index.num_blocks(holder) == 0
    listed = await fleet.get("/admin/engines")
    assert [engine["url"] for engine in listed.body["engines"]] == [stays.url]


async def test_a_request_under_way_ends_as_it_would_have(start_fleet: StartFleet) -> None:
    slow = simulated(latency=LatencyModel(inter_token_latency=0.005))
    fleet = await start_fleet([slow])
    answering = asyncio.ensure_future(fleet.chat(LONG, max_tokens=60))

    async def runs() -> bool:
        return sum(map(fleet.gateway.fleet.in_flight, fleet.gateway.fleet.engines)) == 1

    await until(runs)
    await fleet.gateway.fleet.set_engines([])

    answer = await answering
    assert answer.status == 200
    assert answer.body["choices"][0]["finish_reason"] in ("stop", "length")
    refused = await fleet.chat(LONG)
    assert refused.status == 503
    assert "none is left in the list of engines" in refused.body["error"]["message"]


async def test_one_that_is_named_again_is_asked_anew_and_remembered_no_more(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)
    first = int((await fleet.chat(LONG)).headers["x-inferway-prompt-blocks"])

    async def known() -> bool:
        return (await fleet.scores(LONG))[next(iter(await fleet.scores(LONG)))] >= first - 1

    await until(known)
    await fleet.gateway.fleet.set_engines([])
    await fleet.gateway.fleet.set_engines(settings_of(*fleet.engines))

    # its events are replayed from the start, so what it holds is known again
    await until(known)
    assert (await fleet.chat(LONG)).status == 200


async def test_changes_that_come_at_once_end_in_the_last_one(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    one, two = fleet.engines
    members = fleet.gateway.fleet

    await asyncio.gather(
        members.set_engines(settings_of(one)),
        members.set_engines(settings_of(one, two)),
        members.set_engines([]),
        members.set_engines(settings_of(two)),
    )

    assert [engine.url for engine in members.engines] == [two.url]
    assert await engines_of(fleet) == {two.url}
