"""A simulated engine in development mode is paused and put to sleep as vLLM is."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from tests.sim.test_server import CHAT, chat, post, posting, serving

from inferway_sim.engine import SimulatedEngine


def test_without_it_nobody_can_pause_the_engine() -> None:
    async def statuses(_: SimulatedEngine, client: aiohttp.ClientSession) -> list[int]:
        found = []
        for path in ("/sleep", "/wake_up", "/pause", "/resume", "/update_weights"):
            async with client.post(path) as answer:
                found.append(answer.status)
        return found

    assert serving(statuses) == [404] * 5


@pytest.mark.parametrize(
    ("halt", "go_on", "awake"),
    [
        ("/pause", "/resume", 1),
        ("/pause?mode=wait", "/resume", 1),
        ("/pause?mode=keep", "/resume", 1),
        ("/sleep?level=0", "/wake_up", 0),
        ("/sleep?level=2", "/wake_up", 0),
    ],
)
def test_a_request_waits_inside_until_the_engine_goes_on(halt: str, go_on: str, awake: int) -> None:
    async def scenario(engine: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        await post(client, halt, {})
        async with client.get("/is_sleeping") as told, client.get("/metrics") as metrics:
            assert await told.json() == {"is_sleeping": True}
            gauge = 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"}'
            assert f"{gauge} {awake}.0" in await metrics.text()
        asked = asyncio.create_task(post(client, CHAT, chat(max_tokens=2)))
        while not engine.num_requests:
            await asyncio.sleep(0)
        assert not asked.done()
        await post(client, go_on, {})
        async with client.get("/is_paused") as told:
            assert await told.json() == {"is_paused": False}
        return (await asked)[0]

    assert serving(scenario, dev_mode=True) == 200


@pytest.mark.parametrize(
    ("halt", "holds"),
    [
        ("/sleep", False),
        ("/sleep?level=0", True),
        ("/pause", False),
        ("/pause?clear_cache=false", True),
    ],
)
def test_its_cache_is_empty_afterwards_where_vllms_is(halt: str, holds: bool) -> None:
    async def scenario(engine: SimulatedEngine, client: aiohttp.ClientSession) -> bool:
        await post(client, CHAT, chat(max_tokens=2))
        await post(client, halt, {})
        return bool(engine.cached_blocks())

    assert serving(scenario, dev_mode=True) == holds


def test_an_unknown_mode_is_refused() -> None:
    [(status, answer)] = posting(("/pause?mode=gently", {}), dev_mode=True)

    assert status == 400
    assert answer["error"]["message"] == "mode: 'gently'; expected one of: abort, wait, keep"
