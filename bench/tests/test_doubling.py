"""Where a mean is twice the idle one."""

from __future__ import annotations

import pytest

from inferway_bench.doubling import doubling_rate


def queue(rate: float) -> float:
    """Mean time in a queue that serves 10 a second: it doubles near 5."""
    return 1.0 / (10.0 - rate) if rate < 10 else 99.0


@pytest.mark.parametrize("between", [(0.1, 0.2), (0.1, 0.1), (7.0, 7.0)])
def test_the_rate_is_found_where_the_mean_is_twice_the_idle_one(
    between: tuple[float, float],
) -> None:
    low, high = doubling_rate(queue, 0.1, between, 2.0, 20, 8)

    assert low <= high
    if between[0] < 5:
        assert low == pytest.approx(5.0, rel=0.02)
        assert queue(low) < 0.2 <= queue(high)


def test_a_fleet_that_cannot_be_brought_to_its_knees_is_told() -> None:
    with pytest.raises(ValueError, match="not twice 1 ms"):
        doubling_rate(lambda _: 1.0, 1.0, (1.0, 1.0), 2.0, 8, 3)
