"""The time to the first token that a router adds, and routers that do not answer."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from bench.tests.runs import unseen

from inferway_bench.dataplane.benchmark import DIRECT, arrivals, latencies
from inferway_bench.dataplane.testbed import trivial_engine
from inferway_bench.routers import Inferway, RunningRouter, place_for


def test_arrivals_of_a_repeat_are_the_same_for_all_and_others_in_the_next() -> None:
    one, same, other = (arrivals("m", 200.0, 1.0, seed) for seed in (0, 0, 1))

    assert one == same
    assert [session.at for session in one] != [session.at for session in other]
    assert all(a.at[0] < b.at[0] <= 1.0 for a, b in pairwise(one))


@pytest.mark.slow
def test_a_router_that_answers_nothing_has_no_row_and_is_named(tmp_path: Path) -> None:
    with trivial_engine("m", tmp_path / "engine.log") as engine:
        place = place_for([engine], "m", tmp_path / "router")  # nobody listens there
        absent = RunningRouter(Inferway(scoring=False), place, os.getpid())

        found = latencies([absent], "m", 40.0, 0.5, 2, unseen)

    [direct] = found.rows
    assert found.rate == 40.0
    assert (direct.keys["router"], direct.repeats("failed")) == (DIRECT, [0.0, 0.0])
    assert len(found.notes) == 1
    assert found.notes[0].startswith("inferway serve --no-scoring answered nothing in repeat 1")
    assert found.notes[0].partition(": ")[2].startswith("connect")
