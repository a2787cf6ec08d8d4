"""What is believed of an adapter's prompts is what engines reuse, wherever they have it from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.integration.conftest import Answer, Fleet, StartFleet, simulated, until

from inferway_sim.engine import SimulatedEngine

OLD, NEW = "/adapters/old", "/adapters/new"
TEXT = "You are terse. " * 100


def adapted(path: str) -> Any:
    return simulated(lora_modules={"tuned": path})


async def ask(fleet: Fleet, text: str = TEXT, model: str = "tuned") -> Answer:
    answer = await fleet.chat(text, model=model)
    assert answer.status == 200, answer.body
    return answer


async def matched(fleet: Fleet, text: str = TEXT, model: str = "tuned") -> None:
    """Its blocks are reused, and that is known."""

    async def is_matched() -> bool:
        answer = await ask(fleet, text, model)
        return answer.matched > 10 and answer.expected_tokens == answer.cached_tokens

    await until(is_matched)


async def listed(fleet: Fleet, path: str, place: int = 0) -> None:
    """The gateway has looked again: in up to 10 s, or when somebody has told it to."""
    engine = fleet.gateway.fleet.engines[place]

    async def is_listed() -> bool:
        fleet.gateway.fleet.look_soon(engine)
        return engine.adapter_path("tuned") == path

    await until(is_listed)


def reload(engine: SimulatedEngine, path: str) -> None:
    engine.names.load_adapter("tuned", path)


async def test_an_adapter_from_elsewhere_reuses_nothing_and_that_is_known(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([adapted(OLD)])
    (engine,) = fleet.engines
    await matched(fleet)
    reload(engine, NEW)
    await listed(fleet, NEW)

    first = await ask(fleet)
    await matched(fleet)

    assert (first.matched, first.cached_tokens) == (0, 0)


async def test_an_adapter_that_is_back_has_its_blocks_again(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([adapted(OLD)])
    (engine,) = fleet.engines
    await matched(fleet)
    for path in (NEW, OLD):
        reload(engine, path)
        await listed(fleet, path)

    again = await ask(fleet)

    assert again.matched > 10
    assert again.expected_tokens == again.cached_tokens


async def test_engines_may_have_an_adapter_from_different_places(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([adapted(OLD), adapted(NEW), adapted(OLD)])
    engines = {engine.name: engine for engine in fleet.gateway.fleet.engines}
    texts = [f"{n} {TEXT}" for n in range(6)]
    homes = [(await ask(fleet, text)).engine for text in texts]
    assert set(homes) == engines.keys()

    for text, home in zip(texts, homes, strict=True):
        await matched(fleet, text)
        answer = await ask(fleet, text)
        assert answer.engine == home


async def test_blocks_that_came_before_the_gateway_looked_are_not_taken_for_others(
    start_fleet: StartFleet,
) -> None:
    """An engine's events do not say where its adapter is from; its hashes do."""
    fleet = await start_fleet([adapted(OLD)])
    (engine,) = fleet.engines
    await matched(fleet)
    finder = fleet.gateway.fleet.engines[0].dialects

    async def is_known() -> bool:
        return bool(finder) and all(each.name is not None for each in finder.values())

    await until(is_known)
    other = "Now to another subject. " * 60
    reload(engine, NEW)
    body = {"model": "tuned", "messages": [{"role": "user", "content": other}], "max_tokens": 8}
    async with fleet.http.post(f"{engine.url}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200

    async with asyncio.timeout(5):  # and not 10 s
        while fleet.gateway.fleet.engines[0].adapter_path("tuned") != NEW:
            await asyncio.sleep(0.01)
    await matched(fleet, other)
    reload(engine, OLD)
    await listed(fleet, OLD)
    old = await ask(fleet, other)

    assert (old.matched, old.cached_tokens) == (1, 16)  # what all chats begin with


@pytest.mark.parametrize("salt", [None, "s"])
async def test_adapters_with_the_same_path_and_another_name_share_nothing(
    start_fleet: StartFleet, salt: str | None
) -> None:
    fleet = await start_fleet([simulated(lora_modules={"tuned": OLD, "twin": OLD})])
    more = {} if salt is None else {"cache_salt": salt}
    for _ in range(2):
        one = await fleet.chat(TEXT, model="tuned", **more)
    other = await fleet.chat(TEXT, model="twin", **more)

    assert one.cached_tokens > 100
    assert (other.matched, other.cached_tokens) == (0, 0)
