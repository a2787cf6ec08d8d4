from __future__ import annotations

import pytest
from structured.tests.vllm.letters import END, Letters, Tensor

from inferway_structured.vllm.adapter import RequestGrammar


def of(letters: Letters) -> tuple[RequestGrammar, list[tuple[str, str]]]:
    """And the requests that it has ended."""
    ended: list[tuple[str, str]] = []

    def end(request_id: str, why: str) -> None:
        ended.append((request_id, why))

    return RequestGrammar(letters, "letters", [END], end), ended


def test_what_the_grammar_takes_is_taken() -> None:
    grammar, ended = of(Letters())

    assert grammar.accept_tokens("r", [1, 2])
    assert grammar.validate_tokens([3, 40, 4]) == [3]
    assert list(grammar.forced()) == [1, 2]
    assert ended == []


def test_a_token_that_may_not_come_ends_the_request_and_is_counted() -> None:
    grammar, ended = of(Letters())

    assert not grammar.accept_tokens("r", [40])
    assert ended == [("r", "the engine chose a token that the grammar does not allow")]


def test_a_row_is_filled_in_its_place() -> None:
    grammar, _ = of(Letters())
    bitmask = Tensor.of(2)

    grammar.fill_bitmask(bitmask, 1)

    assert bitmask.words.tolist() == [[77, 77], [0, 0]]


@pytest.mark.parametrize("call", ["accept", "validate", "rollback", "fill", "forced"])
def test_an_exception_never_leaves_it_and_ends_this_request_only(call: str) -> None:
    grammar, ended = of(Letters(raises=call))
    bitmask = Tensor.of(2)
    calls = {
        "accept": lambda: grammar.accept_tokens("r", [1]),
        "validate": lambda: grammar.validate_tokens([1]),
        "rollback": lambda: grammar.rollback(1),
        "fill": lambda: grammar.fill_bitmask(bitmask, 0),
        "forced": grammar.forced,
    }

    calls[call]()
    grammar.fill_bitmask(bitmask, 0)

    assert bitmask.words[0].tolist() == [0, -(2**31)]  # the end alone
    assert grammar.failure == "letters raised RuntimeError"
    assert grammar.validate_tokens([1]) == []
    assert not grammar.forced()
    assert not grammar.accept_tokens("r", [END])
    assert ended[-1] == ("r", "letters raised RuntimeError")


def test_a_grammar_that_has_failed_by_itself_ends_its_request_with_its_reason() -> None:
    grammar, ended = of(Letters(failure="out of fuel"))

    assert not grammar.accept_tokens("r", [END])
    assert ended == [("r", "out of fuel")]
