"""llm-d's formulas, with numbers worked by hand (field notes 3.3)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scheduling.tables import candidates, request

from inferway.model import BLIND, EXACT, STALE, Adapters
from inferway.scheduling.prefix_source import ApproximatePrefixSource, PrecisePrefixSource
from inferway.scheduling.scorers import (
    ActiveRequest,
    KVCacheUtilization,
    LoadAware,
    Queue,
    RunningRequests,
)
from inferway_llmd.scheduling.producers.inflight_load import token_column
from inferway_llmd.scheduling.scorers.affinity import LoraAffinity
from inferway_llmd.scheduling.scorers.prefix_cache import PrefixCache
from inferway_llmd.scheduling.scorers.token_load import TokenLoad

ANY = request()


def test_queue() -> None:
    assert Queue().score(ANY, candidates(waiting=[0, 3, 12])).tolist() == [1.0, 0.75, 0.0]
    assert Queue().score(ANY, candidates(waiting=[5, 5])).tolist() == [1.0, 1.0]


def test_running_requests() -> None:
    assert RunningRequests().score(ANY, candidates(running=[2, 4, 10])).tolist() == [1, 0.75, 0]
    assert RunningRequests().score(ANY, candidates(running=[0, 0])).tolist() == [1.0, 1.0]


def test_kv_cache_utilization() -> None:
    assert KVCacheUtilization().score(ANY, candidates(kv_usage=[0, 0.25, 1])).tolist() == [
        1.0,
        0.75,
        0.0,
    ]


def test_load_aware() -> None:
    table = candidates(waiting=[0, 32, 64, 128, 500])

    assert LoadAware().score(ANY, table).tolist() == [0.5, 0.375, 0.25, 0.0, 0.0]
    assert LoadAware(64).score(ANY, table).tolist() == [0.5, 0.25, 0.0, 0.0, 0.0]


def test_active_request() -> None:
    assert ActiveRequest().score(ANY, candidates(in_flight=[0, 2, 8])).tolist() == [1, 0.75, 0]
    busy = ActiveRequest(idle_threshold=1, max_busy_score=0.5)
    assert busy.score(ANY, candidates(in_flight=[1, 3, 4])).tolist() == [1.0, 0.125, 0.0]
    assert busy.score(ANY, candidates(in_flight=[0, 1, 0])).tolist() == [1.0, 1.0, 1.0]


def test_token_load() -> None:
    table = candidates(4)
    table.add(token_column("p"), np.array([0.0, 1_048_576.0, 4_194_304.0, 9e9]))

    assert TokenLoad(token_column("p")).score(ANY, table).tolist() == [1.0, 0.75, 0.0, 0.0]
    assert TokenLoad(token_column("nobody")).score(ANY, table).tolist() == [1.0] * 4


def test_lora_affinity() -> None:
    running, waiting = frozenset({"a", "b"}), frozenset({"m"})
    table = candidates(
        adapters=[
            Adapters(running=frozenset({"m"}), most=1),  # it runs there
            Adapters(running=running, waiting=waiting, most=4),  # waits, and there is room
            Adapters(running=running, waiting=waiting, most=3),  # waits
            Adapters(running=running, most=2),  # full
            Adapters(),  # has not told
        ]
    )

    assert LoraAffinity().score(ANY, table).tolist() == [1.0, 0.8, 0.6, 0.0, 0.0]


@pytest.mark.parametrize(
    ("weight", "scale", "scores"),
    [
        (0.0, 8192, [0.4, 1.0, 0.0]),
        (0.5, 128, [0.5 * 0.5**2 + 0.5 * 0.4, 1.0, 0.0]),  # 4 of 10 blocks: 64 of 128 tokens
        (1.0, 320, [0.2**2, 0.5**2, 0.0]),
    ],
)
def test_prefix_cache(weight: float, scale: int, scores: list[float]) -> None:
    table = candidates(
        weighted_matched_blocks=[4, 10, 0], matched_blocks=[4, 10, 0], prompt_blocks=10
    )

    scored = PrefixCache(PrecisePrefixSource(), weight, scale).score(ANY, table)

    assert scored.tolist() == pytest.approx(scores)


def test_prefix_cache_reads_what_its_producer_says() -> None:
    source = ApproximatePrefixSource("mine")
    table = candidates(2, weighted_matched_blocks=[9, 9], prompt_blocks=10)
    table.add(source.held, np.array([1.0, 4.0]))
    table.add(source.prompt_blocks, np.array([4.0, 4.0]))
    table.add(source.block_tokens, np.array([64.0, 64.0]))

    assert PrefixCache(source).score(ANY, table).tolist() == [0.25, 1.0]
    assert PrefixCache(source, 1.0, 256).score(ANY, table).tolist() == [0.0625, 1.0]


def test_prefix_cache_is_zero_where_nobody_has_looked_and_for_a_prompt_without_blocks() -> None:
    assert PrefixCache(ApproximatePrefixSource("gone"), 0.5).score(ANY, candidates(2)).tolist() == [
        0,
        0,
    ]
    assert PrefixCache(PrecisePrefixSource()).score(ANY, candidates(2)).tolist() == [0, 0]


def test_precise_matches_count_as_far_as_they_are_to_be_trusted() -> None:
    table = candidates(
        weighted_matched_blocks=[8, 8, 8], prompt_blocks=8, states=[EXACT, STALE, BLIND]
    )

    assert PrefixCache(PrecisePrefixSource()).score(ANY, table).tolist() == [1.0, 0.5, 0.0]
