"""A gateway that chooses by expected milliseconds, in front of engines of different speed."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.integration.conftest import Fleet, StartFleet, simulated

from inferway.scheduling.expected_ttft.plugin import TRY_EVERY
from inferway_sim.config import LatencyModel

BY_MILLISECONDS = {"plugins": [{"type": "expected-ttft"}]}
FAST = LatencyModel(prefill_overhead=0.005, prefill_time_per_token=0.0002)
SLOW = LatencyModel(prefill_overhead=0.05, prefill_time_per_token=0.002)


async def stream(fleet: Fleet, number: int) -> tuple[str, float]:
    """(engine, expected ms) of a chat that nobody has seen before."""
    words = " ".join(f"word {number} {n}" for n in range(20))
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 2,
        "stream": True,
    }
    async with fleet.http.post(f"{fleet.url}/v1/chat/completions", json=body) as answer:
        await answer.read()
        headers = answer.headers
    assert "own=" in headers["x-inferway-expected-ttft-parts"]
    return headers["x-inferway-engine"], float(headers["x-inferway-expected-ttft-ms"])


async def test_requests_avoid_the_slow_engine_once_it_is_known(start_fleet: StartFleet) -> None:
    configs = [simulated(latency=latency) for latency in (FAST, SLOW, FAST)]
    fleet = await start_fleet(configs, scheduling=BY_MILLISECONDS)
    slow = fleet.engines[1].url.removeprefix("http://")

    for number in range(6):
        await stream(fleet, number)
    chosen = Counter([(await stream(fleet, number))[0] for number in range(6, 26)])

    assert chosen[slow] <= 20 // TRY_EVERY  # until all are well known, one of them is tried
    assert len(chosen) >= 2


async def test_expectations_come_true_and_are_published(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(latency=SLOW)], scheduling=BY_MILLISECONDS)
    engine = fleet.engines[0].url.removeprefix("http://")

    told = [(await stream(fleet, number))[1] for number in range(12)]

    count = await fleet.metric("inferway_ttft_prediction_error_count", engine=engine)
    first = await fleet.metric("inferway_expected_cost_seconds", engine=engine, of="ttft_own_token")
    tokens = 200  # about as many has a chat: 50 ms + 2 ms a token
    assert count == 12
    assert first > 0.0005
    assert 0.5 < told[-1] / (50 + 2 * tokens) < 2


async def test_a_burst_is_spread_before_anything_has_answered(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(4, scheduling=BY_MILLISECONDS)

    engines = await asyncio.gather(*[stream(fleet, number) for number in range(16)])

    assert len({engine for engine, _ in engines}) == 4
