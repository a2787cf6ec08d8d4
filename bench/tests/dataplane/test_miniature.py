"""A miniature of `inferway bench dataplane`: the real gateway and the real load, a second each."""

from __future__ import annotations

import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.dataplane.benchmark import LONG, SCORING, DataplanePlan, measure_routers
from inferway_bench.routers import Inferway
from inferway_bench.rows import Run

pytestmark = [pytest.mark.tools, pytest.mark.slow]

MINIATURE = DataplanePlan(
    repeats=1, seconds=1, connections=2, latency_seconds=1, held_streams=20, memory_repeats=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Run:
    routers = [Inferway(scoring=True), Inferway(scoring=False)]
    return a_run("dataplane", measure_routers(routers, MINIATURE, unseen))


def test_each_load_is_measured(run: Run) -> None:
    rows = run.select("cpu")

    assert len(rows) == 5
    assert all(row.median("cpu_us") > 0 and row.median("per_second") > 0 for row in rows)


def test_long_chats_match_what_the_engines_published(run: Run) -> None:
    row = run.find("cpu", load=LONG, router=SCORING)
    assert row is not None

    assert float(str(row.values["did"]).partition("process; ")[2].partition("%")[0]) > 95


def test_what_a_router_adds_is_told_beside_the_time_without_one(run: Run) -> None:
    direct, ours = run.select("latency")

    assert ours.median("p50_us") > 0 < direct.median("p50_us")
    assert ours.repeats("failed") == direct.repeats("failed") == [0.0]
    assert "added_p50_us" not in direct.values


def test_streams_take_memory(run: Run) -> None:
    [row] = run.select("memory")

    assert row.median("at_start") > 10
