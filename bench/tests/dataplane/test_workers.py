"""What the CPU time of a hub and its workers allows them to carry."""

from __future__ import annotations

import pytest
from bench.tests.runs import a_run

from inferway_bench.dataplane.testbed import Repeat
from inferway_bench.dataplane.workers import figures, goals
from inferway_bench.dataplane.wrk import LoadResult
from inferway_bench.rows import Row


def repeat(cpu: float, hub: float) -> Repeat:
    """A thousand requests in a second, with so much CPU time."""
    return Repeat(LoadResult(1_000, 10**6, 0, 0, 500), cpu, {"hub": hub})


def test_one_process_carries_what_one_core_allows() -> None:
    found = figures([repeat(2.0, 2.0)], workers=1)

    assert found["cpu_us"] == [2_000.0]
    assert found["hub_us"] == [0.0]  # it has none
    assert found["two_cores"] == found["core_each"] == [500.0]
    assert found["seen"] == [1_000.0]


@pytest.mark.parametrize(
    ("workers", "cpu", "hub", "two_cores", "core_each"),
    [
        (2, 2.2, 0.2, 2_000 / 2.2, 1_000.0),
        (4, 4.2, 0.2, 2_000 / 4.2, 1_000.0),
        (4, 2.0, 1.6, 625.0, 625.0),  # the hub is the bottleneck
    ],
)
def test_of_several_the_cores_or_the_busiest_process_are_the_limit(
    workers: int, cpu: float, hub: float, two_cores: float, core_each: float
) -> None:
    found = figures([repeat(cpu, hub)], workers)

    assert found["two_cores"] == [pytest.approx(two_cores, rel=1e-3)]
    assert found["core_each"] == [pytest.approx(core_each, rel=1e-3)]


@pytest.mark.parametrize(("cpu", "met"), [(2.0, True), (2.3, False)])
def test_two_workers_are_judged_beside_one_process(cpu: float, met: bool) -> None:
    rows = [
        Row("cpu", {"load": "0.7 kB chat", "workers": number}, figures([repeat(*used)], number))
        for number, used in ((1, (2.0, 2.0)), (2, (cpu, 0.1)))
    ]

    assert [goal.is_met for goal in goals(a_run("workers", rows))] == [met]
