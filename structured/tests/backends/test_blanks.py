"""Blanks between the tokens of JSON, with a real vocabulary and library."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structured.tests.compiling import smollm2

from inferway_structured.backends.blanks import START, Place, after
from inferway_structured.backends.llguidance import LLGuidance
from inferway_structured.grammar import Grammar
from inferway_structured.spec import Kind, Options, Spec

VOCABULARY = smollm2()
EOS = VOCABULARY.eos_token_ids[0]
DEEP: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "s": {}},
    "required": ["a", "s"],
    "additionalProperties": False,
}
SHAPES = [Spec(Kind.JSON, json.dumps(DEEP)), Spec(Kind.JSON_OBJECT, "")]
SAMPLE = {"a": [1, 2], "s": {"t": [{"u": [[{"v": "  a   b\\n "}]]}], "w": None}}


def tokens(text: str) -> list[int]:
    return VOCABULARY.ll_tokenizer.tokenize_str(text)


def started(spec: Spec) -> Grammar:
    return LLGuidance(VOCABULARY).compile(spec).start()


def allowed(grammar: Grammar) -> set[int]:
    row = np.full(VOCABULARY.num_words, 7, np.int32)
    grammar.fill(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def blank(token: int) -> bool:
    written = VOCABULARY.token_bytes[token]
    return written is not None and written.isspace()


@pytest.mark.parametrize("spec", SHAPES, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("one", [" ", "\n", "\t"])
def test_a_model_that_prefers_blanks_comes_to_the_end(spec: Spec, one: str) -> None:
    grammar, answer, place = started(spec), list[int](), START
    (preferred,) = tokens(one)
    rest = tokens(json.dumps({"a": [1], "s": "x"}, separators=(",", ":")))
    while rest:
        may = allowed(grammar)
        wants = preferred in may and not place.in_string
        token = preferred if wants else rest.pop(0)
        assert token in may
        assert grammar.accept([token])
        answer.append(token)
        place = VOCABULARY.blanks.after(place, token)

    runs = [len(list(run)) for is_blank, run in groupby(answer, blank) if is_blank]
    assert max(runs) <= 4 + 4 * 2
    assert EOS in allowed(grammar)


CALL = {
    "type": "tag",
    "begin": "<call>",
    "content": {"type": "json_schema", "json_schema": DEEP},
    "end": "</call>",
}
CALLS = Spec(
    Kind.STRUCTURAL_TAG,
    json.dumps(
        {
            "type": "structural_tag",
            "format": {"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL]},
        }
    ),
)
PARTS = {"": True, "<call>{": False, '"a":[1': False, '],"s":"': True, 'x"': False}
PARTS |= {"}</call>": True}


@pytest.mark.parametrize("one", [" ", "\n", "\t"])
def test_text_and_strings_in_tags_have_any_blanks_and_json_has_few(one: str) -> None:
    """`PARTS`: what comes one after another, and whether any blanks may follow."""
    grammar = started(CALLS)
    (preferred,) = tokens(one)
    for part, is_text in PARTS.items():
        for token in tokens(part):
            assert token in allowed(grammar), part
            assert grammar.accept([token]), part
        num_blanks = 0
        while preferred in allowed(grammar) and num_blanks < 300:
            assert grammar.accept([preferred])
            num_blanks += 1
        if one == " " or not part.endswith(':"'):  # no string has the others in it
            assert num_blanks == (300 if is_text else 260), part
    assert EOS in allowed(grammar)


@pytest.mark.parametrize("spec", SHAPES, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
def test_indented_answers_come_as_they_are(spec: Spec, indent: int | str | None) -> None:
    grammar = started(spec)
    answer = tokens(json.dumps(SAMPLE, indent=indent))

    assert grammar.validate([*answer, EOS]) == len(answer) + 1
    for token in answer:
        assert token in allowed(grammar)
        assert grammar.accept([token])
    assert EOS in allowed(grammar)


def test_a_string_holds_as_many_blanks_as_it_likes() -> None:
    answer = tokens(json.dumps({"a": [], "s": " " * 300 + "\\"}))

    assert started(SHAPES[0]).validate([*answer, EOS]) == len(answer) + 1


def test_drafts_and_steps_back_are_counted() -> None:
    grammar = started(SHAPES[0])
    (space,) = tokens(" ")
    grammar.accept(tokens("{"))

    assert grammar.validate([space] * 20) == 8
    grammar.accept([space] * 8)
    assert not any(map(blank, allowed(grammar)))
    grammar.rollback(1)
    assert space in allowed(grammar)
    assert grammar.validate([space, space]) == 1


def test_no_blanks_at_all_where_the_request_says_so() -> None:
    grammar = started(Spec(Kind.JSON, json.dumps(DEEP), Options(any_whitespace=False)))
    grammar.accept(tokens("{"))

    assert not any(map(blank, allowed(grammar)))


@given(st.recursive(st.text() | st.integers() | st.none(), lambda inside: st.lists(inside)))
def test_the_place_in_a_text_does_not_depend_on_its_cuts(value: object) -> None:
    text = json.dumps(value, indent=3, ensure_ascii=False).encode()
    place = START
    for byte in text:
        place = after(place, bytes([byte]))

    assert place == after(START, text)
    assert place._replace(num_blanks=0) == Place()
