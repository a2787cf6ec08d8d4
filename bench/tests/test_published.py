"""Published policies do what their rules say, on a few engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.usage import Usage
from inferway.scheduling.idle import idle
from inferway.scheduling.plugin import RequestOutcome
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.gateway import Policy, endpoints_of
from inferway_bench.policies.published import (
    DualMap,
    DynamoCost,
    LMetric,
    Lodestar,
    Perceptron,
    Preble,
    hashed,
    published,
)
from inferway_bench.policies.requests import SimRequest, llm_request
from inferway_bench.policies.simulate import FleetSpec, World

BLOCK = 100


def asks(*blocks: int) -> LLMRequest:
    request = SimRequest(
        blocks=blocks, prompt_tokens=len(blocks) * BLOCK, output_tokens=1, session=1
    )
    return llm_request(request, 0, BLOCK)


def fleet(held: Sequence[float], requests: Sequence[float], now: float = 0.0) -> Candidates:
    """Engines that hold so many blocks of the prompt, and have so many requests."""
    candidates = idle(endpoints_of(len(held)), BLOCK)
    candidates.matched_blocks = candidates.weighted_matched_blocks = np.array(held, float)
    candidates.in_flight = np.array(requests, float)
    candidates.now = now
    return candidates


def sent(
    policy: Policy, request: LLMRequest, candidates: Candidates, *, begins: bool = True
) -> int:
    """Where the policy sends the request, whose answer begins at once or not."""
    blocks = request.prompts[BLOCK][0].block_keys
    candidates.prompt_blocks = np.full(len(candidates.endpoints), float(len(blocks)))
    for producer in policy.producers:
        producer.produce(request, candidates)
    choice = policy.chooser.choose(request, candidates)
    for plugin in policy.following:
        follower = plugin.follow(request, candidates, choice)
        assert follower is not None
        follower.on_attempt(choice.targets[0], candidates.now)
        if begins:
            follower.on_first_chunk(candidates.now)
    return choice.targets[0].endpoint.holder


TEN = tuple(range(10))


@pytest.mark.parametrize(
    ("held", "requests", "row"),
    [
        ((0, 5), (0, 0), 1),  # 1,000 x 1, 500 x 1
        ((0, 5), (0, 2), 0),  # 1,000 x 1, 500 x 3
        ((0, 9), (1, 8), 1),  # 1,000 x 2, 100 x 9
        ((0, 9), (1, 20), 0),  # 1,000 x 2, 100 x 21
    ],
)
def test_lmetric_takes_the_least_product_of_new_tokens_and_batch(
    held: Sequence[float], requests: Sequence[float], row: int
) -> None:
    assert sent(published(LMetric()), asks(*TEN), fleet(held, requests)) == row


@pytest.mark.parametrize(
    ("held", "used", "row"),
    [
        ((4, 0), ((), ()), 0),  # 6 + 10, 10 + 10
        ((4, 0), ((90, 91, 92, 93, 94), ()), 1),  # 6 + 15, 10 + 10
        ((4, 0), ((0, 1, 2, 3, 94), ()), 0),  # 6 + 11: equal blocks count once
    ],
)
def test_dynamo_adds_blocks_to_compute_and_blocks_in_use(
    held: Sequence[float], used: Sequence[Sequence[int]], row: int
) -> None:
    rule = DynamoCost(BLOCK, used=[Counter(each) for each in used])

    assert sent(published(rule), asks(*TEN), fleet(held, (0, 0))) == row


def test_dynamo_counts_blocks_until_the_request_ends() -> None:
    rule = DynamoCost(BLOCK)
    request, candidates = asks(1, 2), fleet((0, 0), (0, 0))
    for producer in published(rule).producers:
        producer.produce(request, candidates)
    choice = rule.choose(request, candidates)
    follower = rule.follow(request, candidates, choice)
    row = choice.targets[0].endpoint.holder

    follower.on_attempt(choice.targets[0], 0.0)
    follower.on_first_chunk(1.0)
    during = dict(rule.used[row])
    follower.on_end(RequestOutcome("ok", 2.0, Usage(200, 5, 0)))

    assert during == {1: 1, 2: 1}
    assert not rule.used[row]


@pytest.mark.parametrize(
    ("held", "requests", "row"),
    [
        ((6, 0, 0), (1, 1, 1), 0),  # more is cached than not: exploit
        ((4, 0, 0), (1, 1, 0), 2),  # less: the load and the prefill that it costs
        ((6, 6, 0), (2, 1, 1), 1),  # of those that hold as much the least loaded
        ((6, 0, 0), (9, 2, 1), 2),  # 1.5 times the least load is too much
    ],
)
def test_preble_exploits_what_is_cached_or_explores(
    held: Sequence[float], requests: Sequence[float], row: int
) -> None:
    assert sent(published(Preble()), asks(*TEN), fleet(held, requests)) == row


def test_preble_counts_the_prefill_of_the_last_three_minutes() -> None:
    policy = published(Preble())
    first = sent(policy, asks(*TEN), fleet((0, 0), (0, 0)))
    second = sent(policy, asks(*range(20, 30)), fleet((0, 0), (0, 0), now=100.0))
    later = sent(policy, asks(*range(40, 50)), fleet((0, 0), (0, 0), now=185.0))

    assert (first, second, later) == (0, 1, 0)


def test_dualmap_chooses_between_the_two_engines_of_a_prompts_beginning() -> None:
    one, other = hashed(0, 4)
    both = [0.0] * 4
    both[other] = 5

    by_load = sent(published(DualMap(BLOCK)), asks(*TEN), fleet([0] * 4, [0] * 4))
    by_cache = sent(published(DualMap(BLOCK)), asks(*TEN), fleet(both, [0] * 4))

    assert by_load in (one, other)
    assert by_cache == other


def test_dualmap_leaves_the_cache_where_the_slo_would_be_missed() -> None:
    one, other = hashed(0, 4)
    held = [0.0] * 4
    held[other] = 2  # the rest takes 8 s, the whole prompt 10
    rule = DualMap(BLOCK, EngineSpec(prefill_seconds=0.01), slo_seconds=7.0)
    policy = published(rule)

    found = [sent(policy, asks(*TEN), fleet(held, [0] * 4), begins=False) for _ in range(2)]

    assert found == [other, one]


def test_dualmap_looks_further_where_all_prompts_begin_alike() -> None:
    rule = DualMap(BLOCK)
    policy = published(rule)
    for session in range(100, 140):
        sent(policy, asks(1, session), fleet([0] * 8, [0] * 8))

    assert rule.seen[1] == 40
    assert {sent(policy, asks(1, session), fleet([0] * 8, [0] * 8)) for session in range(40)} > {
        0,
        7,
    }


def test_lodestar_follows_its_first_rule_until_it_is_trained_and_then_what_it_has_seen() -> None:
    rule = Lodestar(BLOCK, np.array([1.0, 3.0]), np.random.default_rng(1), every=200, buffer=400)
    before = sent(published(rule), asks(*TEN), fleet((0, 5), (0, 0)))
    assert rule.model is None
    rule.recent.clear()
    states = np.random.default_rng(2).uniform(0, 1, (1_000, 8))
    for state in states:  # an engine of the second kind takes ten times as long
        state[7] = 1.0 if state[7] < 0.5 else 3.0
        rule.learn(state, 0.1 if state[7] == 1.0 else 1.0)
    assert rule.model is not None

    assert before == 1
    assert (len(rule.recent), len(rule.replay)) == (400, 400)
    truth = np.where(states[:, 7] == 1.0, 0.1, 1.0)
    assert np.abs(rule.model.predicted(states) - truth).mean() < 0.15


@pytest.mark.parametrize("explored", [0.0, 0.1, 0.5])
def test_lodestar_sends_some_requests_to_any_engine(explored: float) -> None:
    rule = Lodestar(BLOCK, np.ones(4), np.random.default_rng(1), explored=explored)
    rule.model = Perceptron(8, np.random.default_rng(3))
    waiting = np.tile(np.arange(4.0), (8, 1)).T  # the more waits, the longer it takes
    rule.model.train(waiting, waiting[:, 0])
    policy = published(rule)

    rows = [sent(policy, asks(7, 8), fleet([0] * 4, [0, 1, 2, 3])) for _ in range(400)]

    assert 1 - Counter(rows).most_common(1)[0][1] / 400 == pytest.approx(0.75 * explored, abs=0.06)


def test_lodestar_stays_with_two_engines_while_caches_are_full() -> None:
    rule = Lodestar(BLOCK, np.ones(4), np.random.default_rng(1))
    rule.model = Perceptron(8, np.random.default_rng(3))
    rule.model.train(np.ones((10, 8)), np.ones(10))
    few = hashed(7, 4)

    rows: set[int] = set()
    for _ in range(20):
        candidates = fleet([0] * 4, np.random.default_rng(len(rows)).integers(0, 9, 4).tolist())
        candidates.kv_usage[:] = 0.9
        rows.add(sent(published(rule), asks(7, 8), candidates))

    assert rows <= set(few)


def test_a_perceptron_learns_a_product() -> None:
    rng = np.random.default_rng(1)
    inputs = rng.uniform(0, 1, (2_000, 2))
    targets = inputs[:, 0] * inputs[:, 1]
    model = Perceptron(2, rng)

    model.train(inputs, targets, epochs=30)

    assert np.abs(model.predicted(inputs) - targets).mean() < 0.04


def test_llm_ds_affinity_stays_with_who_holds_most_until_18_seconds_of_tokens_wait() -> None:
    engines = FleetSpec(num_engines=2, num_slow=0).engines(BLOCK, Random(1))
    policy = policy_named("llm-d-affinity")(World(engines, [], BLOCK, Random(1), lambda: 0.0))

    # 80 of 100 blocks are held by the first: 2,000 tokens wait there after each
    rows = [
        sent(policy, asks(*range(100)), fleet((80, 0), (0, 0)), begins=False) for _ in range(200)
    ]

    # a full step of 8,192 tokens takes 0.663 s: 222,277 tokens in 18 s, less what is held
    assert rows.index(1) == (222_277 + 8_000) // 2_000 + 1
    assert sent(policy, asks(*range(100)), fleet((79, 0), (0, 0)), begins=False) == 1
