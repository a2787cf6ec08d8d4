"""Buckets that grow with the value, and the correction of closed loops."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from inferway_bench.loading.histogram import Buckets, Histogram


def of(*values: float) -> Histogram:
    histogram = Histogram()
    histogram.add(values)
    return histogram


@pytest.mark.parametrize("percent", [1, 50, 90, 99, 99.5])
def test_percentiles_are_right_within_four_thousandths(percent: float) -> None:
    values = np.random.default_rng(1).lognormal(-3, 2, 20_000)

    found = of(*values).percentile(percent)

    exact = np.percentile(values, percent, method="inverted_cdf")
    assert found == pytest.approx(float(exact), rel=0.004)


def test_count_mean_and_most_are_exact() -> None:
    histogram = of(0.001, 0.002, 0.006)

    assert len(histogram) == 3
    assert histogram.mean == pytest.approx(0.003)
    assert histogram.most == histogram.percentile(100) == 0.006


def test_of_nothing_everything_is_zero() -> None:
    assert (len(of()), of().mean, of().percentile(99)) == (0, 0.0, 0.0)


def test_values_beyond_the_range_are_kept_at_its_ends() -> None:
    histogram = of(0.0, 1e9)

    assert len(histogram) == 2
    assert histogram.percentile(1) < 1e-5
    assert histogram.most == 1e9


def test_two_add_up() -> None:
    one, both = of(0.1, 0.2), of(0.1, 0.2, 0.3)
    one.merge(of(0.3))

    assert one.stored().counts == both.stored().counts
    assert one.most == 0.3


def test_a_closed_loops_stall_counts_for_what_was_not_sent_meanwhile() -> None:
    """99 answers in 10 ms and one in a second: a hundred requests were not sent in it."""
    values = [0.01] * 99 + [1.0]
    corrected = Histogram()

    corrected.add_corrected(values, interval=0.01)

    assert of(*values).percentile(99) == pytest.approx(0.01, rel=0.01)
    assert corrected.percentile(99) == pytest.approx(0.99, rel=0.004)
    assert len(corrected) == 100 + 99


def test_what_is_stored_is_the_same_when_it_is_read_again() -> None:
    histogram = of(0.004, 0.004, 3.0)
    text = msgspec.json.encode(histogram.stored())

    again = Histogram.loaded(msgspec.json.decode(text, type=Buckets))

    assert again.stored() == histogram.stored()
    assert again.percentile(50) == histogram.percentile(50)
