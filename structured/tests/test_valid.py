from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structured.tests.patient import PATIENT

from inferway_structured.library import GrammarLibrary
from inferway_structured.spec import Kind, Options, Spec
from inferway_structured.validate.validator import (
    UNKNOWN,
    VALID,
    Validator,
    Validity,
    is_quick,
    verdict,
)


@pytest.fixture(scope="module")
def validator() -> Iterator[Validator]:
    library = GrammarLibrary(PATIENT)
    yield Validator(library.helpers["structured"])
    library.close()


def of(schema: Any, options: Options | None = None) -> Spec:
    return Spec(Kind.JSON, json.dumps(schema), options or Options())


NAME = of({"properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]})
CLOSED = Options(additional_properties=False)
TAG = Spec(
    Kind.STRUCTURAL_TAG,
    json.dumps(
        {
            "structures": [
                {"begin": "<f=x>", "schema": {"type": "integer"}, "end": "</f>"},
                {"begin": "<f=y>", "schema": {"minLength": 2, "type": "string"}, "end": "</f>"},
            ],
            "triggers": ["<f="],
        }
    ),
)

CASES: list[tuple[Spec, str, Validity]] = [
    (NAME, '{"a":"ele"}', VALID),
    (NAME, ' {"a": "ele",\n "b": 1} ', VALID),
    (NAME, '{"a":"elephant"}', Validity(False, "/properties/a/maxLength", "maxLength")),
    (NAME, "{}", Validity(False, "/required", "required")),
    (NAME, "{", Validity(False, "", "json")),
    (NAME, "", Validity(False, "", "json")),
    (NAME, '{"a":NaN}', Validity(False, "", "json")),
    (NAME, '{"a":"b"} and more', Validity(False, "", "json")),
    (NAME, '{"a":1e999}', UNKNOWN),
    (NAME, '{"a":' + "9" * 5000 + "}", UNKNOWN),
    (NAME, '{"a":"\ud800"}', UNKNOWN),
    (of(True), "3", VALID),
    (of(False), "3", Validity(False, "", None)),
    (of({"maximum": 10**30}), "1" + "0" * 30, VALID),
    (of({"maximum": 10**30}), "1" + "0" * 29 + "1" + "0", Validity(False, "/maximum", "maximum")),
    (of({"type": "integer"}), "1.0", VALID),
    (of({"uniqueItems": True}), "[1,1.0]", Validity(False, "/uniqueItems", "uniqueItems")),
    (of({"format": "date"}), '"2026-02-30"', Validity(False, "/format", "format")),
    (of({"pattern": "^(?!a)"}), '"ab"', Validity(False, "/pattern", "pattern")),
    (of({"pattern": "^(?!a)"}), '"ba"', VALID),
    (of({"properties": {"a": {}}}, CLOSED), '{"a":1}', VALID),
    (
        of({"properties": {"a": {}}}, CLOSED),
        '{"b":1}',
        Validity(False, "/additionalProperties", "additionalProperties"),
    ),
    (Spec(Kind.JSON_OBJECT, ""), '{"a":[]}', VALID),
    (Spec(Kind.JSON_OBJECT, ""), "[]", Validity(False, "", "type")),
    (Spec(Kind.JSON_OBJECT, ""), "{]", Validity(False, "", "json")),
    (Spec(Kind.CHOICE, '["a","b c"]'), "b c", VALID),
    (Spec(Kind.CHOICE, '["a","b c"]'), "b", Validity(False, "", "choice")),
    (Spec(Kind.REGEX, "a+b"), "aab", VALID),
    (Spec(Kind.REGEX, "a+b"), "aa", Validity(False, "", "regex")),
    (Spec(Kind.REGEX, "a+b"), "aabc", Validity(False, "", "regex")),
    (Spec(Kind.REGEX, "a+b"), "xaab", Validity(False, "", "regex")),
    (Spec(Kind.REGEX, "é{2}"), "éé", VALID),
    (Spec(Kind.REGEX, ""), "", VALID),
    (TAG, "no call", VALID),
    (TAG, 'so: <f=x>3</f> and <f=y> "ab" </f>.', VALID),
    (TAG, '<f=x>"3"</f>', Validity(False, "/structures/0/schema/type", "type")),
    (TAG, '<f=y>"a"</f>', Validity(False, "/structures/1/schema/minLength", "minLength")),
    (TAG, "<f=x>3", Validity(False, "/structures/0", "end")),
    (TAG, "<f=x>{", Validity(False, "/structures/0/schema", "json")),
    (TAG, "<f=z>3</f>", Validity(False, "/structures", "begin")),
    (Spec(Kind.STRUCTURAL_TAG, '{"format":{"type":"any_text"}}'), "x", UNKNOWN),
]


@pytest.mark.parametrize(("spec", "answer", "expected"), CASES)
def test_a_text_keeps_its_spec_or_not(spec: Spec, answer: str, expected: Validity) -> None:
    assert is_quick(spec, answer)
    assert verdict(spec, answer) == expected


LARK = Spec(Kind.GRAMMAR, 'start: "a" num\nnum: /[0-9]+/\n')
EBNF = Spec(Kind.GRAMMAR, 'root ::= "a" num\nnum ::= [0-9]+\n')
OBJECTS = of({"items": {"enum": [{"a": i} for i in range(3000)]}})


@pytest.mark.parametrize(
    ("spec", "answer", "expected"),
    [
        (LARK, "a12", VALID),
        (LARK, "b", Validity(False, "", "grammar")),
        (LARK, "a", Validity(False, "", "grammar")),
        (EBNF, "a12", VALID),
        (EBNF, "a12b", Validity(False, "", "grammar")),
        (Spec(Kind.REGEX, "(ab)*c"), "ab" * 100_000 + "c", VALID),
        (OBJECTS, json.dumps([{"a": 2999}] * 100), VALID),
        (of({"type": "array"}), json.dumps([0] * 200_000), VALID),
        (of({"type": "array"}), "0" * (9 << 20), UNKNOWN),
    ],
)
def test_what_may_take_long_is_held_in_the_helper(
    validator: Validator, spec: Spec, answer: str, expected: Validity
) -> None:
    assert not is_quick(spec, answer)
    assert validator.verdict(spec, answer) == expected


def test_the_validator_takes_quick_ones_itself(validator: Validator) -> None:
    assert validator.verdict(NAME, '{"a":"ele"}') == VALID


def test_a_text_that_takes_the_helper_too_long_is_unknown(validator: Validator) -> None:
    spec = of({"items": {"enum": [{"a": i} for i in range(10_000)]}})

    assert validator.verdict(spec, json.dumps([{"a": 9_999}] * 20_000)) == UNKNOWN
    assert validator.verdict(LARK, "a1") == VALID, "and the helper is there again"


@given(st.text(max_size=200))
def test_any_text_has_a_verdict(answer: str) -> None:
    for spec in (NAME, TAG, Spec(Kind.REGEX, "a+b"), Spec(Kind.JSON_OBJECT, "")):
        assert verdict(spec, answer).valid in (True, False, None)
