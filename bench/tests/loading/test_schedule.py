"""When turns are meant to be sent."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from bench.tests.loading.made import session

from inferway_bench.loading.generated import Session, first_times, interleaved, poisson


def endless(turns: int) -> object:
    return (session(*["x"] * turns, number=number) for number in count())


def test_poisson_times_have_the_rate_and_no_memory() -> None:
    times = first_times(poisson(10, seed=1), seconds=400, count=None)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    assert mean == pytest.approx(0.1, rel=0.05)
    assert variance == pytest.approx(mean**2, rel=0.1)


def test_the_same_seed_draws_the_same_times() -> None:
    one, same, other = (first_times(poisson(5, seed), seconds=None, count=9) for seed in (1, 1, 2))

    assert one == same != other


def test_interleaved_sessions_use_every_time_exactly_once() -> None:
    times = [0.1 * i for i in range(100)]

    planned = interleaved(endless(4), times, live=10, seed=1)  # type: ignore[arg-type]

    assert sorted(at for s in planned for at in s.at) == times
    assert all(len(s.turns) == len(s.at) for s in planned)
    assert [s.at[0] for s in planned] == sorted(s.at[0] for s in planned)


def open_at(planned: list[Session], moment: float) -> int:
    return sum(s.at[0] <= moment <= s.at[-1] for s in planned)


def test_no_more_sessions_are_open_than_asked_for_and_turns_leave_time_for_answers() -> None:
    times = [float(i) for i in range(200)]

    planned = interleaved(endless(5), times, live=10, seed=2)  # type: ignore[arg-type]

    assert max(open_at(planned, t) for t in times) == 10
    assert min(b - a for s in planned for a, b in pairwise(s.at)) >= 5


def test_the_same_seed_gives_each_time_to_the_same_turn() -> None:
    times = [float(i) for i in range(50)]

    one, same = (interleaved(endless(3), times, 8, seed=3) for _ in range(2))  # type: ignore[arg-type]

    assert [(s.number, s.at) for s in one] == [(s.number, s.at) for s in same]


def test_when_sessions_run_out_the_times_that_are_left_are_nobodys() -> None:
    planned = interleaved(iter([session("a", "b")]), [1.0, 2.0, 3.0], live=4, seed=0)

    assert [s.at for s in planned] == [(1.0, 2.0)]
