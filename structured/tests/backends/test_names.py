"""Names of properties come once in an object, with a real vocabulary and library."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structured.tests.compiling import smollm2

from inferway_structured.backends.answer_state import allowed, forbid
from inferway_structured.backends.blanks import may_repeat
from inferway_structured.backends.cascade import Cascade
from inferway_structured.grammar import Grammar
from inferway_structured.spec import Kind, Spec

VOCABULARY = smollm2()
CASCADE = Cascade(VOCABULARY)
EOS = VOCABULARY.eos_token_ids[0]
FREE: dict[str, Any] = {
    "type": "object",
    "patternProperties": {"^[a-z ]+$": {"const": 1}},
    "additionalProperties": False,
}


def tokens(text: str) -> list[int]:
    return VOCABULARY.ll_tokenizer.tokenize_str(text)


def started(schema: Any) -> Grammar:
    return CASCADE.compile(Spec(Kind.JSON, json.dumps(schema))).start()


def written(grammar: Grammar, text: str) -> int:
    """Return how much of a text the masks let come, in tokens."""
    row = np.zeros(VOCABULARY.num_words, np.int32)
    for at, token in enumerate(tokens(text)):
        grammar.fill(row)
        if not allowed(row, token):
            return at
        assert grammar.accept([token])
    return len(tokens(text))


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1, ',
        '{"name of it": 1, "b": 1, "name of it": 1',
        '{"ab": 1, "a": 1, "ab": 1',
    ],
)
def test_a_name_does_not_come_again(text: str) -> None:
    grammar = started(FREE)

    num = written(grammar, text)

    again = text.rindex(text[1 : text.index(":") - 1])
    before = VOCABULARY.ll_tokenizer.decode_str(tokens(text)[:num])
    assert again < len(before) < again + text.index(":") - 1
    assert grammar.validate(tokens(text)[num:]) == 0


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (FREE, {"a": 1, "ab": 1, "b": 1}),
        ({"type": "object"}, {"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": "a"}, "a", "a"]}),
        ({"type": "object"}, {'a"b': 1, 'a\\"b': 2, "a,{": '"a', "": {"": ""}}),
    ],
)
def test_the_same_name_may_come_in_other_objects(schema: Any, value: Any) -> None:
    text = json.dumps(value)
    grammar = started(schema)

    assert grammar.validate([*tokens(text), EOS]) == len(tokens(text)) + 1
    assert written(grammar, text) == len(tokens(text))


def test_a_model_that_prefers_one_name_comes_to_the_end() -> None:
    grammar = started(FREE)
    row = np.zeros(VOCABULARY.num_words, np.int32)
    first = tokens('{"a": 1, "a')
    preferred = [EOS, *(token for char in '}":1b' for token in tokens(char))]
    answer: list[int] = []
    while EOS not in answer and len(answer) < 50:
        grammar.fill(row)
        begun = first[len(answer) : len(answer) + 1]
        token = next(one for one in [*begun, *preferred] if allowed(row, one))
        assert grammar.accept([token])
        answer.append(token)

    written_names = list(json.loads(VOCABULARY.ll_tokenizer.decode_str(answer[:-1])))
    assert written_names[0] == "a"
    assert len(written_names) == 2


def test_what_is_taken_back_may_come_again() -> None:
    grammar = started(FREE)
    assert grammar.accept(tokens('{"a": 1'))

    more = tokens(', "b": 1')
    assert grammar.accept(more)
    grammar.rollback(len(more))

    assert written(grammar, ', "b": 1') == len(more)


def test_few_names_are_said_as_properties() -> None:
    schema = {"patternProperties": {"^(a|b)$": {"const": 1}}, "additionalProperties": False}
    grammar = started({"type": "object", **schema})

    assert grammar.accept(tokens('{"a": 1, '))
    assert grammar.validate(tokens('"a": 1}')) < 2
    assert written(grammar, '"b": 1}') == len(tokens('"b": 1}'))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "properties": {"a": {"type": "null"}}}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": True}, "additionalProperties": False}, True),
        ({"type": "object", "patternProperties": {}, "additionalProperties": False}, True),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "null"}},
                "additionalProperties": False,
            },
            False,
        ),
        ({"type": "array", "items": {"type": "string"}}, False),
    ],
)
def test_where_all_names_are_listed_nothing_is_looked_at(schema: Any, expected: bool) -> None:
    assert may_repeat(json.dumps(schema, separators=(",", ":"))) is expected


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2), st.integers(0, 63))
def test_a_bit_is_taken_away_and_no_other(words: list[int], token: int) -> None:
    row = np.array(words, np.int32)

    forbid(row, token)

    assert not allowed(row, token)
    for other in set(range(64)) - {token}:
        assert allowed(row, other) == allowed(np.array(words, np.int32), other)
