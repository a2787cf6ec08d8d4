"""One call for all rows is the same as each grammar by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.structured.backends.contract import CASES
from tests.structured.compiling import smollm2

from inferway.structured.backends.fill import Filler, Rows
from inferway.structured.backends.llguidance import LLGuidance
from inferway.structured.backends.outlines_core import OutlinesCore
from inferway.structured.grammar import Compiled, Grammar

VOCABULARY = smollm2()
EOS = VOCABULARY.eos_token_ids[0]
FILLER = Filler(2)
EVERYTHING = b"\xff" * 4 * VOCABULARY.num_words


def tokens(text: str) -> list[int]:
    return VOCABULARY.ll_tokenizer.tokenize_str(text)


def json_grammar() -> Compiled:
    return LLGuidance(VOCABULARY).compile(CASES["json"].spec)


def bitmask(num_rows: int) -> Any:
    return np.full((num_rows, VOCABULARY.num_words), 7, np.int32)


def alone(grammar: Grammar) -> bytes:
    row = np.full(VOCABULARY.num_words, 7, np.int32)
    grammar.fill(row)
    return row.tobytes()


def test_rows_of_all_libraries_and_states_in_one_call() -> None:
    made = json_grammar()
    fresh, begun, ended, failed = (made.start(frozenset({9})) for _ in range(4))
    begun.accept(tokens('{"a": "b'))
    ended.accept([*tokens(CASES["json"].texts[0]), EOS])
    failed.accept(tokens("~"))
    other = OutlinesCore(VOCABULARY).compile(CASES["row"].spec).start()
    other.accept(tokens("12"))
    grammars: list[Grammar] = [begun, fresh, ended, failed, other]
    rows = bitmask(len(grammars) + 1)

    FILLER.fill([Rows(grammar, at) for at, grammar in enumerate(grammars)], rows)

    assert [row.tobytes() for row in rows[:-1]] == list(map(alone, grammars))
    assert set(rows[-1].tolist()) == {7}  # nobody's


def test_rows_behind_drafts_are_those_after_each_draft() -> None:
    made = json_grammar()
    answer = tokens(CASES["json"].texts[0])
    requests: list[Rows] = []
    expected: list[bytes] = []
    rows = bitmask(3 * (len(answer) + 1))
    for begun in (0, 3, 5):
        grammar = made.start(frozenset({9}))
        grammar.accept(answer[:begun])
        requests.append(Rows(grammar, len(expected), answer[begun:]))
        for num in range(begun, len(answer) + 1):
            straight = made.start(frozenset({9}))
            straight.accept(answer[:num])
            expected.append(alone(straight))
    before = [alone(request.grammar) for request in requests]

    FILLER.fill(requests, rows)

    assert [row.tobytes() for row in rows[: len(expected)]] == expected
    assert [alone(request.grammar) for request in requests] == before


def test_rows_behind_the_end_let_everything_through() -> None:
    grammar = json_grammar().start()
    answer = tokens(CASES["json"].texts[0])
    grammar.accept(answer)
    outlined = OutlinesCore(VOCABULARY).compile(CASES["words"].spec).start()
    outlined.accept(tokens("yes"))
    rows = bitmask(6)

    FILLER.fill([Rows(grammar, 0, [EOS, 5]), Rows(outlined, 3, [EOS, 5])], rows)

    assert [row.tobytes() for row in rows[[2, 5]]] == [EVERYTHING] * 2
    assert not grammar.terminated
    assert not outlined.terminated


def test_nothing_to_fill_is_no_call() -> None:
    rows = bitmask(1)

    FILLER.fill([], rows)

    assert set(rows[0].tolist()) == {7}
