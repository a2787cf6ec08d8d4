"""No engine is taken for lost that computes, however long that takes; one that does not is, soon.

Drawn histories in virtual time, of simulated engines: at full load, with prompts of 100,000 tokens
whose prefill comes in one piece or in chunks, engines that compile before their first token, APIs
that answer late, and a gateway that stands still itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.fleet.virtual_fleet import Make, VirtualEngine, VirtualFleet, virtual_fleet
from tests.fleet.virtual_time import VirtualLoop, run_virtually

from inferway.fleet.liveness import FIRST_SECONDS
from inferway.fleet.outage import OutageKind

PROMPTS = (10, 1_000, 10_000, 100_000)
NOTICED_SECONDS = 5.0

makes = st.builds(
    Make,
    prefill_per_token=st.sampled_from((0.00002, 0.0001, 0.0003)),
    inter_token=st.sampled_from((0.05, 0.1, 0.3)),
    under_load=st.sampled_from((1.0, 1.5, 2.0)),
    max_num_seqs=st.sampled_from((4, 16)),
    in_turn=st.booleans(),
    in_chunks=st.booleans(),
    compiles=st.sampled_from((0.0, 3.0, 0.9 * FIRST_SECONDS)),
    answers_in=st.sampled_from(((0.0, 0.0), (0.0, 0.3), (0.0, 1.4))),
)


@dataclass(frozen=True)
class History:
    """What an engine is asked, and how long the gateway stands still, and when."""

    seed: int
    makes: tuple[Make, ...]
    users: int  # of each engine, who ask again and again
    long_prompts: float  # share of requests
    error: float  # of what the gateway expects of a prompt
    pauses: tuple[tuple[float, float], ...]  # after so many seconds, so long
    seconds: float


histories = st.builds(
    History,
    seed=st.integers(0, 2**32),
    makes=st.lists(makes, min_size=2, max_size=3).map(tuple),
    users=st.sampled_from((1, 4, 12)),
    long_prompts=st.sampled_from((0.0, 0.1, 0.5)),
    error=st.sampled_from((0.8, 1.0, 1.5)),
    pauses=st.lists(
        st.tuples(st.floats(1.0, 30.0), st.sampled_from((0.5, 1.5, 8.0, 90.0))), max_size=3
    ).map(tuple),
    seconds=st.just(90.0),
)


async def asks(engine: VirtualEngine, history: History, rng: Random) -> None:
    """One user: request after request."""
    while True:
        prompts = PROMPTS[2:] if rng.random() < history.long_prompts else PROMPTS[:2]
        await engine.request(rng.choice(prompts), rng.choice((1, 5, 40)))
        await asyncio.sleep(rng.choice((0.0, 0.0, 1.0, 15.0)))


async def stand_still(loop: VirtualLoop, history: History) -> None:
    for after, seconds in history.pauses:
        await asyncio.sleep(after)
        loop.stands_still(seconds)


async def live_through(loop: VirtualLoop, history: History) -> VirtualFleet:
    rng = Random(history.seed)
    async with virtual_fleet(loop, history.makes, rng) as one:
        one.error = history.error
        tasks = [asyncio.create_task(stand_still(loop, history))]
        for engine in one.engines:
            tasks += [
                asyncio.create_task(asks(engine, history, Random(rng.random())))
                for _ in range(history.users)
            ]
        await asyncio.sleep(history.seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return one


# A history of 90 seconds takes one: what fails is shown as it was drawn.
AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=12, phases=AS_DRAWN)
@given(history=histories)
def test_an_engine_that_computes_is_never_taken_for_lost(history: History) -> None:
    one = run_virtually(lambda loop: live_through(loop, history))

    assert one.alarms == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("in_chunks", [False, True])
def test_there_is_no_alarm_in_an_hour_at_full_load(in_chunks: bool) -> None:
    make = Make(under_load=2.0, in_chunks=in_chunks, compiles=5.0, answers_in=(0.0, 0.5))
    hour = History(7, (make,) * 2, 20, 0.05, 1.0, ((1000.0, 5.0), (1000.0, 60.0)), 3600.0)

    one = run_virtually(lambda loop: live_through(loop, hour))

    assert one.alarms == []
    assert all((each.load().generated or 0) > 20_000 for each in one.engines)


@settings(max_examples=8, phases=AS_DRAWN)
@given(history=histories, is_frozen=st.booleans())
def test_an_engine_that_stands_still_is_noticed_soon(history: History, is_frozen: bool) -> None:
    """Where its fellows answer, and what it did before took it no longer than others."""
    calm = replace(
        history,
        makes=tuple(
            replace(
                make,
                compiles=0.0,
                answers_in=(0.0, 0.3),
                prefill_per_token=0.0001,
                inter_token=0.1,
            )
            for make in history.makes
        ),
        users=4,
        long_prompts=0.0,
        pauses=(),
    )

    async def stop_one(loop: VirtualLoop) -> tuple[VirtualFleet, float]:
        rng = Random(calm.seed)
        async with virtual_fleet(loop, calm.makes, rng) as one:
            tasks = [
                asyncio.create_task(asks(engine, calm, Random(rng.random())))
                for engine in one.engines
                for _ in range(calm.users)
            ]
            await asyncio.sleep(40.0)
            tasks.append(asyncio.create_task(one.engines[0].request(10, 400)))
            await asyncio.sleep(2.0)
            stopped = loop.time()
            if is_frozen:
                one.engines[0].is_frozen = True
            one.engines[0].stall()
            await asyncio.sleep(30.0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return one, stopped

    one, stopped = run_virtually(stop_one)

    name, at, outage = one.alarms[0]
    assert name == "0"
    assert outage.kind is (OutageKind.SILENT if is_frozen else OutageKind.STALLED)
    assert at - stopped <= NOTICED_SECONDS
