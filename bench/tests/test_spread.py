"""Intervals of repeats and of windows of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.spread import (
    Windows,
    _percentile,
    mean_interval,
    median_interval,
    ratio_of_medians,
)

times = st.lists(st.floats(1, 1e6), min_size=1, max_size=30)


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


def test_sums_are_of_the_window_in_which_something_was() -> None:
    windows = Windows(10.0, 4.0, num_values=24)

    assert windows.num == 4
    assert list(windows.sums([9.9, 10.0, 10.9, 12.5, 14.0], [1, 2, 3, 4, 5])) == [5, 0, 4, 0]


def test_the_interval_of_a_mean_covers_it_and_shrinks_with_more_values() -> None:
    rng = np.random.default_rng(1)

    def width(count: int) -> float:
        found = Windows(0, 100, count).mean(
            list(np.linspace(0, 99.9, count)), list(rng.normal(5, 1, count))
        )
        assert found.low < 5.0 < found.high
        return found.high - found.low

    assert width(4000) < width(200) / 2


def test_requests_that_share_their_fate_are_not_as_many_as_they_seem() -> None:
    """Ten thousand values, but of a window they are all the same: the interval must show twenty
    values, not ten thousand."""
    times = np.linspace(0, 99.9, 10_000)
    fates = np.random.default_rng(2).normal(5, 1, 20)
    values = fates[(times // 5).astype(int)]

    found = Windows(0, 100, 10_000).mean(list(times), list(values))

    assert found.high - found.low > 0.5


def test_a_rate_is_per_second_of_the_whole_time() -> None:
    found = Windows(0, 10, 100).rate([float(i % 10) for i in range(50)], [1.0] * 50)

    assert found.value == pytest.approx(5.0)


@pytest.mark.parametrize("percent", [0, 1, 37.5, 50, 90, 99.9, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 997])
def test_a_percentile_of_what_is_drawn_is_numpys(count: int, percent: float) -> None:
    values = np.random.default_rng(count).normal(5, 1, count)

    assert _percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_a_percentile_is_exact_with_its_interval_around() -> None:
    values = [float(i) for i in range(1000)]
    found = Windows(0, 100, 1000).percentile([i % 100 for i in values], values, 90)

    assert found.value == pytest.approx(np.percentile(values, 90))
    assert found.low < found.value < found.high
