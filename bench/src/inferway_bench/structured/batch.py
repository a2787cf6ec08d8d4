"""The masks of many answers in one step:

`python -m inferway_bench.structured.batch WHOSE MODEL ROWS REPEATS` prints milliseconds.
All answers are inside a string of bounded length."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from inferway_bench.structured.systems import vocabulary_of

_SCHEMA = '{"type":"object","properties":{"a":{"type":"string","maxLength":80}},"required":["a"]}'
_BEGUN = '{"a": "some words'


def main() -> None:
    whose, model, rows, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    ways = {"ours": _ours, "xgrammar": _xgrammar}[whose](model, rows)
    print(json.dumps({name: _median_ms(step, repeats) for name, step in ways.items()}))


def _median_ms(step: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def _ours(model: str, rows: int) -> dict[str, Callable[[], Any]]:
    from inferway_structured.backends.cascade import Cascade
    from inferway_structured.spec import Kind, Spec

    vocabulary = vocabulary_of(model)
    compiled = Cascade(vocabulary).compile(Spec(Kind.JSON, _SCHEMA))
    begun = vocabulary.ll_tokenizer.tokenize_str(_BEGUN)
    grammars = [compiled.start() for _ in range(rows)]
    for grammar in grammars:
        grammar.accept(begun)
    bitmask = np.zeros((rows, vocabulary.num_words), np.int32)

    def each() -> None:
        for row, grammar in enumerate(grammars):
            grammar.fill(bitmask[row])

    return {"row by row": each}


def _xgrammar(model: str, rows: int) -> dict[str, Callable[[], Any]]:
    import xgrammar

    vocabulary = vocabulary_of(model)
    compiler = xgrammar.GrammarCompiler(vocabulary.tokenizer_info, max_threads=2)
    made = compiler.compile_json_schema(_SCHEMA)
    begun = vocabulary.ll_tokenizer.tokenize_str(_BEGUN)
    matchers = [xgrammar.GrammarMatcher(made) for _ in range(rows)]
    for matcher in matchers:
        assert all(matcher.accept_token(token) for token in begun)
    bitmask = xgrammar.allocate_token_bitmask(rows, vocabulary.size)
    many = xgrammar.BatchGrammarMatcher(2)

    def each() -> None:
        for row, matcher in enumerate(matchers):
            matcher.fill_next_token_bitmask(bitmask, row)

    return {
        "row by row": each,
        "one call": lambda: many.batch_fill_next_token_bitmask(matchers, bitmask),
    }


if __name__ == "__main__":
    main()
