"""An engine stops computing while its API answers: other engines answer what waits there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.integration.conftest import Fleet, StartFleet, until
from tests.integration.test_continued import (
    BODIES,
    CHAT,
    MESSAGE,
    TOKENS,
    busy_engine,
    name_of,
    reciting,
    text_of,
    whole,
)

from inferway_sim.engine import SimulatedEngine

pytestmark = pytest.mark.slow  # an engine is late after seconds


async def trouble(fleet: Fleet, engine: SimulatedEngine, **how: object) -> None:
    async with fleet.http.post(f"{engine.url}/simulate", json=how) as answer:
        assert answer.status == 200


async def ready(fleet: Fleet, engine: SimulatedEngine) -> dict[str, Any]:
    """What /ready tells of the engine."""
    async with fleet.http.get(f"{fleet.url}/ready") as answer:
        told = await answer.json()
    found: dict[str, Any] = next(e for e in told["engines"] if e["engine"] == name_of(engine))
    return found


async def ask(fleet: Fleet, path: str) -> dict[str, Any]:
    body = {"model": "smollm2", **BODIES.get(path, MESSAGE), "max_tokens": TOKENS}
    async with fleet.http.post(fleet.url + path, json=body) as answer:
        assert answer.status == 200
        told: dict[str, Any] = await answer.json()
        return told


async def test_a_stream_goes_on_and_the_engine_comes_back(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet)
    undisturbed = text_of(await whole(fleet, CHAT))
    streamed = asyncio.create_task(whole(fleet, CHAT))
    stalled = await busy_engine(fleet)
    await trouble(fleet, stalled, stalled=True)

    lines = await streamed
    told = await ready(fleet, stalled)
    await trouble(fleet, stalled)

    async def is_back() -> bool:
        return bool((await ready(fleet, stalled))["healthy"])

    await until(is_back)
    assert text_of(lines) == undisturbed != ""
    assert lines[-1] == b"data: [DONE]\n"
    assert not told["healthy"]
    assert "answers, but computes nothing since" in told["problems"][0]


async def test_an_answer_in_one_piece_comes_from_another_engine(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet)
    undisturbed = await ask(fleet, CHAT)
    asked = asyncio.create_task(ask(fleet, CHAT))
    stalled = await busy_engine(fleet)
    await trouble(fleet, stalled, stalled=True)

    answer = await asked

    assert answer["choices"][0]["message"] == undisturbed["choices"][0]["message"]


async def test_a_slow_engine_is_no_stalled_one(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet, 2)
    streamed = asyncio.create_task(whole(fleet, CHAT, max_tokens=100))
    slow = await busy_engine(fleet)
    await trouble(fleet, slow, slower=30)

    lines = await streamed

    assert not any(line.startswith(b": x-inferway-continued") for line in lines)
    assert (await ready(fleet, slow))["healthy"]
