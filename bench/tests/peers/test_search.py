"""Where a mean doubles."""

from __future__ import annotations

import pytest

from inferway_bench.peers.search import doubling_rate


def queue(rate: float) -> float:
    """Mean time in a queue that serves 10 a second: it doubles near 5."""
    return 1.0 / (10.0 - rate) if rate < 10 else 99.0


def test_the_rate_is_found_where_the_mean_is_twice_the_idle_one() -> None:
    idle, rate = doubling_rate(queue, 0.1, 8)

    assert idle == pytest.approx(0.101, rel=0.01)
    assert queue(rate) == pytest.approx(2 * idle, rel=0.02)


def test_a_fleet_that_cannot_be_brought_to_its_knees_is_told() -> None:
    with pytest.raises(ValueError, match="not twice 1 s"):
        doubling_rate(lambda _: 1.0, 1.0, 3)
