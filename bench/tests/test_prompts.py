"""`inferway bench prompts`: what is computed from measurements, and a miniature run.

In the miniature the test's own interpreter has transformers; a venv of its own takes minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from bench.tests.test_report import MACHINE
from click.testing import CliRunner

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench.chats import default_data_dir
from inferway_bench.cli import bench
from inferway_bench.processes import BenchError
from inferway_bench.prompts.asking import Interpreters, asked
from inferway_bench.prompts.plan import Plan
from inferway_bench.prompts.report import PROMPTS
from inferway_bench.prompts.results import PromptsRun, Row, Series, Target
from inferway_bench.prompts.run import run_prompts

DOCS = Path(__file__).parents[2] / "docs"

HERE = Interpreters(transformers=Path(sys.executable))

MINIATURE = Plan(
    repeats=2,
    fresh_processes=1,
    render_rounds=1,
    chat_tokens=400,
    growing_tokens=1_500,
    served_before=1,
    npm=False,
)

FASTER = Row(
    table="Chats",
    name="a chat",
    unit="µs",
    ours=Series([20.0, 22.0, 21.0], [10.0, 12.0, 11.0]),
    theirs=Series([900.0, 900.0, 900.0], [110.0, 220.0, 330.0]),
    target=Target(times=20, most=500),
    note="a real one",
)
SLOWER = Row(
    table="Memory",
    name="resident",
    unit="MiB",
    ours=Series([20.0]),
    theirs=Series([10.0]),
    target=Target(share=0.7),
    seed="15 KB",
)
RUN = PromptsRun(
    machine=MACHINE,
    command="inferway bench prompts",
    versions={"inferway": "1.0", "transformers": "5.0"},
    seed=3,
    text="real ones",
    left_out=["something"],
    rows=[FASTER, SLOWER],
)


@pytest.mark.parametrize(
    ("target", "is_met"),
    [
        (Target(times=20), True),
        (Target(times=21), False),
        (Target(most=21), True),
        (Target(most=20.9), False),
        (Target(share=0.05), True),
        (Target(share=0.04), False),
        (Target(times=20, most=20.9), False),
    ],
)
def test_ratios_are_judged_by_cpu_time_and_limits_by_wall_time(
    target: Target, is_met: bool
) -> None:
    assert target.is_met(FASTER.ours, FASTER.theirs) is is_met


def test_what_has_no_counterpart_is_judged_by_its_own_limit() -> None:
    assert Target(most=5).is_met(Series([4.0, 5.0, 9.0]), None)
    assert not Target(most=5).is_met(Series([4.0, 5.1, 9.0]), None)


def test_the_tables_have_both_sides_and_the_ratio() -> None:
    assert PROMPTS.details is not None
    text = PROMPTS.details(RUN)

    assert (
        "| a chat | 21.0 (20.5 to 21.5) µs | 900 (900 to 900) µs | 11.0 µs | 220 µs |"
        " 20.00 (9.17 to 33.00) |" in text
    )
    assert (
        "| 20.0 (20.0 to 20.0) MiB | 10.0 (10.0 to 10.0) MiB | 0.50 (0.50 to 0.50) | 15 KB |"
        in text
    )
    assert "- a chat: a real one." in text
    assert "Left out: something." in text


def test_columns_that_say_nothing_in_a_table_are_not_shown() -> None:
    assert PROMPTS.details is not None
    _, chats, memory = PROMPTS.details(RUN).split("| what |")

    assert "seed 003" not in chats.splitlines()[0]
    assert "CPU" not in memory.splitlines()[0]


def test_rows_that_miss_their_target_are_named() -> None:
    assert [goal.what for goal in RUN.goals() if not goal.is_met] == ["resident"]


def test_rows_that_are_asked_the_same_are_one_bar_and_the_worst_is_shown() -> None:
    better = msgspec.structs.replace(SLOWER, name="other", theirs=Series([40.0]))
    run = msgspec.structs.replace(RUN, rows=[SLOWER, better])

    [goal] = run.goals()

    assert (goal.what, goal.found) == ("Memory, worst of 2", "0.5 (0.5 to 0.5) ×")
    assert not goal.is_met


def test_a_workers_error_says_which_system_and_what_was_asked(tmp_path: Path) -> None:
    with (
        asked("inferway", HERE, tmp_path) as worker,
        pytest.raises(BenchError, match="inferway, load: RenderError"),
    ):
        worker.ask("load", model="/nowhere")


@pytest.mark.slow
def test_both_systems_find_the_same_ids_and_the_same_text(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Grüße, 你好!  Twice  two."}]
    answers = []
    for system in ("inferway", "transformers"):
        with asked(system, HERE, tmp_path) as worker:
            worker.ask("load", model=str(prepare_smollm2()))
            answers.append((worker.ask("tokenize", chat=chat), worker.ask("render", chat=chat)))

    (ours, our_text), (theirs, their_text) = answers
    assert ours["tokens"] == theirs["tokens"] > 10
    assert ours["digest"] == theirs["digest"]
    assert our_text["digest"] == their_text["digest"]
    assert ours["wall"] > 0


@pytest.fixture(scope="module")
def run() -> PromptsRun:
    return run_prompts(default_data_dir(), MINIATURE, print, HERE)


@pytest.mark.slow
def test_each_thing_is_measured_as_often_as_planned(run: PromptsRun) -> None:
    by_name = {row.name: row for row in run.rows}
    first = by_name["400 tokens, first in the process"]
    met = by_name["400 tokens, words met before"]

    assert len(first.ours.wall) == 1
    assert len(met.ours.wall) == len(met.ours.cpu) == 2
    assert met.theirs is not None
    assert len(met.theirs.wall) == 2
    assert all(min(row.ours.wall) > 0 for row in run.rows)


@pytest.mark.slow
def test_the_run_has_every_table_and_says_what_is_left_out(run: PromptsRun) -> None:
    assert len({row.table for row in run.rows}) == 4
    assert "--no-npm" in run.left_out[0]


@pytest.mark.slow
def test_chats_have_about_the_tokens_that_their_row_says(run: PromptsRun) -> None:
    tokens = [int(row.note.split()[0].replace(",", "")) for row in run.rows[:5]]

    assert all(390 <= n <= 700 for n in tokens[:4])
    assert 1_450 <= tokens[4] <= 2_500


def test_missing_data_ends_the_command_with_the_cure(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["prompts", "--data", str(tmp_path)])

    assert result.exit_code == 1
    assert "the cure: --data DIR" in result.output
