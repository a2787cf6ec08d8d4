"""What schemas and instances are judged by, and what the judgements come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from bench.tests.runs import a_run

from inferway_bench.rows import Findings, Run
from inferway_bench.structured.benchmark import (
    STRUCTURED,
    Case,
    Instance,
    in_schema_order,
    is_named,
    rows_of,
    tally,
)

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
    answers["inferway"] = timed(ANSWERS["inferway"], read=1.0, check=2.0, compile=9.5, gateway=50.0)
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

    assert (
        "| check + compile, CPU time | inferway | 11.5 | 11.5 | 11.5 | 1.15 | 1.15 | 1.15 |" in text
    )
    assert "| gateway, CPU time | inferway | 50.0 | 50.0 | 50.0 | 5.00 | 5.00 | 5.00 |" in text


def test_compiles_are_compared_on_schemas_that_both_compile() -> None:
    answers = [timed([RIGHT], read=1.0, check=1.0, compile=1.0, gateway=1.0)[0] for _ in range(4)]
    answers[1] = {**answers[1], "cpu_ms": {**answers[1]["cpu_ms"], "compile": 99.0}}
    rows = rows_of(
        CASES, {**{n: timed(e, compile=1.0) for n, e in ANSWERS.items()}, "inferway": answers}
    )

    compiles = {
        row.keys["step"]: row
        for row in rows
        if row.table == "compile" and row.keys["system"] == "inferway"
    }

    assert compiles["compile, CPU time"].median("max") == 1.0


AB: dict[str, Any] = {"properties": {"a": {}, "b": {}}}
ORDERINGS: dict[str, tuple[Any, Any, Any]] = {
    "as the schema lists them": (AB, {"b": 1, "a": 2}, {"a": 2, "b": 1}),
    "others stay behind, as they were": (
        AB,
        {"z": 0, "b": 1, "y": 0, "a": 2},
        {"a": 2, "b": 1, "z": 0, "y": 0},
    ),
    "in arrays and under properties": (
        {"items": {"properties": {"x": AB}}},
        [{"x": {"b": 1, "a": 2}}],
        [{"x": {"a": 2, "b": 1}}],
    ),
    "through references": (
        {"$defs": {"t": AB}, "additionalProperties": {"$ref": "#/$defs/t"}},
        {"q": {"b": 1, "a": 2}},
        {"q": {"a": 2, "b": 1}},
    ),
    "of all that must hold, in the order written": (
        {"allOf": [{"properties": {"c": {}}}], **AB},
        {"b": 1, "a": 2, "c": 3},
        {"c": 3, "a": 2, "b": 1},
    ),
    "of alternatives, the one that takes it": (
        {
            "anyOf": [
                {"properties": {"k": {"const": 1}, "a": {}, "b": {}}},
                {"properties": {"b": {}, "a": {}, "k": {"const": 2}}},
            ]
        },
        {"k": 2, "a": 0, "b": 0},
        {"b": 0, "a": 0, "k": 2},
    ),
    "required ones that nobody lists come next": (
        {**AB, "required": ["r"]},
        {"z": 1, "r": 1, "b": 1},
        {"b": 1, "r": 1, "z": 1},
    ),
}


@pytest.mark.parametrize("name", ORDERINGS)
def test_properties_come_in_the_order_of_the_schema(name: str) -> None:
    schema, value, expected = ORDERINGS[name]

    found = in_schema_order(schema, value)

    assert json.dumps(found) == json.dumps(expected)


SET = {"type": "array", "uniqueItems": True, "maxItems": 3}


@pytest.mark.parametrize(
    ("schema", "instance", "named", "wanted"),
    [
        (SET, [1, 1], [("", "uniqueItems")], True),
        (SET, [1, 1], [("", "maxItems")], False),
        (SET, [1, 1, 1, 1], [("", "uniqueItems")], False),
        (SET, [1, 1], [("/items", "uniqueItems")], False),
        ({"properties": {"a": SET}}, {"a": [1, 1]}, [("/properties/a", "uniqueItems")], True),
        (
            {"properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": SET}},
            {"a": [1, 1]},
            [("/$defs/s", "uniqueItems")],
            True,
        ),
        ({"anyOf": [SET, {"type": "null"}]}, [1, 1], [("/anyOf/0", "uniqueItems")], True),
        ({"anyOf": [SET, {"type": "null"}]}, "x", [("/anyOf/0", "uniqueItems")], False),
        ({"contains": {"const": 1}, "minContains": 2}, [1], [("", "contains")], True),
        (SET, [1], [("", "uniqueItems")], False),
        ({"type": 1}, [1], [("", "type")], False),
    ],
)
def test_only_the_keyword_that_is_violated_counts_as_named(
    schema: Any, instance: Any, named: list[tuple[str, str]], wanted: bool
) -> None:
    assert is_named(json.dumps(schema), json.dumps(instance), named) == wanted
