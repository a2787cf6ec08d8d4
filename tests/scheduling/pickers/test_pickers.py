"""Who of the rated is picked, and that bursts spread (GIE #1411, #2591; llm-d-router #2709)."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.scheduling.pickers import MaxScore, RandomPicker, WeightedRandom

SIZES = [8, 1000]  # small tables are ranked in another way than large ones


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.7]), min_size=1, max_size=300),
    st.integers(1, 8),
    st.integers(0, 20),
)
def test_the_highest_are_picked_each_once_in_order(
    scores: list[float], count: int, turns: int
) -> None:
    picker = MaxScore()
    column = np.array(scores)
    for _ in range(turns):
        picker.pick(column, count)

    rows = picker.pick(column, count)

    assert [scores[row] for row in rows] == sorted(scores, reverse=True)[:count]
    assert len(set(rows)) == len(rows)
    assert column.tolist() == scores


@pytest.mark.parametrize("size", SIZES)
def test_a_burst_on_an_idle_fleet_spreads_evenly(size: int) -> None:
    picker = MaxScore()

    picked = Counter(picker.pick(np.ones(size), 3)[0] for _ in range(3 * size))

    assert set(picked.values()) == {3}
    assert len(picked) == size


@pytest.mark.parametrize("size", SIZES)
def test_a_burst_spreads_over_the_best_however_many_are_worse(size: int) -> None:
    scores = np.zeros(size)
    scores[[2, 5]] = 50.0
    picker = MaxScore()

    picked = Counter(picker.pick(scores, 3)[0] for _ in range(100))

    assert picked == {2: 50, 5: 50}


@pytest.mark.parametrize("size", SIZES)
def test_when_the_best_is_lost_its_requests_spread(size: int) -> None:
    scores = np.zeros(size)
    scores[4] = 1.0
    picker = MaxScore()

    picked = [picker.pick(scores, 3) for _ in range(2 * (size - 1))]

    assert {first for first, _, _ in picked} == {4}
    assert set(Counter(second for _, second, _ in picked).values()) == {2}


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("size", SIZES)
def test_no_endpoint_is_picked_twice_where_few_may_be_picked(size: int, count: int) -> None:
    scores = np.full(size, -np.inf)
    scores[[2, 5]] = [0.5, 0.9]
    count = min(count, size)

    picked = MaxScore().pick(scores, count)

    assert picked[:2] == [5, 2]
    assert len(set(picked)) == count


def test_scores_that_differ_by_rounding_only_are_equal() -> None:
    scores = np.array([0.3, 0.1 + 0.2])
    picker = MaxScore()

    assert {picker.pick(scores, 1)[0] for _ in range(4)} == {0, 1}


def test_no_more_are_picked_than_configured() -> None:
    scores = np.array([0.5, 0.9, 0.1])

    assert MaxScore(most=1).pick(scores, 3) == [1]
    assert MaxScore(most=9).pick(scores, 2) == [1, 0]
    assert len(RandomPicker(Random(1), most=2).pick(scores, 3)) == 2
    assert len(WeightedRandom(Random(1), most=2).pick(scores, 3)) == 2


def test_random_is_even_and_picks_each_once() -> None:
    picker = RandomPicker(Random(1))
    picked = [picker.pick(np.array([9.0, 0.0, 0.0]), 2) for _ in range(3000)]

    assert all(len(set(rows)) == 2 for rows in picked)
    firsts = Counter(rows[0] for rows in picked)
    assert all(900 < number < 1100 for number in firsts.values())  # 1000, sigma 26


def test_weighted_random_picks_by_share() -> None:
    picker = WeightedRandom(Random(1))
    scores = np.array([1.0, 3.0, 0.0, 6.0])
    picked = [picker.pick(scores, 4) for _ in range(10_000)]

    firsts = Counter(rows[0] for rows in picked)
    assert firsts[2] == 0
    assert firsts[0] == pytest.approx(1000, abs=150)  # 5 sigma
    assert firsts[1] == pytest.approx(3000, abs=230)
    assert firsts[3] == pytest.approx(6000, abs=245)
    # of those that are left again by share: after row 3, row 1 in three of four
    seconds = Counter(rows[1] for rows in picked if rows[0] == 3)
    assert seconds[1] / firsts[3] == pytest.approx(0.75, abs=0.03)
    assert all(rows[3] == 2 for rows in picked)


def test_weighted_random_without_scores_is_even() -> None:
    picker = WeightedRandom(Random(1))

    firsts = Counter(picker.pick(np.zeros(4), 2)[0] for _ in range(4000))

    assert all(850 < number < 1150 for number in firsts.values())
