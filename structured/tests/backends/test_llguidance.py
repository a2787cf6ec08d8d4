"""What llguidance does on hostile grammars, and what is made of it."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structured.tests.compiling import smollm2
from tests.cpu import seconds_of

from inferway_structured.backends import llguidance
from inferway_structured.backends.llguidance import LLGuidance, LLGuidanceCompiled
from inferway_structured.errors import SpecError
from inferway_structured.grammar import Grammar
from inferway_structured.spec import Kind, Options, Spec

VOCABULARY = smollm2()
EOS = VOCABULARY.eos_token_ids[0]
WORDS = {"type": "string", "maxLength": 200, "pattern": r"^(?:\S+\s+){0,19}\S+$"}


def tokens(text: str) -> list[int]:
    return VOCABULARY.ll_tokenizer.tokenize_str(text)


def compiled(kind: Kind, text: str, options: Options | None = None) -> LLGuidanceCompiled:
    return LLGuidance(VOCABULARY).compile(Spec(kind, text, options or Options()))


def mask(grammar: Grammar) -> Any:
    row = np.full(VOCABULARY.num_words, 7, np.int32)
    grammar.fill(row)
    return row


@pytest.fixture
def little_fuel(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little that the regex of WORDS takes too much of it."""
    monkeypatch.setitem(llguidance._LIMITS, "step_lexer_fuel", 1_000)


@pytest.mark.usefixtures("little_fuel")
def test_a_grammar_out_of_fuel_fails_with_its_reason_and_lets_only_the_end_through() -> None:
    grammar = compiled(Kind.JSON, json.dumps(WORDS)).start()
    grammar.accept(tokens('"ab'))

    row = mask(grammar)

    assert grammar.failure == "a regular expression of the grammar takes too long at this point"
    assert np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() == [EOS]
    assert not grammar.accept([EOS])


@pytest.mark.usefixtures("little_fuel")
def test_a_grammar_out_of_fuel_takes_none_with_it() -> None:
    made = compiled(Kind.JSON, json.dumps({"anyOf": [{"type": "integer"}, WORDS]}))
    before, hungry = made.start(), made.start()
    assert before.accept(tokens("12"))
    hungry.accept(tokens('"ab'))
    mask(hungry)
    assert hungry.failure is not None

    after = made.start()

    for grammar in (before, after):
        mask(grammar)
        assert grammar.accept([*tokens("34"), EOS])
        assert grammar.terminated
        assert grammar.failure is None


@pytest.mark.usefixtures("little_fuel")
def test_who_has_spent_the_fuel_on_a_mask_does_not_try_again() -> None:
    made = compiled(Kind.JSON, json.dumps({"anyOf": [{"type": "integer"}, WORDS]}))
    hungry = made.start()
    lexer = hungry.lexer
    assert hungry.accept(tokens('"'))

    mask(hungry)

    assert hungry.failure == "a regular expression of the grammar takes too long at this point"
    assert hungry.lexer is lexer
    assert lexer.is_spoiled


@pytest.mark.usefixtures("little_fuel")
def test_of_many_only_the_hungry_one_fails() -> None:
    made = compiled(Kind.JSON, json.dumps({"anyOf": [{"type": "integer"}, WORDS]}))
    grammars = [made.start() for _ in range(4)]
    for at, grammar in enumerate(grammars):
        assert grammar.accept(tokens('"' if at == 1 else "1"))
    rows = np.zeros((4, VOCABULARY.num_words), np.int32)

    for row, grammar in zip(rows, grammars, strict=True):
        grammar.fill(row)

    assert [grammar.failure is None for grammar in grammars] == [True, False, True, True]
    assert all(grammar.accept(tokens("2")) for grammar in grammars if grammar.failure is None)


def test_a_lexer_that_has_grown_is_left_to_those_who_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llguidance, "_TOKENS_PER_LEXER", 3)
    made = compiled(Kind.JSON, '{"type":"string"}')
    first = made.start()
    assert first.accept(tokens('"one two three'))

    second = made.start()

    assert second.lexer is not first.lexer
    for grammar, rest in ((first, ' four"'), (second, '"four"')):
        mask(grammar)
        assert grammar.accept([*tokens(rest), EOS])


def test_answers_outlive_a_lexer_that_has_grown_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llguidance._LIMITS, "max_lexer_states", 1_000)
    made = compiled(Kind.JSON, json.dumps(WORDS))
    answers = [made.start() for _ in range(12)]
    first = answers[0].lexer

    for number, grammar in enumerate(answers):
        for token in tokens(f'"a word or {number} of them'):
            mask(grammar)
            assert grammar.accept([token])

    assert first.is_spoiled, "or this test shows nothing"
    assert not any(grammar.failure for grammar in answers)


