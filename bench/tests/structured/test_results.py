from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.tests.runs import a_run

from inferway_bench.rows import Findings, Run
from inferway_bench.structured.benchmark import STRUCTURED, Case, Instance, rows_of, tally

RIGHT = {"seconds": 0.001, "taken": [True, False], "ordered": [True, False]}
REFUSED = {"error": "no"}
LETS = {"seconds": 0.003, "taken": [True, True], "ordered": [True, True]}
NAMES = {**LETS, "unenforced": [("", "maximum")]}
NAMES_ANOTHER = {**LETS, "unenforced": [("", "minimum")]}
ONLY_IN_ORDER = {"seconds": 0.002, "taken": [False, False], "ordered": [True, False]}
UNJUDGED = {"seconds": 0.002}
# Four schemas, each with a valid and an invalid instance.
CASES = [
    Case(name, '{"maximum": 3}', [Instance(True, [], None, "1"), Instance(False, [], None, "4")])
    for name in "abcd"
]
MASKS = {"mask_ns": [1_000, 2_000, 3_000_000]}
ANSWERS: Mapping[str, list[Mapping[str, Any]]] = {
    "inferway": [{**RIGHT, **MASKS}, RIGHT, NAMES, RIGHT],
    "llguidance": [RIGHT, REFUSED, LETS, ONLY_IN_ORDER],
    "outlines-core": [REFUSED, REFUSED, RIGHT, UNJUDGED],
}


def timed(answers: list[Mapping[str, Any]], **cpu_ms: float) -> list[Mapping[str, Any]]:
    return [{**one, "cpu_ms": cpu_ms} if "seconds" in one else one for one in answers]


def run_of() -> Run:
    answers = {name: timed(each, compile=10.0) for name, each in ANSWERS.items()}
    answers["inferway"] = timed(ANSWERS["inferway"], check=2.0, verdict=50.0, compile=9.5)
    facts: Any = {"schemas": 4}
    return a_run("structured", Findings(rows=list(rows_of(CASES, answers)), facts=facts))


def kept(run: Run, system: str, instances: str = "as they came") -> Mapping[str, Any]:
    return run.select("kept", system=system, instances=instances)[0].values


def test_instances_are_counted_among_schemas_that_were_compiled() -> None:
    found = kept(run_of(), "llguidance")

    assert (found["compiled"], found["all right"]) == (3, 1)
    assert (found["valid accepted"], found["invalid rejected"]) == ("2/3", "2/3")
    assert (found["refuse a valid one"], found["accept an invalid one"]) == (1, 1)
    assert found["unnamed"] == 1


def test_what_lets_an_instance_through_and_names_a_keyword_is_not_unnamed() -> None:
    found = kept(run_of(), "inferway")

    assert (found["accept an invalid one"], found["unnamed"]) == (1, 0)


def test_a_named_keyword_that_is_not_the_violated_one_counts_for_nothing() -> None:
    assert tally(CASES[0], NAMES_ANOTHER, "taken")["unnamed"] == 1


def test_order_counts_only_where_it_was_not_put_right() -> None:
    run = run_of()

    assert kept(run, "llguidance", "in schema order")["all right"] == 2


def test_a_schema_nobody_could_judge_in_time_is_not_right() -> None:
    rights = [tally(CASES[0], one, "taken")["all right"] for one in ANSWERS["outlines-core"]]

    assert rights == [0, 0, 1, 0]


def test_a_shapes_cpu_time_is_that_of_the_check_and_the_compile() -> None:
    text = STRUCTURED.markdown(run_of())

    assert "| check + compile, CPU time | inferway | 11.5 | 11.5 | 11.5 | 1.15 |" in text
    assert "| verdict, CPU time | inferway | 50.0 | 50.0 | 50.0 |" in text


def test_compiles_are_compared_on_schemas_that_both_compile() -> None:
    answers = [timed([RIGHT], check=1.0, verdict=1.0, compile=1.0)[0] for _ in range(4)]
    answers[1] = {**answers[1], "cpu_ms": {"check": 1.0, "verdict": 1.0, "compile": 99.0}}
    rows = rows_of(
        CASES, {**{n: timed(e, compile=1.0) for n, e in ANSWERS.items()}, "inferway": answers}
    )

    compiles = {
        row.keys["step"]: row
        for row in rows
        if row.table == "compile" and row.keys["system"] == "inferway"
    }

    assert compiles["compile, CPU time"].median("max") == 1.0
