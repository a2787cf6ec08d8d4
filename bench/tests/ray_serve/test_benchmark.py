"""`inferway bench ray`: what is required of its figures, and what it reads of a router's."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.processes import BenchError
from inferway_bench.ray_serve.benchmark import (
    DEFAULT,
    OURS,
    PREFIX,
    RayPlan,
    RunningRay,
    goals,
    measure,
)
from inferway_bench.rows import Row, Run


def run(
    cached: tuple[Sequence[float], Sequence[float]],
    routing: tuple[Sequence[float], Sequence[float]],
) -> Run:
    """Ours and the prefix-aware router's cached shares; routing of ours and of the default."""
    return a_run(
        "ray",
        [
            row(OURS, cached[0], routing[0]),
            row(PREFIX, cached[1], routing[0]),
            row(DEFAULT, cached[1], routing[1]),
        ],
    )


def row(router: str, cached: Sequence[float], us: Sequence[float]) -> Row:
    values = {"cached": [*cached], "routing_us": [*us], "routing_cpu_us": [*us]}
    return Row("routers", {"router": router}, values, is_ours=router == OURS)


def test_each_seed_is_compared_with_itself() -> None:
    found = goals(run(([60, 80, 70], [50, 60, 50]), ([300, 900, 310], [20, 800, 20])))

    assert [goal.is_met for goal in found] == [True, True, True]
    assert found[0].found.startswith("1.33")
    assert found[1].found == "280 µs"


def test_what_is_missed_is_said() -> None:
    found = goals(run(([50], [50]), ([900], [100])))

    assert [goal.is_met for goal in found] == [False, False, False]


def test_without_a_peer_nothing_is_judged() -> None:
    assert goals(a_run("ray", [row(OURS, [50], [20])])) == []


def test_a_routers_times_are_read_from_where_one_left_off(tmp_path: Path) -> None:
    timings = tmp_path / "timings.txt"
    ray = RunningRay("http://127.0.0.1:1", timings)
    assert ray.timed() == []

    timings.write_text("7 1000 900\n7 2000 1800\n")

    assert ray.timed() == [(7, 1000, 900), (7, 2000, 1800)]
    assert ray.timed(since=1) == [(7, 2000, 1800)]


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is here")
def test_without_ray_the_cure_is_named() -> None:
    with pytest.raises(BenchError, match=r"not installed .*fix: .*install_ray\.sh"):
        measure(RayPlan(), unseen)
