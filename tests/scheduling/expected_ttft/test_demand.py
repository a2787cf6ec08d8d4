"""What was asked of endpoints is counted in buckets of time."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.scheduling.expected_ttft.demand import (
    ALONE,
    BUCKET_SECONDS,
    KEPT,
    LATE,
    PARTS,
    REQUESTS,
    SEEN,
    SQUARES,
    WORK,
    Demand,
)

ALL = np.array([0, 1], np.intp)


@pytest.fixture
def demand() -> Demand:
    demand = Demand(goal_ms=800.0)
    demand.grow(2)
    return demand


def at(bucket: float) -> float:
    return bucket * BUCKET_SECONDS


def test_a_bucket_counts_requests_their_work_and_what_they_need_of_the_goal(demand: Demand) -> None:
    demand.sent(0, at(0), work=1.0, alone_ms=1.0)  # the first bucket is not whole
    demand.sent(0, at(1), work=100.0, alone_ms=150.0)
    demand.sent(1, at(1.5), work=300.0, alone_ms=900.0)

    last = demand.last(at(2))
    assert last == 1
    [counts] = demand.buckets(ALL, last)
    assert counts[[REQUESTS, WORK, SQUARES]].tolist() == [2, 400, 100**2 + 300**2]
    assert counts[ALONE:].nonzero()[0].tolist() == [1, PARTS]


def test_first_tokens_are_late_beyond_the_goal(demand: Demand) -> None:
    demand.answered(0, at(0), 1.0)
    for ttft in (799.0, 800.0, 801.0):
        demand.answered(0, at(1), ttft)

    [counts] = demand.buckets(ALL, demand.last(at(2)) or 0)
    assert counts[[SEEN, LATE]].tolist() == [3, 1]


def test_only_whole_buckets_are_told(demand: Demand) -> None:
    assert demand.last(at(5)) is None
    demand.sent(0, at(5.5), work=1.0, alone_ms=1.0)
    assert demand.last(at(6.5)) is None
    assert demand.last(at(7)) == 6


def test_buckets_without_requests_are_there(demand: Demand) -> None:
    demand.sent(0, at(0), work=1.0, alone_ms=1.0)
    demand.sent(0, at(4), work=1.0, alone_ms=1.0)

    rows = demand.buckets(ALL, demand.last(at(6)) or 0)
    assert rows[:, REQUESTS].tolist() == [0, 0, 0, 1, 0]


def test_no_more_is_kept_than_is_looked_at(demand: Demand) -> None:
    for bucket in range(3 * KEPT):
        demand.sent(0, at(bucket), work=1.0, alone_ms=1.0)

    assert len(demand.buckets(ALL, demand.last(at(3 * KEPT)) or 0)) == KEPT


def test_a_slot_that_comes_later_and_one_that_is_given_away(demand: Demand) -> None:
    demand.sent(1, at(0), work=1.0, alone_ms=1.0)
    demand.sent(1, at(1), work=1.0, alone_ms=1.0)
    demand.sent(1, at(2), work=1.0, alone_ms=1.0)
    demand.grow(3)
    demand.sent(2, at(2), work=5.0, alone_ms=1.0)
    demand.forget(1)

    rows = demand.buckets(np.array([1, 2], np.intp), demand.last(at(3)) or 0)
    assert rows[:, WORK].tolist() == [0, 5]
