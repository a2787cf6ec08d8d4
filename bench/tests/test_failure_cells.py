"""Cells in which published policies have failed: they fail here too, and expected-ttft does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from inferway_bench.policies.catalog import OURS, policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.outcome import Outcome
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec, Incident, simulate

BLOCK = 100


def prompt(session: int, shared: int, own: int) -> tuple[int, ...]:
    """Blocks that all sessions begin with, and then the session's own."""
    return (*range(shared), *range(session << 12, (session << 12) + own))


def asked(
    session: int, blocks: tuple[int, ...], output: int, start: float, follows: int | None = None,
    think: float = 0.0,
) -> SimRequest:  # fmt: skip
    return SimRequest(
        blocks=blocks, prompt_tokens=len(blocks) * BLOCK + 1, output_tokens=output,
        session=session, start=start, follows=follows, think=think,
    )  # fmt: skip


def sessions(
    count: int, turns: int, every: float, *, shared: int = 0, first: int, more: int, output: int,
    think: float = 0.0,
) -> list[SimRequest]:  # fmt: skip
    """Sessions that begin so many seconds after one another. Each turn follows the answer before it
    and is so many blocks longer."""
    made: list[SimRequest] = []
    for session in range(1, count + 1):
        for turn in range(turns):
            blocks = prompt(session, shared, first + turn * more)
            follows = len(made) - 1 if turn else None
            made.append(asked(session, blocks, output, session * every, follows, think))
    return made


def run(name: str, requests: Sequence[SimRequest], fleet: FleetSpec) -> Outcome:
    """Requests that come when they say."""
    work = Workload("cell", "", BLOCK, requests)
    return simulate(work, work.own_rate, fleet, policy_named(name), seed=1)


def share_of(outcome: Outcome, engines: Sequence[int], since: float, until: float) -> float:
    """The share of the requests of a time that these engines got."""
    then = _then(outcome, since, until)
    return float(np.isin(outcome.engine[then], engines).mean())


def ttft_ms(outcome: Outcome, since: float, until: float) -> float:
    return float(outcome.ttft[_then(outcome, since, until)].mean()) * 1e3


def _then(outcome: Outcome, since: float, until: float) -> NDArray[np.bool_]:
    return (outcome.arrived >= since) & (outcome.arrived < until)


def cached(outcome: Outcome, requests: Sequence[SimRequest], engine: int | None = None) -> float:
    """The share of prompt tokens that came from a cache, of turns that follow another."""
    which = np.array([each.follows is not None for each in requests])
    if engine is not None:
        which &= outcome.engine == engine
    tokens = np.array([each.prompt_tokens for each in requests])
    return float(outcome.cached_tokens[which].sum() / tokens[which].sum())


# 448 of 448 requests to one of two engines: AMD-AGI/Infera, pull request 103 (2026-08-08). Requests
# of agents are so far apart that none is there when the next comes: no load is seen at any choice.


