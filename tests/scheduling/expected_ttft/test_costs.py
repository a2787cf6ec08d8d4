"""What an engine's time costs, learned from times observed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean

import numpy as np
import pytest

from inferway.model import Column
from inferway.scheduling.expected_ttft.costs import HALF_LIFE_SECONDS, REFRESH_SECONDS, Costs
from inferway.scheduling.expected_ttft.learning import USUAL_TTFT

USUAL = np.array(USUAL_TTFT)
# fixed, own token, pair, waiting token, waiting request, running request
GPU = np.array([15.0, 0.05, 0.05 / 32_000, 0.05, 1.0, 0.3])
CPU = np.array([50.0, 3.0, 0.0, 3.0, 5.0, 20.0])
ALL_AT_ONCE = np.array([15.0, 0.1, 0.0, 0.0, 0.0, 1.0])  # what waits costs nothing


def some_features(random: Random) -> list[float]:
    waiting = random.choice([0, 0, 500, 4_000])
    own, cached = random.choice([50, 300, 1_000, 5_000]), random.choice([0, 1_000, 30_000])
    pairs, requests = own * (cached + own / 2), random.randrange(6) if waiting else 0
    return [1.0, own, pairs, waiting, requests, random.randrange(30)]


def learned(
    truth: Column,
    samples: int,
    costs: Costs | None = None,
    place: int = 0,
    *,
    since: float = 0.0,
    seconds: float = 0.1,
) -> Costs:
    """From times that scatter by 15 % about the truth; one comes every few `seconds`."""
    random = Random(7)
    if costs is None:
        costs = Costs(USUAL)
        costs.grow(1)
    for number in range(samples):
        features = some_features(random)
        time = float(np.dot(features, truth)) * random.lognormvariate(0, 0.15)
        costs.learn(place, features, time, now=since + number * seconds)
    return costs


def median_error(costs: Costs, truth: Column, place: int = 0) -> float:
    """Of expectations, as a ratio less 1."""
    random = Random(8)
    errors = []
    for _ in range(200):
        features = some_features(random)
        errors.append(abs(np.log(costs.expected(place, features) / float(np.dot(features, truth)))))
    return float(np.expm1(np.median(errors)))


@pytest.mark.parametrize("truth", [GPU, CPU], ids=["gpu", "cpu"])
def test_an_engines_costs_are_known_within_a_tenth_after_100_requests(truth: Column) -> None:
    assert median_error(learned(truth, 100), truth) < 0.1


def test_an_engine_that_computes_all_prompts_at_once_is_learned_too() -> None:
    assert median_error(learned(ALL_AT_ONCE, 200), ALL_AT_ONCE) < 0.15


def test_a_token_behind_a_long_cached_prompt_is_known_to_cost_more() -> None:
    costs = learned(GPU, 300)
    short, long = ([1.0, 1_000, 1_000 * seen, 0, 0, 5] for seen in (500, 40_500))

    assert costs.expected(0, long) / costs.expected(0, short) == pytest.approx(
        float(np.dot(long, GPU)) / float(np.dot(short, GPU)), rel=0.1
    )


def test_one_request_tells_how_fast_an_engine_is() -> None:
    assert median_error(learned(30 * USUAL, 1), 30 * USUAL) < 0.5


def fleet(truths: Sequence[Column], samples: int, scatter: float = 0.15) -> Costs:
    """One engine for each truth, all of them answering in turn."""
    random = Random(9)
    costs = Costs(USUAL)
    costs.grow(len(truths))
    observe(costs, truths, samples, random, scatter)
    return costs


def observe(
    costs: Costs,
    truths: Sequence[Column],
    samples: int,
    random: Random,
    scatter: float,
    since: float = 0.0,
) -> None:
    now = since
    for _ in range(samples):
        for place, truth in enumerate(truths):
            now += 0.05
            features = some_features(random)
            time = float(np.dot(features, truth)) * random.lognormvariate(0, scatter)
            costs.learn(place, features, time, now)


def test_an_engine_that_is_slower_than_others_is_told_apart_after_three_requests() -> None:
    costs = fleet([4 * GPU, *[GPU] * 7], 3)
    features = [1.0, 1_000, 0, 0, 0, 5]

    slow, *others = (costs.expected(place, features) for place in range(8))

    assert 2 < slow / fmean(others) < 6


def test_of_two_engines_the_slower_one_is_told_apart_after_ten_requests() -> None:
    """Neither is what most are."""
    costs = fleet([GPU, 4 * GPU], 10)
    features = [1.0, 1_000, 0, 0, 0, 5]

    assert 2.5 < costs.expected(1, features) / costs.expected(0, features) < 5


def test_engines_that_are_alike_are_expected_to_be() -> None:
    """Though their times scatter by half."""
    columns = fleet([GPU] * 8, 100, scatter=0.5).table

    apart = columns.max(axis=1) / columns.min(axis=1)

    assert np.median(apart) < 1.05
    assert apart.max() < 1.2


def test_an_engine_that_computes_prompts_slower_and_tokens_as_fast_is_told_apart() -> None:
    other = GPU * [1, 3, 3, 3, 1, 1]
    costs = fleet([other, *[GPU] * 3], 100)

    assert median_error(costs, other, 0) < 0.15
    assert median_error(costs, GPU, 1) < 0.1


def test_what_changes_for_all_engines_is_no_difference_between_them() -> None:
    costs = fleet([GPU] * 4, 100)

    observe(costs, [4 * GPU] * 4, 100, Random(1), 0.15, since=20.0)
    costs.grow(5)

    assert median_error(costs, 4 * GPU, 4) < 0.15
    assert (costs.table.max(axis=1) / costs.table.min(axis=1) < 1.1).all()


def test_an_outlier_does_not_move_what_was_learned() -> None:
    costs = learned(GPU, 100)
    features = [1.0, 300, 0, 0, 0, 5]
    before = costs.expected(0, features)

    costs.learn(0, features, 100 * before, now=0.0)

    assert costs.expected(0, features) < 1.05 * before


def test_an_engine_that_became_slower_is_believed_within_30_requests() -> None:
    costs = learned(GPU, 200)

    learned(4 * GPU, 30, costs, since=20.0)

    assert median_error(costs, 4 * GPU) < 0.35


def test_one_that_answers_a_thousand_times_a_second_is_believed_within_a_tenth_of_it() -> None:
    costs = learned(GPU, 200)

    learned(4 * GPU, 100, costs, since=20.0, seconds=0.001)

    assert median_error(costs, 4 * GPU) < 0.35


def test_a_new_engine_is_expected_to_be_as_fast_as_the_others() -> None:
    costs = learned(30 * USUAL, 50)

    costs.grow(2)

    assert costs.table[:, 1] == pytest.approx(costs.table[:, 0], rel=0.1)
    assert 25 < costs.speed < 35


def test_an_engine_that_was_slow_at_first_is_given_another_chance_with_time() -> None:
    costs = Costs(USUAL)
    costs.grow(2)
    learned(USUAL, 100, costs, 0)
    features = [1.0, 1_000, 0, 0, 0, 0]
    costs.learn(1, features, 50 * costs.expected(1, features), now=0.0)
    slow = costs.expected(1, features) / costs.expected(0, features)

    now = 0.0
    while now < 10 * HALF_LIFE_SECONDS:
        now += REFRESH_SECONDS / 2
        costs.refresh(now)

    assert slow > 3
    assert costs.expected(1, features) / costs.expected(0, features) < 1.5


def test_an_engine_that_is_known_to_be_slow_is_so_after_a_long_time_too() -> None:
    costs = Costs(USUAL)
    costs.grow(2)
    learned(USUAL, 100, costs, 0)
    learned(4 * USUAL, 100, costs, 1)

    now = 0.0
    while now < 10 * HALF_LIFE_SECONDS:
        now += REFRESH_SECONDS / 2
        costs.refresh(now)

    assert median_error(costs, 4 * USUAL, 1) < 0.25


def test_no_cost_is_ever_negative() -> None:
    random = Random(3)
    costs = Costs(USUAL)
    costs.grow(1)
    for _ in range(300):
        costs.learn(0, some_features(random), random.lognormvariate(3, 2), now=0.0)
        assert (costs.table > 0).all()


def test_a_place_that_another_engine_takes_is_as_if_new() -> None:
    costs = Costs(USUAL)
    costs.grow(2)
    learned(GPU, 50, costs, 0)
    learned(4 * GPU, 5, costs, 1)

    costs.forget(1)
    costs.grow(3)

    assert costs.table[:, 1] == pytest.approx(costs.table[:, 2])


def test_an_engine_that_has_not_answered_yet_is_as_fast_as_the_others_are_by_now() -> None:
    costs = Costs(USUAL)
    costs.grow(2)

    learned(0.05 * USUAL, 20, costs, 0)

    assert costs.table[:, 1] == pytest.approx(costs.table[:, 0], rel=0.06)
    assert costs.speed < 0.1
    assert costs.is_cold.tolist() == [False, True]


def test_an_engine_is_sure_after_some_answers_until_another_takes_its_place() -> None:
    costs = learned(USUAL, 10)
    known = costs.num_cold

    costs.forget(0)

    assert known == 0
    assert (costs.num_cold, costs.is_cold.tolist()) == (1, [True])
