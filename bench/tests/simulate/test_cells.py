"""Fleets in cells: who goes where, and what comes of it."""

from __future__ import annotations

import pytest
from bench.tests.runs import unseen

from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.cells import divided, simulate_cells
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError
from inferway_bench.simulate.cells import CELLS, CellsPlan

NUM_SESSIONS, TURNS = 60, 3
OURS = policy_named("expected-ttft")


def chats() -> Workload:
    """Sessions of three turns, which begin one after another."""
    requests = [
        SimRequest(
            blocks=tuple(range(session * 1_000, session * 1_000 + 4 * (turn + 1))),
            prompt_tokens=4 * 512 * (turn + 1),
            output_tokens=10,
            session=session,
            start=session / 10,
            follows=TURNS * session + turn - 1 if turn else None,
            think=1.0,
        )
        for session in range(NUM_SESSIONS)
        for turn in range(TURNS)
    ]
    return Workload("chats", "", 512, requests)


def test_each_session_is_in_one_cell_with_all_its_turns_in_order() -> None:
    whole = chats()

    parts = list(divided(whole, 4))

    sessions = [{request.session for request in part.requests} for part in parts]
    assert len(parts) == 4
    assert sum(map(len, sessions)) == len(set().union(*sessions)) == NUM_SESSIONS
    assert sum(len(part.requests) for part in parts) == len(whole.requests)
    for part in parts:
        for place, request in enumerate(part.requests):
            if request.follows is None:
                assert len(request.blocks) == 4
            else:
                assert request.follows < place
                before = part.requests[request.follows]
                assert before.blocks == request.blocks[: len(before.blocks)]


def test_one_cell_is_the_fleet() -> None:
    whole, fleet = chats(), FleetSpec(num_engines=4, num_slow=0)

    cell = simulate_cells(whole, 10.0, fleet, OURS, seed=1, cells=1, warm_up=0.5)

    figures = simulate(whole, 10.0, fleet, OURS, 1).figures(whole, 10.0, 0.5)
    assert cell.ttft == pytest.approx(figures.ttft)
    assert cell.ttft_p90 == pytest.approx(figures.ttft_p90)
    assert cell.cached == pytest.approx(figures.cached)
    assert cell.busiest == 1.0


def test_cells_divide_the_engines_and_the_load() -> None:
    fleet = FleetSpec(num_engines=4, num_slow=0)

    found = simulate_cells(chats(), 10.0, fleet, OURS, seed=1, cells=4, warm_up=0.0)

    assert found.busiest > 1.0
    # all that was there before, (4 + 8) / 24, but for last turns that come after the end
    assert found.cached == pytest.approx(50.0, abs=3.0)


def test_engines_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(BenchError, match="--cells 3: it must divide the 8 engines evenly"):
        CELLS.run(CellsPlan(engines=8, cells=(3,)), unseen)


def test_the_command_has_a_row_for_each_number_of_cells() -> None:
    plan = CellsPlan(
        trace=("mooncake",), engines=4, cells=(1, 2), load=(0.5,), requests=200, seeds=1,
        processes=1, bisections=1,
    )  # fmt: skip

    run = CELLS.run(plan, unseen)

    rows = [row for row in run.rows if row.table == "cells"]
    assert [row.keys["cells"] for row in rows] == [1, 2]
    assert all(0 < row.median("cached") < 100 for row in rows)