HOSTILE = {
    "exponential states": Spec(Kind.REGEX, "(a|b)*a(a|b){12}"),
    "any then exactly": Spec(Kind.REGEX, ".*a.{14}"),
    "nested repeats": Spec(Kind.REGEX, "((a{1,50}){1,50}){1,50}"),
    "long class": Spec(Kind.REGEX, "[a-z]{1,5000}"),
    "very long any": Spec(Kind.REGEX, ".{1,50000}"),
    "words": Spec(Kind.REGEX, r"\w{1,300}"),
    "long string": Spec(Kind.JSON, '{"type":"string","maxLength":100000}'),
    "email twice": Spec(
        Kind.JSON,
        json.dumps(
            {
                "type": "string",
                "format": "email",
                "pattern": r"^\w+([\.-]?\w+)*@\w+([\.-]?\w+)*(\.\w{2,})+$",
                "minLength": 6,
            }
        ),
    ),
    "one or other": Spec(
        Kind.JSON,
        json.dumps({"type": "object", "properties": {f"p{n}": {} for n in range(200)}}),
    ),
}


@pytest.mark.parametrize("spec", HOSTILE.values(), ids=HOSTILE)
def test_nothing_hostile_takes_a_thread_for_long(spec: Spec) -> None:
    def follow() -> None:
        grammar = LLGuidance(VOCABULARY).compile(spec).start()
        for token in tokens("ab" * 40):
            at = time.thread_time()
            mask(grammar)
            steps.append(time.thread_time() - at)
            if not grammar.validate([token]) or not grammar.accept([token]):
                break

    steps = [0.0]
    assert seconds_of(follow, SpecError) < 2.0
    assert max(steps) < 0.2  # the benchmark has the figure


def test_forced_tokens_are_the_only_way_on() -> None:
    schema = '{"type":"object","properties":{"name":{"const":"x"}},"required":["name"]}'
    spec = compiled(Kind.JSON, schema, Options(any_whitespace=False))
    grammar = spec.start()
    grammar.accept(tokens('{"'))

    forced = list(grammar.forced())

    assert forced
    assert grammar.validate(forced) == len(forced)
    for token in forced:
        allowed = np.flatnonzero(np.unpackbits(mask(grammar).view(np.uint8), bitorder="little"))
        text = VOCABULARY.token_bytes[token] or b""
        assert all(text.startswith(VOCABULARY.token_bytes[one] or b"?") for one in allowed)
        assert grammar.accept([token])


def test_what_the_library_refuses_is_said_without_its_context() -> None:
    with pytest.raises(SpecError, match="not"):
        compiled(Kind.JSON, '{"not": {}}')


_STEPS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(_STEPS)
def test_any_walk_with_steps_back_equals_never_having_gone(steps: list[tuple[int, int]]) -> None:
    made = compiled(Kind.JSON, '{"type":"array","items":{"enum":["a","ab",1,null]},"maxItems":4}')
    answer = [*tokens('["ab", 1, null, "a"]'), EOS, EOS]
    grammar, at = made.start(), 0
    for ahead, back in steps:
        assert grammar.accept(answer[at : at + ahead])
        at = min(at + ahead, len(answer))
        grammar.rollback(min(back, at))
        at -= min(back, at)
        straight = made.start()
        assert straight.accept(answer[:at])

        assert grammar.terminated == straight.terminated
        assert mask(grammar).tobytes() == mask(straight).tobytes()
        assert grammar.validate(answer[at:]) == straight.validate(answer[at:])


@pytest.mark.parametrize("common", ["", "item number "])
def test_ten_thousand_choices_that_begin_alike_are_kept(common: str) -> None:
    words = [f"{common}{number}" for number in range(10_000)]
    grammar = compiled(Kind.CHOICE, json.dumps(words)).start()

    for token in tokens(words[-1]):
        mask(grammar)
        assert grammar.accept([token]), grammar.failure
    assert grammar.accept([EOS])
    assert grammar.terminated


def test_a_grammar_that_fails_at_its_first_token_is_refused() -> None:
    text = "start: A\nA: /(a|b)*a(a|b){20}/ & ~/.*aba.*/ & /.*b.{15}/"

    with pytest.raises(SpecError, match="a regular expression of the grammar takes too long"):
        compiled(Kind.GRAMMAR, text)
