"""Nothing that a client asks for takes memory or time of the engine's own process without bound.

What is asserted is what the process itself uses: its CPU time and its peak, which a busy machine
does not change; what a child uses has the limits of `compile_trial.LIMITS`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from structured.tests.hostile_draws import hostile_specs
from structured.tests.lifelike import lifelike_schemas
from tests.cpu import seconds_of

from inferway_structured.backends.cascade import LIGHT, MAX_WEIGHT, light_verdict, verdict
from inferway_structured.backends.schemas.shapes import matches
from inferway_structured.backends.schemas.weight import MAX_REMAINDERS, num_remainders, weight_of
from inferway_structured.errors import HeavyError, SpecError
from inferway_structured.grammar import Unenforced
from inferway_structured.spec import Kind, Spec

ROOT = Path(__file__).parents[2]
MAX_BYTES = 512 << 20  # all together, with what the cache keeps
NUM_DRAWN = 91
MAX_SECONDS = 2.5  # of one; the manager's own limit is 2 s


def asked(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "structured.tests.bounded", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_bounded(told: list[dict[str, Any]]) -> None:
    over = [one for one in told if max(one["judged"], one["compiled"]) > MAX_SECONDS]

    assert not over
    assert sum(one["grown"] for one in told) <= MAX_BYTES


def test_what_brought_an_engine_down_is_answered_with_what_is_left_out_named() -> None:
    """39 bytes took 43 s and 1.5 GB, 12 kB 23 s and 3 GB."""
    told = asked("killers", "0", "0")

    assert_bounded(told)
    assert [(one["name"], one["error"], one["left_out"][:1]) for one in told[:3]] == [
        ("multipleOf", "", ["multipleOf"]),
        ("held", "", []),
        ("oneOf", "", ["oneOf"]),
    ]
    assert "compiling it" in told[3]["error"], "600 bytes, which end the child"
    assert told[1]["held"] - told[0]["held"] > 10_000_000, "counted as it is: 30 MB on 64-bit"


@pytest.mark.slow
@pytest.mark.timeout(600)  # two minutes on a busy machine
def test_hostile_shapes_take_little_of_an_engine() -> None:
    """26 of them; `make hostile` asks for 1,300."""
    told = asked("drawn", "0", "26")

    assert len(told) == 26
    assert_bounded(told)


@cache
def drawn() -> list[tuple[str, Spec]]:
    return hostile_specs(4, NUM_DRAWN)


@pytest.mark.parametrize("number", range(NUM_DRAWN))
def test_hostile_shapes_are_light_or_left_to_a_child(number: int) -> None:
    name, spec = drawn()[number]

    assert seconds_of(lambda: light_verdict(spec), HeavyError, SpecError) < MAX_SECONDS, name


@pytest.mark.slow
def test_schemas_from_life_are_light() -> None:
    texts = [json.dumps(one, separators=(",", ":")) for one in lifelike_schemas(11, 120)]
    texts = [text for text in texts if len(text) <= 32_000]  # a child compiles the others
    heavy = 0
    for text in texts:
        try:
            light_verdict(Spec(Kind.JSON, text))
        except HeavyError:
            heavy += 1
        except SpecError:  # some let nothing through
            pass

    assert heavy <= len(texts) / 10


@pytest.mark.parametrize(
    ("schema", "left_out"),
    [
        ({"multipleOf": MAX_REMAINDERS}, []),
        ({"multipleOf": 3_000_017}, [Unenforced("", "multipleOf")]),
        ({"multipleOf": 0.0003000017}, [Unenforced("", "multipleOf")]),
        ({"multipleOf": 10**400 + 1}, [Unenforced("", "multipleOf")]),
        ({"multipleOf": 1_000_000}, []),
        ({"multipleOf": 1e-7}, []),
    ],
)
def test_a_multiple_of_what_needs_too_many_states_is_named(
    schema: dict[str, Any], left_out: list[Unenforced]
) -> None:
    found = verdict(Spec(Kind.JSON, json.dumps({"type": "number", **schema})))

    assert list(found.unenforced) == left_out


def test_zeros_at_the_end_of_a_divisor_cost_nothing() -> None:
    assert [num_remainders(one) for one in (1_000_000, 0.01, 0.25, 997)] == [1, 1, 25, 997]


def weight(schema: Any) -> float:
    return weight_of(json.dumps(schema))


def test_alternatives_of_alternatives_that_must_all_hold_multiply() -> None:
    any_of: Any = {"anyOf": [{"properties": {f"p{at}": {}}} for at in range(10)]}

    assert weight(any_of) < 50
    assert weight({"anyOf": [any_of] * 10}) < 300
    assert weight({"allOf": [any_of] * 3}) > 1_000
    assert weight({"allOf": [any_of] * 6}) > 1_000_000


def test_a_definition_counts_once_unless_another_schema_meets_it() -> None:
    big = {"properties": {f"p{at}": {"type": ["string", "null"]} for at in range(100)}}
    often = {"properties": {f"q{at}": {"$ref": "#/$defs/big"} for at in range(50)}}
    met = {
        "properties": {f"q{at}": {"$ref": "#/$defs/big", "required": ["p1"]} for at in range(50)}
    }

    assert weight({"$defs": {"big": big}, **often}) < 300
    assert weight({"$defs": {"big": big}, **met}) > 5_000


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"multipleOf": 10**9 + 7}, {"anyOf": [{"maximum": 1}, {"minimum": 2}]}]},
        {"multipleOf": "x"},
    ],
)  # fmt: skip
def test_where_no_bound_is_known_the_weight_has_none(schema: Any) -> None:
    assert weight(schema) == float("inf")


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#"}, {}], "type": "object"},
        {"allOf": [{"$ref": "#/nowhere"}, {"type": "string"}]},
        {"properties": {"a": {"$ref": "#an-anchor"}}},
    ],
)
def test_where_it_is_not_known_a_child_is_to_try(schema: Any) -> None:
    assert LIGHT < weight(schema) < MAX_WEIGHT


NAMED = {"properties": {name: {"required": [name]} for name in "abc"}}


@pytest.mark.parametrize(
    "level",
    [
        lambda inner: {**NAMED, "patternProperties": {".*": inner}},
        lambda inner: {"allOf": [NAMED, {"additionalProperties": inner}]},
        lambda inner: {"allOf": [NAMED, {"patternProperties": {"^a": inner}}]},
        lambda inner: {"required": ["a", "b", "c"], "additionalProperties": inner},
        lambda inner: {"allOf": [{"prefixItems": [{}, {}, {}]}, {"items": inner}]},
    ],
)
def test_what_is_said_of_all_others_is_weighed_for_each_that_is_named(
    level: Callable[[Any], Any],
) -> None:
    """700 bytes of it ended the process: the library writes it out for each, at every level."""
    nested: Any = {"const": 1}
    for _ in range(11):
        nested = level(nested)

    assert weight(nested) > MAX_WEIGHT
    assert weight({"$defs": {"a": nested}, "allOf": [{"$ref": "#/$defs/a"}, {}]}) > LIGHT


def test_patterns_that_match_no_listed_name_are_not_weighed_with_it() -> None:
    listed = {"properties": {f"p{at}": {"type": "string"} for at in range(100)}}
    inner = {"properties": {f"q{at}": {"type": ["string", "null"]} for at in range(20)}}

    assert weight({**listed, "patternProperties": {"^x-": inner}}) < 200
    assert weight({**listed, "patternProperties": {"p": inner}}) > 2_000


@pytest.mark.parametrize(
    "pattern", [".*.*.*.*x", "a?" * 40, "(a|a)" * 30 + "b", "^[a-z]*-[a-z]*-[a-z]*$"]
)
def test_patterns_that_may_hold_the_process_are_not_matched(pattern: str) -> None:
    """Python's matcher backs up, with the GIL."""
    assert matches(pattern, "a" * 150) is None
    assert matches("^a+$", "a" * 150) is True


def test_all_schemas_of_a_tag_share_what_may_be_done_here() -> None:
    conditions: Any = {
        "allOf": [
            {"if": {"required": [f"a{at}"]}, "then": {"required": [f"b{at}"]}} for at in range(40)
        ]
    }
    parts = [
        {"begin": f"<f{at}>", "schema": {**conditions, "title": f"{at}"}, "end": "</f>"}
        for at in range(9)
    ]
    one, nine = (
        Spec(Kind.STRUCTURAL_TAG, json.dumps({"structures": structures, "triggers": ["<f"]}))
        for structures in (parts[:1], parts)
    )

    light_verdict(one)
    with pytest.raises(HeavyError):
        light_verdict(nine)