@cache
def paced() -> list[SimRequest]:
    return [
        asked(i % 64, prompt(i % 64 + 1, 20, 20 + i // 64 * 5), 50, i * 4.0) for i in range(448)
    ]


PAIR = FleetSpec(num_engines=2, num_slow=0, engine=EngineSpec(cache_tokens=200_000))


@pytest.mark.parametrize(
    "name", ["dynamo-cost", "lmetric", "llm-d-default", "llm-d-affinity", "cache-aware", "oracle"]
)
def test_paced_requests_all_go_to_one_engine(name: str) -> None:
    outcome = run(name, paced(), PAIR)

    assert sorted(np.bincount(outcome.engine, minlength=2)) == [0, 448]


def test_ours_spreads_paced_requests_and_so_finds_them_cached() -> None:
    ours, oracle = run(OURS, paced(), PAIR), run("oracle", paced(), PAIR)

    assert min(np.bincount(ours.engine)) > 200
    assert ours.cached_tokens.sum() > 1.5 * oracle.cached_tokens.sum()
    assert ours.ttft.mean() < oracle.ttft.mean() / 3


# Consistent hashing into thrash, hit rate 98 -> 5 %: PrimeIntellect-ai/prime-rl, pull request 3255
# (2026-08-12). The hash gives one engine of four more sessions than its cache holds, and none may
# move; the fleet's caches would hold them all.

HASHED = sessions(36, 20, 0.05, first=100, more=1, output=50)
TIGHT = FleetSpec(num_engines=4, num_slow=0, engine=EngineSpec(cache_tokens=105_000))


def test_consistent_hashing_thrashes_one_cache_while_others_have_room() -> None:
    outcome = run("consistent-hash", HASHED, TIGHT)

    shares = sorted(cached(outcome, HASHED, engine) for engine in range(4))
    assert shares[0] < 0.05
    assert shares[-1] > 0.98


def test_ours_keeps_as_many_sessions_at_each_engine_as_it_holds() -> None:
    ours, hashed = run(OURS, HASHED, TIGHT), run("consistent-hash", HASHED, TIGHT)

    assert min(cached(ours, HASHED, engine) for engine in range(4)) > 0.95
    assert ours.ttft.mean() < hashed.ttft.mean() / 4


# A burst of equal long prompts: the first of them makes its engine the best for all others
# (llm-d-router, pull requests 669 and 2515).

BURST = [asked(i, prompt(0, 300, 0), 400, 0.001 * i) for i in range(64)]
EIGHT = FleetSpec(num_engines=8, num_slow=0, engine=EngineSpec(max_num_seqs=16))


@pytest.mark.parametrize("name", ["llm-d-default", "llm-d-affinity", "cache-aware", "preble-e2"])
def test_a_burst_of_equal_prompts_piles_up_on_one_engine(name: str) -> None:
    assert len(set(run(name, BURST, EIGHT).engine.tolist())) == 1


def test_ours_spreads_a_burst_of_equal_prompts() -> None:
    ours = run(OURS, BURST, EIGHT)

    assert max(np.bincount(ours.engine)) <= 16
    alone = EIGHT.engine.idle_ttft(30_001)
    assert ours.ttft.max() < 1.05 * alone


# Incidents, in the middle of chats

CHATS = sessions(200, 8, 0.6, shared=15, first=30, more=5, output=80, think=3.0)
MIDDLE = 60.0


@cache
def chats(name: str, *incidents: Incident) -> Outcome:
    return run(name, CHATS, FleetSpec(num_engines=4, num_slow=0, incidents=incidents))


# An engine that takes three times as long from then on.

SLOWER = Incident(at=MIDDLE, factors=(3.0,))


def test_what_looks_at_no_load_leaves_a_slowed_engine_its_requests() -> None:
    hashed = chats("consistent-hash", SLOWER)

    assert share_of(hashed, [0], 80, 120) > 0.2


def test_ours_soon_spares_an_engine_that_has_become_slow() -> None:
    ours = chats(OURS, SLOWER)

    assert share_of(ours, [0], 80, 120) < 0.12
    assert ttft_ms(ours, MIDDLE, 120) < 1.05 * ttft_ms(chats("oracle", SLOWER), MIDDLE, 120)


# A cold start of half of the fleet: affinity keeps everything where it is (NVIDIA/TensorRT-LLM,
# pull request 14307).

HALF = (Incident(at=0.0, candidates=2), Incident(at=MIDDLE, candidates=4))


@pytest.mark.parametrize("name", ["llm-d-default", "llm-d-affinity"])
def test_engines_that_start_cold_get_nothing(name: str) -> None:
    assert share_of(chats(name, *HALF), [2, 3], MIDDLE, 80) == 0


def test_ours_gives_engines_that_start_cold_their_part() -> None:
    ours = chats(OURS, *HALF)

    assert share_of(ours, [2, 3], MIDDLE, 80) > 0.35
    assert ttft_ms(ours, 80, 120) < 0.75 * ttft_ms(ours, 40, MIDDLE)


# A router that is started anew without memory: what it has learned and its index are gone.

RESTART = Incident(at=MIDDLE, restart=True)
REPLAY = Incident(at=MIDDLE, restart=True, replay=True)


def test_who_guesses_loses_the_caches_with_a_restart() -> None:
    before, after = chats("llm-d-default"), chats("llm-d-default", RESTART)

    assert ttft_ms(after, MIDDLE, 80) > 2 * ttft_ms(before, MIDDLE, 80)


def test_ours_goes_on_once_events_are_replayed() -> None:
    before, after = chats(OURS), chats(OURS, REPLAY)

    assert ttft_ms(after, MIDDLE, 80) < 1.25 * ttft_ms(before, MIDDLE, 80)


def test_ours_finds_caches_again_that_nobody_replays() -> None:
    guessing, ours = chats("llm-d-default", RESTART), chats(OURS, RESTART)

    assert ttft_ms(ours, MIDDLE, 80) < ttft_ms(guessing, MIDDLE, 80) / 10
    assert ttft_ms(ours, 80, 120) < 1.2 * ttft_ms(chats("oracle", RESTART), 80, 120)
