from __future__ import annotations

import pytest
from msgspec.structs import replace

from inferway_bench.machine import this_machine
from inferway_bench.results import read_run, write_run
from inferway_bench.structured.plan import Plan
from inferway_bench.structured.report import STRUCTURED
from inferway_bench.structured.results import (
    Judged,
    Masks,
    Schema,
    StructuredRun,
    System,
    masks_of,
)

NO_MASKS = Masks(0, 0, 0, 0, 0, 0)
RIGHT = Judged(seconds=0.001, taken=[True, False], ordered=[True, False])
REFUSED = Judged(error="no")
LETS = Judged(seconds=0.003, taken=[True, True], ordered=[True, True])
NAMES = Judged(seconds=0.002, named=[False, True], taken=[True, True], ordered=[True, True])
ONLY_IN_ORDER = Judged(seconds=0.002, taken=[False, False], ordered=[True, False])
UNJUDGED = Judged(seconds=0.002)


@pytest.fixture
def run() -> StructuredRun:
    """Four schemas, each with a valid and an invalid instance."""
    return StructuredRun(
        machine=this_machine(),
        command="inferway bench structured",
        file="four.jsonl",
        tokenizer="small",
        plan=Plan(),
        versions={"llguidance": "1"},
        schemas=[Schema(name, [True, False]) for name in "abcd"],
        systems=[
            System("inferway", masks_of([1_000, 2_000, 3_000_000]), [RIGHT, RIGHT, NAMES, RIGHT]),
            System("llguidance", NO_MASKS, [RIGHT, REFUSED, LETS, ONLY_IN_ORDER]),
            System("outlines-core", NO_MASKS, [REFUSED, REFUSED, RIGHT, UNJUDGED]),
        ],
        batch_ms={"inferway": {"row by row": 0.2, "one call": 0.1}},
        load_after=0.0,
    )


def test_instances_are_counted_among_schemas_that_were_compiled(run: StructuredRun) -> None:
    count = run.count(run.system("llguidance"), ordered=False)

    assert (count.compiled, count.right) == (3, 1)
    assert (count.valid_taken, count.valid) == (2, 3)
    assert (count.invalid_refused, count.invalid) == (2, 3)
    assert (count.refusing, count.letting, count.letting_unnamed) == (1, 1, 1)


def test_what_lets_an_instance_through_and_names_a_keyword_is_not_unnamed(
    run: StructuredRun,
) -> None:
    count = run.count(run.ours, ordered=False)

    assert (count.letting, count.letting_unnamed) == (1, 0)


def test_a_named_keyword_that_is_not_the_violated_one_counts_for_nothing(
    run: StructuredRun,
) -> None:
    names_another = replace(NAMES, named=[True, False])
    systems = [replace(run.ours, judged=[names_another] * 4)]

    assert replace(run, systems=systems).count(systems[0], ordered=False).letting_unnamed == 4


def test_a_shapes_cpu_time_is_that_of_the_check_and_the_compile(run: StructuredRun) -> None:
    ours = Judged(seconds=1.0, cpu_ms={"check": 2.0, "verdict": 50.0, "compile": 10.5})
    theirs = Judged(seconds=1.0, cpu_ms={"compile": 10.0})
    systems = [
        replace(run.ours, judged=[ours] * 4),
        replace(run.system("llguidance"), judged=[theirs] * 4),
    ]
    measured = replace(run, systems=systems)

    (goal,) = [goal for goal in measured.goals() if "CPU time, p95, of the schemas" in goal.what]

    assert goal.found == "12.5 ms; llguidance 10.0 ms"
    assert not goal.is_met
    assert "| inferway | 2.0 / 2.0 / 2.0 | 50.0 / 50.0 / 50.0 |" in STRUCTURED.markdown(measured)


def test_order_counts_only_where_it_was_not_put_right(run: StructuredRun) -> None:
    theirs = run.system("llguidance")

    assert run.count(theirs, ordered=True).right == run.count(theirs, ordered=False).right + 1


def test_a_schema_nobody_could_judge_in_time_is_not_right(run: StructuredRun) -> None:
    assert run.right(run.system("outlines-core"), ordered=False) == [False, False, True, False]


def test_gained_and_lost_are_schemas_that_one_alone_judges_rightly(run: StructuredRun) -> None:
    assert run.gained_and_lost(run.system("llguidance"), ordered=True) == (1, 0)
    assert run.gained_and_lost(run.system("outlines-core"), ordered=True) == (3, 1)


def test_compiles_are_compared_on_schemas_that_both_compile(run: StructuredRun) -> None:
    beside = run.compile_ms(run.ours, beside=run.system("llguidance"))

    assert beside == [1.0, 1.0, 2.0]


def test_the_longest_mask_has_its_goal(run: StructuredRun) -> None:
    goals = {goal.what: goal for goal in run.goals()}

    assert goals["mask, longest, wall time"].found == "3.00 ms"
    assert goals["mask, longest, wall time"].is_met


def test_a_run_is_read_as_it_was_written_and_has_a_row_for_each_system(
    run: StructuredRun,
) -> None:
    assert read_run(write_run("structured", run), StructuredRun) == run
    assert STRUCTURED.markdown(run).count("| outlines-core |") == 3
