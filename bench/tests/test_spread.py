"""Quartiles and bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.spread import mean_interval, median_interval, quartiles, ratio_of_medians

times = st.lists(st.floats(1, 1e6), min_size=1, max_size=30)


def test_quartiles_of_five_values_are_the_second_third_and_fourth() -> None:
    q = quartiles([5, 1, 4, 2, 3])

    assert (q.low, q.value, q.high) == (2, 3, 4)


@given(times)
def test_a_mean_lies_in_its_interval_and_the_interval_among_the_values(values: list[float]) -> None:
    interval = mean_interval(values)

    assert interval.value == pytest.approx(sum(values) / len(values))
    assert min(values) * 0.999 <= interval.low <= interval.high <= max(values) * 1.001


def test_an_interval_has_the_width_that_theory_gives_for_normal_values() -> None:
    values = np.random.default_rng(1).normal(10, 2, 1000)

    interval = mean_interval(list(values))

    assert interval.high - interval.low == pytest.approx(2 * 1.96 * 2 / 1000**0.5, rel=0.1)
    assert interval.low < 10 < interval.high


def test_an_outlier_moves_the_mean_and_not_the_median() -> None:
    values = [1.0] * 99 + [1000.0]

    assert mean_interval(values).value == pytest.approx(10.99)
    assert median_interval(values).high == 1.0


def test_a_ratio_is_that_of_the_medians_and_its_interval_shows_the_spread() -> None:
    exact = ratio_of_medians([20.0, 20.0, 20.0], [2.0, 2.0, 2.0])
    spread = ratio_of_medians([10.0, 20.0, 40.0], [1.0, 2.0, 4.0])

    assert (exact.value, exact.low, exact.high) == (10, 10, 10)
    assert (spread.value, spread.low, spread.high) == (10, 2.5, 40)


def test_the_same_measurements_give_the_same_interval() -> None:
    values = [1.0, 2.0, 5.0, 9.0]

    assert mean_interval(values) == mean_interval(values)
