"""`inferway bench director`: what is computed from decisions, and a miniature run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench.tests.test_report import MACHINE
from click.testing import CliRunner

from inferway.scheduling.builtin import BUILTIN
from inferway_bench.chats import default_data_dir
from inferway_bench.cli import bench
from inferway_bench.director.many_endpoints import TRIPLES
from inferway_bench.director.plan import Plan
from inferway_bench.director.report import DIRECTOR
from inferway_bench.director.results import (
    DirectorRun,
    slope,
    times_longer,
)
from inferway_bench.director.run import run_director
from inferway_bench.director.world import Point

DOCS = Path(__file__).parents[2] / "docs"
MINIATURE = Plan(
    chats=1,
    longest=1_500,
    probes=2,
    probe_tokens=300,
    others=20,
    other_tokens=200,
    engines=3,
    many_endpoints=30,
    repeats=2,
)


def point(history: int, new: int = 50, times: float = 1.0, ns: float = 20.0) -> Point:
    """A decision whose whole takes 100 µs, and `ns` a token of history, 300 a new one."""
    whole = times * (100 + history * ns / 1e3 + new * 0.3)
    return Point(
        chat=0,
        history=history,
        new=new,
        wall=2 * whole,
        whole=whole,
        parse=10.0,
        render=10.0,
        encode=30.0 * times,
        match=5.0,
        schedule=20.0,
    )


GROWN = [point(history, new=20 + 7 * history % 90) for history in range(0, 20_000, 300)]
RUN = DirectorRun(
    machine=MACHINE,
    command="inferway bench director",
    seed=3,
    text="real ones",
    engines=8,
    block_size=16,
    few_others=9,
    others=90,
    grown=GROWN,
    few=[point(4_000)] * 5,
    many=[point(4_000, times=1.05)] * 5,
)


def test_the_slope_is_that_of_the_history_and_not_of_what_is_new() -> None:
    found = slope(GROWN, "whole")

    assert found.value == pytest.approx(20.0)
    assert found.low == pytest.approx(20.0)
    assert slope(GROWN, "match").value == pytest.approx(0.0, abs=1e-9)


def test_the_same_turns_are_compared_beside_much_and_little() -> None:
    assert times_longer(RUN, "encode").value == pytest.approx(1.05)
    assert times_longer(RUN, "match").value == pytest.approx(1.0)


def missed(run: DirectorRun) -> list[str]:
    return [goal.what for goal in run.goals() if not goal.is_met]


def test_what_is_not_as_asked_is_named() -> None:
    steep = msgspec.structs.replace(RUN, grown=[point(h, ns=26.0) for h in range(0, 9_000, 500)])
    slow = msgspec.structs.replace(RUN, many=[point(4_000, times=1.2)] * 5)

    assert missed(RUN) == []
    assert missed(steep) == ["a decision, ns for each token of history"]
    assert missed(slow) == [f"encode, time after {RUN.others:,} chats / after {RUN.few_others:,}"]


def test_markdown_has_the_lengths_the_slopes_and_the_seeds_figure() -> None:
    text = DIRECTOR.markdown(RUN)

    assert "| none | 1 | 10.0 | 10.0 | 30.0 | 5.0 | 20.0 |" in text
    assert "| whole | 20.00 (20.00 to 20.00) |" in text
    assert "| 5.0 | 5.0 | 1.00 (1.00 to 1.00) |" in text
    assert "about 10 ms more end to end" in text


@pytest.fixture(scope="module")
def run() -> DirectorRun:
    return run_director(default_data_dir(), MINIATURE, print)


@pytest.mark.slow
def test_a_chat_grows_by_its_turns_and_every_step_takes_time(run: DirectorRun) -> None:
    assert run.grown[0].history == 0
    assert all(
        later.history == earlier.history + earlier.new
        for earlier, later in zip(run.grown, run.grown[1:], strict=False)
    )
    assert run.grown[-1].history + run.grown[-1].new >= MINIATURE.longest
    assert all(min(p.whole, p.parse, p.render, p.match, p.schedule) > 0 for p in run.grown)


@pytest.mark.slow
def test_the_same_probes_are_measured_twice(run: DirectorRun) -> None:
    few, many = ([(p.history, p.new) for p in some] for some in (run.few, run.many))

    assert few == many
    assert len(few) == MINIATURE.probes


def test_each_scorer_is_measured_among_many_endpoints_and_three_at_a_time(run: DirectorRun) -> None:
    assert run.many_endpoints is not None
    names = {cost.name for cost in run.many_endpoints.scorers}

    assert names < set(BUILTIN)
    assert {"queue-scorer", "lora-affinity-scorer", "expected-ttft"} <= names
    assert [cost.name for cost in run.many_endpoints.triples] == list(TRIPLES)
    assert all(cost.choose > 0 for cost in run.many_endpoints.triples)


def test_missing_data_ends_the_command_with_the_cure(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["director", "--data", str(tmp_path)])

    assert result.exit_code == 1
    assert "the cure: --data DIR" in result.output
