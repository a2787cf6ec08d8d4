"""Engines of hybrid models, simulated: what they reuse, what a gateway believes of it, and what
`inferway bench policies-hybrid` says of the difference."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import msgspec
import numpy as np
import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.policies.catalog import FULL_ALONE, OURS, policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.groups import GroupCache, GroupFeed, HybridSpec
from inferway_bench.policies.outcome import Outcome
from inferway_bench.policies.requests import ChatSpec, SimRequest, Workload, chats
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError
from inferway_bench.rows import Row
from inferway_bench.simulate.report import HYBRID, HybridPlan
from inferway_bench.spread import Interval

BLOCK = 128
CHATS = chats(3, ChatSpec(num_requests=200, think_seconds=1.0, most_tokens=8_000))
WITHOUT_ANSWERS = replace(
    CHATS, requests=[msgspec.structs.replace(each, answer_blocks=()) for each in CHATS.requests]
)
HYBRIDS = [
    ("full", "eagle"),
    ("full,mamba:align", "none"),
    ("full,mamba:align", "eagle"),
    ("full,window:300", "none"),
    ("full,window:300,mamba:align", "mtp"),
    ("full,mamba:align:256", "none"),
]


def cache(groups: str, speculation: str = "none", num_blocks: int = 60) -> GroupCache:
    made = HybridSpec(groups, speculation).kv_groups(BLOCK, 8_192)
    return GroupCache(made, num_blocks, BLOCK)


def asked(*blocks: int) -> SimRequest:
    """A prompt of these blocks and a token."""
    tokens = len(blocks) * BLOCK + 1
    return SimRequest(blocks=blocks, prompt_tokens=tokens, output_tokens=5, session=1)


def admit_and_end(engine: GroupCache, *blocks: int) -> int | None:
    reused = engine.admit(blocks, len(blocks), 1)
    engine.release(blocks, 1)
    return reused


def run(hybrid: HybridSpec | None, workload: Workload = CHATS, policy: str = OURS) -> Outcome:
    fleet = FleetSpec(3, 0, engine=EngineSpec(cache_tokens=60_000), hybrid=hybrid)
    return simulate(workload, 6.0, fleet, policy_named(policy), seed=1)


# the caches


def test_engines_with_full_attention_alone_do_what_engines_with_one_group_do() -> None:
    plain, grouped = run(None, WITHOUT_ANSWERS), run(HybridSpec("full"), WITHOUT_ANSWERS)

    assert np.array_equal(grouped.engine, plain.engine)
    assert np.array_equal(grouped.cached_tokens, plain.cached_tokens)
    assert np.array_equal(grouped.ttft, plain.ttft)


def test_the_blocks_of_an_answer_are_reused() -> None:
    with_answers, without = run(HybridSpec("full")), run(HybridSpec("full"), WITHOUT_ANSWERS)

    assert with_answers.cached_tokens.sum() > without.cached_tokens.sum()


def test_a_prompt_that_parts_where_no_state_is_reuses_nothing_and_leaves_a_state_there() -> None:
    engine = cache("full,mamba:align")

    reused = [admit_and_end(engine, 1, 2, 3, last) for last in (4, 5, 6)]

    assert reused == [0, 0, 3]
    assert admit_and_end(engine, 1, 2, 3, 4) == 4


def test_a_draft_model_has_the_last_block_of_a_hit_computed_again() -> None:
    engine = cache("full", "eagle")
    admit_and_end(engine, 1, 2, 3)

    assert engine.match((1, 2, 3), 3) == 2


def test_blocks_are_used_by_the_prompts_that_run() -> None:
    engine = cache("full,mamba:align")
    engine.admit((1, 2, 3), 3, 1)
    engine.admit((1, 2, 4), 3, 1)

    assert [engine.used((1, 2, 3), least) for least in (1, 2, 3)] == [3, 2, 0]
    assert engine.held() == {1, 2, 3, 4}


def test_a_prompt_without_room_for_its_answer_waits_and_takes_nothing() -> None:
    engine = cache("full", num_blocks=10)

    assert engine.admit((1, 2), 2, 9) is None
    assert (engine.num_free, engine.usage) == (10, 0.0)


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        ("full:64", r"blocks of \[64\] tokens: expected a full group of 128"),
        ("mamba:align", "expected a full group"),
        ("full,mamba:align:200", "multiples of it"),
        ("half", "kv-groups: 'half'"),
    ],
)
def test_groups_that_a_traces_blocks_cannot_show_are_an_error(groups: str, named: str) -> None:
    with pytest.raises(BenchError, match=named):
        HybridSpec(groups).kv_groups(BLOCK, 8_192)


# what a gateway believes


@pytest.mark.parametrize(("groups", "speculation"), HYBRIDS)
def test_an_index_that_knows_all_groups_believes_what_the_engine_reuses(
    groups: str, speculation: str
) -> None:
    engine, drawn = cache(groups, speculation), Random(1)
    feed = GroupFeed(0.0, [engine], BLOCK, knows_groups=True)
    wrong = []
    for now in range(300):
        path = [drawn.randrange(1, 4) for _ in range(drawn.randrange(1, 9))]
        # A block's number stands for all before it, too.
        blocks = tuple(int("".join(map(str, path[: i + 1]))) for i in range(len(path)))
        feed.deliver(now)
        believed = feed.match(asked(*blocks)).get(0, 0)
        reused = admit_and_end(engine, *blocks)
        feed.send(now, 0, (), ())
        wrong += [(blocks, believed, reused)] * (believed != reused)

    assert not wrong


def test_an_index_that_knows_full_attention_alone_believes_its_prefix() -> None:
    engine = cache("full,mamba:align")
    feed = GroupFeed(0.0, [engine], BLOCK, knows_groups=False)
    admit_and_end(engine, 1, 2, 3)
    feed.send(0.0, 0, (), ())
    feed.deliver(0.0)

    assert feed.match(asked(1, 2, 4)) == {0: 2}
    assert engine.match((1, 2, 4), 3) == 0


@pytest.mark.parametrize(("groups", "speculation"), HYBRIDS[:3])
def test_full_attention_alone_is_believed_to_serve_more_than_is_reused(
    groups: str, speculation: str
) -> None:
    more = {}
    for policy in (FULL_ALONE, OURS):
        outcome = run(HybridSpec(groups, speculation), policy=policy)
        more[policy] = float(np.mean(outcome.believed_tokens > outcome.cached_tokens))

    assert more[OURS] < 0.1 * more[FULL_ALONE]


# the benchmark


def test_each_index_has_a_row_and_is_compared_with_the_one_that_knows_all() -> None:
    plan = HybridPlan(
        trace=("chats",), kv_groups=("full+eagle",), engines=(2,), load=(0.5,), requests=60,
        seeds=2, processes=1,
    )  # fmt: skip

    shown = HYBRID.markdown(HYBRID.run(plan, unseen))

    assert "**full+eagle**" in shown
    [full], [ours] = (
        [line for line in shown.splitlines() if line.startswith(f"| 50% | {policy} |")]
        for policy in (FULL_ALONE, OURS)
    )
    assert full.count(" to ") == 3
    assert ours.count("1.000 (1.000 to 1.000)") == 3


def test_where_the_index_that_knows_all_is_behind_is_a_loss() -> None:
    ratios = {"ttft_p50_ratio": Interval(0.9, 0.8, 1.1), "ttft_p90_ratio": Interval(0.8, 0.7, 0.9)}
    keys = {"trace": "t", "groups": "full", "load": "50%", "policy": FULL_ALONE}

    [loss] = HYBRID.losses(a_run("policies-hybrid", [Row("simulations", keys, {**ratios})]))

    assert "p90 TTFT of expected-ttft-full-attention is 0.800 (0.700 to 0.900) times ours" in loss


def test_an_unknown_group_of_the_plan_is_refused_before_anything_is_simulated() -> None:
    plan = HybridPlan(trace=("chats",), kv_groups=("full,sliding",))

    with pytest.raises(BenchError, match="'sliding'"):
        HYBRID.run(plan, unseen)
