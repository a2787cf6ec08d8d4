"""Intervals of what follows upon each other."""

from __future__ import annotations

import numpy as np
import pytest

from inferway_bench.spread import Windows, _percentile


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
