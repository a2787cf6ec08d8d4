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
from inferway_structured.validate.validator import is_quick, is_valid


@pytest.fixture(scope="module")
def library() -> Iterator[GrammarLibrary]:
    library = GrammarLibrary(PATIENT)
    yield library
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

CASES: list[tuple[Spec, str, bool | None]] = [
    (NAME, '{"a":"ele"}', True),
    (NAME, ' {"a": "ele",\n "b": 1} ', True),
    (NAME, '{"a":"elephant"}', False),
    (NAME, "{}", False),
    (NAME, "{", False),
    (NAME, "", False),
    (NAME, '{"a":NaN}', False),
    (NAME, '{"a":"b"} and more', False),
    (NAME, '{"a":1e999}', None),
    (NAME, '{"a":' + "9" * 5000 + "}", None),
    (NAME, '{"a":"\ud800"}', None),
    (of(True), "3", True),
    (of(False), "3", False),
    (of({"maximum": 10**30}), "1" + "0" * 30, True),
    (of({"maximum": 10**30}), "1" + "0" * 29 + "1" + "0", False),
    (of({"type": "integer"}), "1.0", True),
    (of({"uniqueItems": True}), "[1,1.0]", False),
    (of({"format": "date"}), '"2026-02-30"', False),
    (of({"pattern": "^(?!a)"}), '"ab"', False),
    (of({"pattern": "^(?!a)"}), '"ba"', True),
    (of({"properties": {"a": {}}}, CLOSED), '{"a":1}', True),
    (
        of({"properties": {"a": {}}}, CLOSED),
        '{"b":1}',
        False,
    ),
    (Spec(Kind.JSON_OBJECT, ""), '{"a":[]}', True),
    (Spec(Kind.JSON_OBJECT, ""), "[]", False),
    (Spec(Kind.JSON_OBJECT, ""), "{]", False),
    (Spec(Kind.CHOICE, '["a","b c"]'), "b c", True),
    (Spec(Kind.CHOICE, '["a","b c"]'), "b", False),
    (Spec(Kind.REGEX, "a+b"), "aab", True),
    (Spec(Kind.REGEX, "a+b"), "aa", False),
    (Spec(Kind.REGEX, "a+b"), "aabc", False),
    (Spec(Kind.REGEX, "a+b"), "xaab", False),
    (Spec(Kind.REGEX, "é{2}"), "éé", True),
    (Spec(Kind.REGEX, ""), "", True),
    (TAG, "no call", True),
    (TAG, 'so: <f=x>3</f> and <f=y> "ab" </f>.', True),
    (TAG, '<f=x>"3"</f>', False),
    (TAG, '<f=y>"a"</f>', False),
    (TAG, "<f=x>3", False),
    (TAG, "<f=x>{", False),
    (TAG, "<f=z>3</f>", False),
    (Spec(Kind.STRUCTURAL_TAG, '{"format":{"type":"any_text"}}'), "x", None),
]


@pytest.mark.parametrize(("spec", "answer", "expected"), CASES)
def test_a_text_keeps_its_spec_or_not(spec: Spec, answer: str, expected: bool | None) -> None:
    assert is_quick(spec, answer)
    assert is_valid(spec, answer) is expected


LARK = Spec(Kind.GRAMMAR, 'start: "a" num\nnum: /[0-9]+/\n')
EBNF = Spec(Kind.GRAMMAR, 'root ::= "a" num\nnum ::= [0-9]+\n')
OBJECTS = of({"items": {"enum": [{"a": i} for i in range(3000)]}})


@pytest.mark.parametrize(
    ("spec", "answer", "expected"),
    [
        (LARK, "a12", True),
        (LARK, "b", False),
        (LARK, "a", False),
        (EBNF, "a12", True),
        (EBNF, "a12b", False),
        (Spec(Kind.REGEX, "(ab)*c"), "ab" * 100_000 + "c", True),
        (OBJECTS, json.dumps([{"a": 2999}] * 100), True),
        (of({"type": "array"}), json.dumps([0] * 200_000), True),
        (of({"type": "array"}), "0" * (9 << 20), None),
    ],
)
def test_what_may_take_long_is_held_in_the_helper(
    library: GrammarLibrary, spec: Spec, answer: str, expected: bool | None
) -> None:
    assert not is_quick(spec, answer)
    assert library.is_valid(spec, answer) is expected


def test_quick_ones_are_held_here(library: GrammarLibrary) -> None:
    assert library.is_valid(NAME, '{"a":"ele"}') is True


def test_a_text_that_takes_the_helper_too_long_is_unknown(library: GrammarLibrary) -> None:
    spec = of({"items": {"enum": [{"a": i} for i in range(10_000)]}})

    assert library.is_valid(spec, json.dumps([{"a": 9_999}] * 20_000)) is None
    assert library.is_valid(LARK, "a1") is True, "and the helper is there again"


@given(st.text(max_size=200))
def test_any_text_has_a_is_valid(answer: str) -> None:
    for spec in (NAME, TAG, Spec(Kind.REGEX, "a+b"), Spec(Kind.JSON_OBJECT, "")):
        assert is_valid(spec, answer) in (True, False, None)
