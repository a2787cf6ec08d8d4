"""`inferway bench prompts`: what is computed from measurements, and a miniature run.

In the miniature the test's own interpreter has transformers; a venv of its own takes minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.tests.runs import a_run, unseen
from click.testing import CliRunner

from inferway_bench.cli import bench
from inferway_bench.processes import BenchError
from inferway_bench.prompts import (
    CHATS,
    FETCH,
    LOADING,
    MET,
    OURS,
    PROMPTS,
    RENDERING,
    THEIRS,
    PromptsPlan,
    Workers,
    beside,
    goals,
    measure,
)
from inferway_bench.rows import Findings, Key, Run
from inferway_sim.prepare import prepare_smollm2

HERE = Path(sys.executable)
MINIATURE = PromptsPlan(
    repeats=2,
    fresh_processes=1,
    render_rounds=1,
    chat_tokens=400,
    growing_tokens=1_500,
    served_before=1,
    npm=False,
)
THEIR_CHAT = {"time": [900.0, 900.0, 900.0], "CPU": [110.0, 220.0, 330.0]}


def run_of(us: float = 20.0, cpu: float = 10.0, fetch: float = 2.0, rendered: float = 10.0) -> Run:
    chat = {"time": [us, us + 1, us + 2], "CPU": [cpu, cpu + 1, cpu + 2]}
    where: dict[str, Key] = {"tokens": 8, "model": "m", "chat": MET}
    rows = [
        *beside(CHATS, where, {OURS: chat, THEIRS: THEIR_CHAT}),
        *beside(
            RENDERING, {"model": "m", "chat": "a"}, {OURS: {"time": [1.0]}, THEIRS: {"time": [9.0]}}
        ),
        *beside(
            RENDERING,
            {"model": "m", "chat": "b"},
            {OURS: {"time": [rendered]}, THEIRS: {"time": [20.0]}},
        ),
        *beside(
            LOADING, {"what": FETCH, "model": "m", "unit": "µs"}, {OURS: {"measured": [fetch]}}
        ),
    ]
    return a_run("prompts", Findings(rows=rows), plan={"served_before": 4})


def missed(run: Run) -> list[str]:
    return [goal.what for goal in goals(run) if not goal.is_met]


def test_ratios_are_judged_by_cpu_time_and_limits_by_wall_time() -> None:
    assert missed(run_of()) == []
    assert missed(run_of(cpu=11.0)) == [f"{MET}, theirs / ours"]
    assert missed(run_of(us=500.0)) == [MET]


def test_the_worst_of_all_templates_is_judged_and_what_has_no_counterpart_by_its_limit() -> None:
    assert missed(run_of(rendered=15.0, fetch=5.1)) == [
        "rendering, worst of 2, theirs / ours",
        FETCH,
    ]


def test_the_tables_have_both_sides_and_the_ratio() -> None:
    text = PROMPTS.markdown(run_of())

    assert "| 21.0 (20.5 to 21.5) | 11.0 | 900 (900 to 900) | 220 | 20.00 (9.17 to 33.00) |" in text
    assert f"| {FETCH} | m | µs | 2.00 |" in text
    assert "in a process that served 4 others" in text


def test_a_workers_error_says_which_system_and_what_was_asked() -> None:
    with (
        Workers(HERE, unseen).fresh(OURS) as worker,
        pytest.raises(BenchError, match=r"(?s)Inferway: its worker ended with 1: .*RenderError"),
    ):
        worker.ask({"do": "load", "model": "/nowhere"})


@pytest.mark.slow
def test_both_systems_find_the_same_ids_and_the_same_text() -> None:
    chat = [{"role": "user", "content": "Grüße, 你好!  Twice  two."}]
    answers = []
    for system in (OURS, THEIRS):
        with Workers(HERE, unseen).fresh(system) as worker:
            worker.ask({"do": "load", "model": str(prepare_smollm2())})
            answers.append([worker.ask({"do": do, "chat": chat}) for do in ("tokenize", "render")])

    (ours, our_text), (theirs, their_text) = answers
    assert ours["tokens"] == theirs["tokens"] > 10
    assert ours["digest"] == theirs["digest"]
    assert our_text["digest"] == their_text["digest"]
    assert ours["wall"] > 0


@pytest.fixture(scope="module")
def found() -> Findings:
    return measure(MINIATURE, unseen, HERE)


@pytest.mark.slow
def test_each_thing_is_measured_as_often_as_planned(found: Findings) -> None:
    chats = [row for row in found.rows if row.table == CHATS]

    assert [(row.keys["chat"], row.keys["system"]) for row in chats[:4]] == [
        ("first in the process", OURS),
        ("first in the process", THEIRS),
        (MET, OURS),
        (MET, THEIRS),
    ]
    assert [len(row.repeats("time")) for row in chats[:4]] == [1, 1, 2, 2]
    assert all(min(row.repeats("CPU")) > 0 for row in chats)


@pytest.mark.slow
def test_the_run_has_every_table_and_says_what_is_left_out(found: Findings) -> None:
    assert {row.table for row in found.rows} == {table.name for table in PROMPTS.tables}
    assert "--no-npm" in found.about[1]


@pytest.mark.slow
def test_chats_have_about_the_tokens_that_their_row_says(found: Findings) -> None:
    ours = [row for row in found.rows if row.table == CHATS and row.is_ours]
    tokens = [row.median("prompt") for row in ours]

    assert all(390 <= n <= 700 for n in tokens[:4])
    assert 1_450 <= tokens[4] <= 2_500


def test_missing_data_ends_the_command_with_the_cure(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["prompts", "--data", str(tmp_path)])

    assert result.exit_code == 1
    assert "fix: --data DIR" in result.output
