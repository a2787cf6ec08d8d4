"""Numbers of more digits than the library holds: none is lost, and none ends the process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structured.tests.compiling import smollm2

from inferway_structured.backends.cascade import Cascade
from inferway_structured.backends.llguidance import written
from inferway_structured.errors import SpecError
from inferway_structured.grammar import Compiled
from inferway_structured.spec import Kind, Spec
from inferway_structured.validate.check import check_grammar
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.validate.validator import is_valid

CASCADE = Cascade(smollm2())

NEAR = [2**53, 2**60, 2**63 - 1024, 2**63 - 512, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70]
NUMBERS = sorted({sign * (n + d) for sign in (1, -1) for n in NEAR for d in (-1, 0, 1)} | {0, 1})
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const")


def json_spec(schema: Any) -> Spec:
    return Spec(Kind.JSON, json.dumps(schema))


def takes(compiled: Compiled, text: str) -> bool:
    tokens = [*CASCADE.vocabulary.ll_tokenizer.tokenize_str(text), 2]
    return compiled.start().validate(tokens) == len(tokens)


def disagreements(schema: Any) -> list[tuple[int, bool]]:
    """Which of `NUMBERS` is taken or refused against the schema, where that is not named."""
    spec = json_spec(schema)
    compiled = CASCADE.compile(spec)
    found = []
    for number in NUMBERS:
        taken = takes(compiled, str(number))
        if taken != is_valid(spec, str(number)) and not (taken and compiled.unenforced):
            found.append((number, taken))
    return found


@pytest.mark.parametrize("word", BOUNDS)
def test_a_bound_is_kept_or_named_and_never_another(word: str) -> None:
    wrong = {
        number: found
        for number in NUMBERS
        if (found := disagreements({"type": "integer", word: number}))
    }

    assert wrong == {}


@pytest.mark.parametrize(
    ("least", "most"),
    [(-(2**63), 2**63 - 1), (0, 2**64 - 1), (-(2**63), -(2**63)), (2**64, 2**64 + 5)],
)
def test_ranges_of_integer_types_compile(least: int, most: int) -> None:
    assert disagreements({"type": "integer", "minimum": least, "maximum": most}) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [-(2**63), "a"]},
        {"const": {"a": [-(2**63)]}},
        {"allOf": [{"type": "integer", "minimum": -1e19}, {"maximum": -1e19}]},
        {"type": "number", "maximum": 2**70},
        {"type": "array", "items": {}, "maxItems": 2**63 - 1},
        {"type": "array", "minItems": 2**63 - 1},
        {"type": "string", "maxLength": 2**70},
        {"type": "object", "maxProperties": 2**64},
    ],
)
def test_what_the_library_cannot_hold_compiles_without_it(schema: Any) -> None:
    CASCADE.compile(json_spec(schema))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.JSON, '{"not": {"const": -9223372036854775808}, "const": -9223372036854775808}'),
        (Kind.GRAMMAR, 'start: %json {"const": -9223372036854775808}'),
        (Kind.GRAMMAR, 'start: "a" | %json\n{"minimum": -1e19, "maximum": -1e19}'),
        (Kind.GRAMMAR, '{"grammars": [{"json_schema": {"const": -9223372036854775808}}]}'),
    ],
)
def test_the_last_look_refuses_what_would_end_the_process(kind: Kind, text: str) -> None:
    with pytest.raises(SpecError, match=r"-2\*\*63"):
        written(Spec(kind, text))


def test_nor_does_a_grammar_end_who_checks_it_or_judges_its_answers() -> None:
    text = 'start: %json {"const": -9223372036854775808}'

    with pytest.raises(SpecError, match=r"-2\*\*63"):
        check_grammar(text, SpecLimits())
    assert is_valid(Spec(Kind.GRAMMAR, text), "1") is None


@pytest.mark.parametrize(
    ("schema", "taken", "named"),
    [
        ({"multipleOf": 5, "minimum": -20}, [-20, -10, 0, 5, 7], True),
        ({"multipleOf": 5, "maximum": -1}, [-5, -10], True),
        ({"multipleOf": 5, "exclusiveMaximum": 0}, [-5], True),
        ({"multipleOf": 5, "minimum": -4}, [0, 5], False),
        ({"multipleOf": 5, "minimum": 0, "maximum": 10}, [0, 5, 10], False),
        ({"multipleOf": 5, "exclusiveMinimum": 0}, [5], False),
        ({"multipleOf": 5}, [0, 5], False),
        ({"multipleOf": 5, "enum": [-5, 7, 10]}, [-5, 10], False),
        ({"multipleOf": 5, "const": -5}, [-5], False),
    ],
)
def test_multiples_below_zero_are_allowed_where_bounds_or_values_ask_for_them(
    schema: Any, taken: list[int], named: bool
) -> None:
    compiled = CASCADE.compile(json_spec({"type": "integer", **schema}))

    found = [number for number in (-20, -10, -5, 0, 5, 7, 10) if takes(compiled, str(number))]

    assert set(taken) <= set(found)
    assert [one.keyword for one in compiled.unenforced] == ["multipleOf"] * named
    if "enum" in schema or "const" in schema:
        assert found == taken


def test_values_that_are_no_multiples_leave_no_answer() -> None:
    with pytest.raises(SpecError, match="no answer can keep this schema"):
        CASCADE.compile(json_spec({"enum": [0.15, 0.25], "multipleOf": 0.1}))


def test_values_of_other_types_are_no_matter_of_multiples() -> None:
    compiled = CASCADE.compile(json_spec({"enum": [0.3, 0.25, "a", True], "multipleOf": 0.1}))

    texts = ("0.3", "0.25", '"a"', "true")
    assert [takes(compiled, text) for text in texts] == [True, False, True, True]


def test_a_number_has_the_digits_of_its_divisor() -> None:
    compiled = CASCADE.compile(json_spec({"type": "number", "multipleOf": 0.25}))

    assert takes(compiled, "0.50")
    assert not takes(compiled, "0.5")
