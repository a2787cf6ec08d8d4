"""Engines with nothing to do are asked more and more seldom, and nobody is worse off for it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fleet.servers import until
from tests.fleet.worlds import INTERVAL, TellingEngine, busy, fleet_of, started

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.scraper import Scraper
from inferway.fleet.watch import EngineWatch

LONG_PAUSE = 0.5  # much longer than all that is waited for below


def scraper_of(fleet: Fleet) -> Scraper:
    assert isinstance(fleet.watch, EngineWatch)
    return fleet.watch.scraper


def watched(
    *engines: TellingEngine, scrape_seconds: float | None = None
) -> AbstractAsyncContextManager[Fleet]:
    fleet = fleet_of(*engines, scrape_seconds=scrape_seconds)
    scraper_of(fleet).given_interval = INTERVAL  # so that rounds are short
    return started(fleet)


async def until_seldom(fleet: Fleet) -> None:
    """Until the first engine has just been asked, and will not be for LONG_PAUSE."""
    turn = scraper_of(fleet).turns["e0"]
    await until(lambda: turn.pause > LONG_PAUSE and turn.task is None)


def scrapes(engine: TellingEngine) -> int:
    return engine.asked.count("/metrics")


async def rounds(busy_engine: TellingEngine, number: int) -> None:
    """As many as in which an engine that is busy is asked so often."""
    before = scrapes(busy_engine)
    await until(lambda: scrapes(busy_engine) >= before + number)


async def test_an_idle_engine_is_asked_less_often_than_a_busy_one() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady):
        await rounds(steady, 40)

    assert scrapes(idle) < scrapes(steady) / 2


async def test_each_engine_is_asked_as_often_as_the_settings_say_if_they_do() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady, scrape_seconds=INTERVAL):
        await rounds(steady, 40)

    assert scrapes(idle) >= scrapes(steady) - 3


async def test_what_an_idle_engine_has_told_holds_while_it_is_not_asked() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(8, 4))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        await until_seldom(fleet)
        before = scrapes(idle)
        await rounds(steady, 10)
        running = fleet.candidates("m").running.tolist()

    assert scrapes(idle) == before
    assert running == [0.0, 8.0]


async def test_a_request_to_an_idle_engine_brings_its_turns_back() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        await until_seldom(fleet)
        before = scrapes(idle)
        fleet.book(fleet.candidates("m").endpoints[0], 100)
        await rounds(steady, 10)

    assert scrapes(idle) >= before + 7


async def test_an_engine_that_has_done_what_it_was_sent_is_left_alone_as_long_as_before() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        await until_seldom(fleet)
        [endpoint, _] = fleet.candidates("m").endpoints
        fleet.book(endpoint, 100)
        idle.metrics = busy(1, 0)
        await until(lambda: bool(fleet.candidates("m").running[0] == 1))
        idle.metrics = busy(0, 0)
        await until(lambda: bool(fleet.candidates("m").running[0] == 0))
        fleet.release(endpoint)
        pause = scraper_of(fleet).turns["e0"].pause

    assert pause > LONG_PAUSE


async def test_rounds_are_left_out_until_a_request_comes() -> None:
    idle = TellingEngine(busy(0, 0))
    async with idle.serving(), watched(idle) as fleet:
        turn = scraper_of(fleet).turns["e0"]
        await until(lambda: turn.pause > 1 and turn.task is None)
        before = scrapes(idle)
        fleet.book(fleet.candidates("m").endpoints[0], 100)
        await until(lambda: scrapes(idle) >= before + 20)  # 20 seconds, if they were left out


async def test_the_work_of_others_that_is_seen_brings_its_turns_back() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        idle.metrics = busy(2, 0)
        await until(lambda: bool(fleet.candidates("m").others[0] == 2))
        before = scrapes(idle)
        await rounds(steady, 10)

    assert scrapes(idle) >= before + 7


async def test_an_engine_that_ends_while_it_is_idle_is_missed_at_once() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with AsyncExitStack() as ends, steady.serving():
        await ends.enter_async_context(idle.serving())
        async with watched(idle, steady) as fleet:
            await until_seldom(fleet)
            await ends.aclose()
            before = scrapes(steady)
            await until(lambda: not fleet.engines[0].healthy)
            passed = scrapes(steady) - before

    assert passed < LONG_PAUSE / INTERVAL / 2


async def test_an_idle_engine_that_falls_silent_is_not_taken_for_idle() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(8, 4))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        await until_seldom(fleet)
        idle.hang = True
        await until(lambda: bool(fleet.candidates("m").running[0] > 7))
        passed_over = scraper_of(fleet).turns["e0"].passed_over

    assert passed_over > 3


def looks_due(fleet: Fleet) -> None:
    fleet.engines[0].looked = -100.0


async def test_an_engine_that_was_idle_is_asked_for_health_and_models_alone() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        await until_seldom(fleet)
        idle.asked.clear()
        looks_due(fleet)
        await until(lambda: "/metrics" in idle.asked)

    assert idle.asked[:3] == ["/health", "/v1/models", "/metrics"]


@pytest.mark.parametrize(("seconds", "asks_for_all"), [(100.0, True), (1.0, False)])
async def test_an_engine_that_has_worked_is_asked_for_all_that_it_is_after_a_while(
    seconds: float, asks_for_all: bool
) -> None:
    steady, other = TellingEngine(busy(1, 0)), TellingEngine(busy(1, 0))
    async with steady.serving(), other.serving(), watched(steady, other) as fleet:
        await rounds(steady, 3)
        fleet.engines[0].facts_age.asked = asyncio.get_running_loop().time() - seconds
        steady.asked.clear()
        looks_due(fleet)
        await until(lambda: "/health" in steady.asked)
        await rounds(steady, 3)

    assert ("/kv_event_sources" in steady.asked) is asks_for_all


async def test_any_engine_may_have_worked_where_all_are_asked_at_one_interval() -> None:
    engine = TellingEngine(busy(0, 0))
    async with engine.serving(), watched(engine, scrape_seconds=INTERVAL) as fleet:
        await rounds(engine, 3)
        fleet.engines[0].facts_age.asked = asyncio.get_running_loop().time() - 100.0
        engine.asked.clear()
        looks_due(fleet)
        await until(lambda: "/kv_event_sources" in engine.asked)


async def test_an_engine_that_has_cut_its_connection_is_asked_for_all_that_it_is() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with AsyncExitStack() as ends, steady.serving():
        await ends.enter_async_context(idle.serving())
        async with watched(idle, steady) as fleet:
            await until_seldom(fleet)
            known = fleet.engines[0].facts_age.asked
            await ends.aclose()
            await until(lambda: fleet.engines[0].facts_age.asked is None)

    assert known is not None


async def test_a_model_that_an_idle_engine_has_loaded_is_served_after_the_next_look() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        await until_seldom(fleet)
        idle.models = '{"data": [{"id": "m"}, {"id": "new", "parent": "m"}]}'
        looks_due(fleet)
        await until(lambda: "new" in fleet.engines[0].model_names)


@pytest.mark.parametrize("models", ["not JSON", ""])
async def test_an_idle_engine_that_serves_no_models_any_more_gets_no_requests(models: str) -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        await until_seldom(fleet)
        idle.models = models
        looks_due(fleet)
        await until(lambda: not fleet.engines[0].healthy)


async def test_an_idle_engine_that_says_it_is_unwell_gets_no_requests() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(1, 0))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        await until_seldom(fleet)
        idle.is_unwell = True
        looks_due(fleet)
        await until(lambda: not fleet.engines[0].healthy)


@pytest.mark.parametrize(("last", "has_told"), [(None, False), (4.0, False), (6.0, True)])
def test_events_since_the_last_scrape_are_seen(last: float | None, has_told: bool) -> None:
    engine = Engine(EngineSettings(url="http://e"), ())
    engine.subscribers = cast(Any, [SimpleNamespace(last_batch_at=at) for at in (None, last)])

    assert engine.has_told_since(5.0) is has_told
