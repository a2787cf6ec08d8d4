"""Whole engines: several in one process, and whether their events tell the truth."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from tests.sim.doubles import ByteModel, all_events, believed

from inferway.errors import ConfigError
from inferway_sim.config import EventsConfig, SimulatorConfig
from inferway_sim.engine import SimulatedEngine


def engine(**settings: Any) -> SimulatedEngine:
    return SimulatedEngine(SimulatorConfig("m", **settings), ByteModel())


async def complete(engine: SimulatedEngine, prompt: str, max_tokens: int = 8) -> None:
    body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    async with (
        aiohttp.ClientSession(engine.url) as client,
        client.post("/v1/completions", json=body) as response,
    ):
        assert response.status == 200
        await response.read()


@pytest.mark.parametrize("format", ["map", "array"])
def test_published_events_add_up_to_the_cache_under_pressure(format: str) -> None:
    async def scenario() -> tuple[set[int], set[int], int]:
        rng = random.Random(3)
        small = engine(
            block_size=4,
            kv_cache_size=40,
            max_model_len=120,
            max_num_seqs=4,
            events=EventsConfig(format=format),  # type: ignore[arg-type]
        )
        async with small:
            prompts = ["".join(rng.choices("ab", k=3)) * rng.randint(1, 20) for _ in range(60)]
            await asyncio.gather(*[complete(small, prompt, 20) for prompt in prompts])
            events = await all_events(small)
            removed = sum("BlockRemoved" in str(event) for event in events)
            return believed(events), small.cached_blocks(), removed

    told, held, num_removed = asyncio.run(scenario())

    assert told == held
    assert num_removed > 50


@pytest.mark.parametrize("steps", range(6))
async def test_a_connection_made_while_it_stops_is_closed(steps: int) -> None:
    """However many steps of the event loop before."""
    one = engine()
    await one.start()
    with socket.create_connection(("127.0.0.1", int(one.url.rpartition(":")[2]))) as client:
        client.setblocking(False)
        for _ in range(steps):
            await asyncio.sleep(0)
        await one.stop()

        with suppress(ConnectionResetError):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


def test_three_engines_live_in_one_process_and_share_nothing() -> None:
    async def scenario() -> list[int]:
        async with engine() as first, engine() as second, engine() as third:
            await complete(second, "x" * 40)
            return [len(one.cached_blocks()) for one in (first, second, third)]

    assert asyncio.run(scenario()) == [0, 2, 0]


def test_equal_prompts_have_equal_hashes_on_engines_with_the_same_hash_seed() -> None:
    async def scenario() -> list[set[int]]:
        engines = [engine(), engine(), engine(hash_seed="other")]
        for one in engines:
            async with one:
                await complete(one, "x" * 40)
        return [one.cached_blocks() for one in engines]

    first, second, other = asyncio.run(scenario())

    assert first == second
    assert first.isdisjoint(other)


def test_a_stopped_engine_gives_its_ports_back() -> None:
    async def scenario() -> None:
        async with engine() as first:
            port, events = first.url.rpartition(":")[2], first.events_endpoint
        again = engine(port=int(port), events=EventsConfig(str(events).replace("127.0.0.1", "*")))
        async with again:
            assert (again.url, again.events_endpoint) == (first.url, events)

    asyncio.run(scenario())


def test_an_engine_that_cannot_start_leaves_nothing_open() -> None:
    async def scenario() -> None:
        async with engine() as first:
            port = int(first.url.rpartition(":")[2])
            with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 cannot be had"):
                await engine(port=port).start()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block-size: expected at least 1, got 0"),
        ({"kv_cache_size": 10}, "raise --kv-cache-size or lower --max-model-len"),
        ({"max_num_seqs": 0}, "max-num-seqs: expected at least 1, got 0"),
    ],
)
def test_settings_that_cannot_hold_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine(**settings)
