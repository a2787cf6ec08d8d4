"""`inferway bench director`: what is computed from decisions, and a miniature run."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop
from bench.tests.runs import a_run
from click.testing import CliRunner

from inferway_bench.chats import Turns, default_data_dir, load_conversations
from inferway_bench.cli import bench
from inferway_bench.director import (
    DIRECTOR,
    Decision,
    DirectorPlan,
    goals,
    grown_chats,
    growth_rows,
    length_rows,
    slope,
)
from inferway_bench.rows import Findings, Run
from inferway_sim.prepare import prepare_smollm2

MINIATURE = DirectorPlan(
    chats=1,
    longest=1_500,
    engines=3,
)


def decided(history: int, new: int = 50, ns: float = 20.0) -> Decision:
    """A decision whose whole takes 100 µs, and `ns` a token of history, 300 a new one."""
    whole = 100 + history * ns / 1e3 + new * 0.3
    return Decision(
        history=history,
        new=new,
        wall=2 * whole,
        whole=whole,
        parse=10.0,
        render=10.0,
        encode=30.0,
        match=5.0,
        schedule=20.0,
    )


GROWN = [decided(history, new=20 + 7 * history % 90) for history in range(0, 20_000, 300)]


@cache
def run_of(*grown: Decision) -> Run:
    grown = grown or tuple(GROWN)
    return a_run("director", Findings(rows=[*length_rows(list(grown)), *growth_rows(list(grown))]))


def test_the_slope_is_that_of_the_history_and_not_of_what_is_new() -> None:
    found = slope(GROWN, "whole")

    assert found.value == pytest.approx(20.0)
    assert found.low == pytest.approx(20.0)
    assert slope(GROWN, "match").value == pytest.approx(0.0, abs=1e-9)


def missed(run: Run) -> list[str]:
    return [goal.what for goal in goals(run) if not goal.is_met]


def test_what_is_not_as_asked_is_named() -> None:
    assert missed(run_of()) == []
    assert missed(run_of(*(decided(h, ns=26.0) for h in range(0, 9_000, 500)))) == [
        "a decision, ns for each token of history"
    ]


def test_markdown_has_the_lengths_and_the_slopes() -> None:
    text = DIRECTOR.markdown(run_of())

    assert "| none | 1 | 10.0 | 10.0 | 30.0 | 5.0 | 20.0 |" in text
    assert "| whole | 20.00 (20.00 to 20.00) |" in text


@pytest.mark.slow
def test_a_chat_grows_by_its_turns_and_every_step_takes_time() -> None:
    root = prepare_smollm2()
    turns = Turns(load_conversations(default_data_dir() / "chat"), 3)

    grown = uvloop.run(grown_chats(root, MINIATURE, turns))

    assert grown[0].history == 0
    assert all(later.history == earlier.history + earlier.new for earlier, later in pairwise(grown))
    assert grown[-1].history + grown[-1].new >= MINIATURE.longest
    assert all(min(p.whole, p.parse, p.render, p.match, p.schedule) > 0 for p in grown)


def test_missing_data_ends_the_command_with_the_cure(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["director", "--data", str(tmp_path)])

    assert result.exit_code == 1
    assert "fix: --data DIR" in result.output
