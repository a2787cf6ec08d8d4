"""What every grammar promises, as checks that need no pytest: for xgrammar, `main` runs them under
the Python of an engine's environment, where it is installed.

`texts` are answers that the spec takes, whole.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from inferway_structured.backends.vocabulary import Vocabulary
from inferway_structured.backends.xgrammar_schemas import said_for_xgrammar
from inferway_structured.grammar import Compiled, Grammar
from inferway_structured.spec import Kind, Spec


class Case(NamedTuple):
    spec: Spec
    texts: Sequence[str]
    not_texts: Sequence[str]


SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"string","maxLength":3},"n":{"type":"integer"}},'
    '"required":["a","n"],"additionalProperties":false}'
)
CASES = {
    "row": Case(Spec(Kind.REGEX, "[0-9]{2,4}-[a-f]+"), ["12-a", "1234-abf"], ["1", "12-", "x"]),
    "words": Case(Spec(Kind.CHOICE, '["yes","no"]'), ["yes", "no"], ["y", "nope"]),
    "regex": Case(
        Spec(Kind.REGEX, "[0-9]{2,4}(?:-[a-f]+)?"), ["12", "1234-abf"], ["1", "12-", "x"]
    ),
    "choice": Case(
        Spec(Kind.CHOICE, '["yes","no","yes and no"]'), ["yes", "yes and no"], ["y", "n"]
    ),
    "json": Case(Spec(Kind.JSON, SCHEMA), ['{"a": "b", "n": 12}'], ['{"a": "bcde", "n": 1}', "{}"]),
    "object": Case(Spec(Kind.JSON_OBJECT, ""), ["{}", '{"x": [1, null]}'], ["1", "[]", "{"]),
    "grammar": Case(Spec(Kind.GRAMMAR, 'root ::= "a" [0-9]+'), ["a1", "a23"], ["a", "1"]),
}


class Check:
    """Of one backend and one case."""

    def __init__(self, compiled: Compiled, vocabulary: Vocabulary, case: Case) -> None:
        self.compiled = compiled
        self.vocabulary = vocabulary
        self.case = case
        self.eos = vocabulary.eos_token_ids[0]

    def tokens(self, text: str) -> list[int]:
        found: list[int] = self.vocabulary.ll_tokenizer.tokenize_str(text)
        return found

    def row(self, grammar: Grammar) -> Any:
        row = np.full(self.vocabulary.num_words, 7, np.int32)
        grammar.fill(row)
        return row

    def allowed(self, grammar: Grammar) -> set[int]:
        bits = np.unpackbits(self.row(grammar).view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    def texts_are_taken_token_by_token_and_end_only_with_the_end(self) -> None:
        for text in self.case.texts:
            grammar = self.compiled.start()
            for token in self.tokens(text):
                assert token in self.allowed(grammar), text
                assert grammar.validate([token]) == 1
                assert grammar.accept([token])
                assert not grammar.terminated
            assert self.eos in self.allowed(grammar), text
            assert grammar.accept([self.eos])
            assert grammar.terminated
            assert grammar.failure is None

    def other_texts_are_not(self) -> None:
        for text in self.case.not_texts:
            tokens = [*self.tokens(text), self.eos]
            grammar = self.compiled.start()
            assert grammar.validate(tokens) < len(tokens), text
            assert not grammar.accept(tokens), text
            assert grammar.failure is not None
            assert self.allowed(grammar) == {self.eos}
            assert not grammar.accept([self.eos])

    def the_end_can_be_taken_back(self) -> None:
        for text in self.case.texts:
            grammar = self.compiled.start()
            tokens = self.tokens(text)
            grammar.accept(tokens)
            before = self.allowed(grammar)
            assert grammar.accept([self.eos])
            assert grammar.validate([self.eos]) == 0
            grammar.rollback(1)
            assert not grammar.terminated
            assert self.allowed(grammar) == before
            assert grammar.accept([self.eos])

    def what_comes_after_the_end_is_counted(self) -> None:
        grammar = self.compiled.start()
        tokens = self.tokens(self.case.texts[0])
        assert grammar.accept([*tokens, self.eos, tokens[0], tokens[0]])
        grammar.rollback(2)
        assert grammar.terminated
        grammar.rollback(1)
        assert not grammar.terminated
        assert self.eos in self.allowed(grammar)

    def validating_does_not_move(self) -> None:
        for text in self.case.texts:
            grammar = self.compiled.start()
            tokens = [*self.tokens(text), self.eos]
            before = self.row(grammar).tobytes()
            assert grammar.validate(tokens) == len(tokens)
            assert self.row(grammar).tobytes() == before
            assert grammar.accept(tokens)

    def a_walk_with_steps_back_is_the_same_as_without(self) -> None:
        choose = random.Random(7)
        for text in self.case.texts:
            tokens = self.tokens(text)
            walked, straight = self.compiled.start(), self.compiled.start()
            at = 0
            while at < len(tokens):
                ahead = choose.randint(1, len(tokens) - at)
                assert walked.accept(tokens[at : at + ahead])
                back = choose.randint(0, ahead - 1)
                walked.rollback(back)
                straight.accept(tokens[at : at + ahead - back])
                at += ahead - back
                assert self.row(walked).tobytes() == self.row(straight).tobytes()

    def a_stop_token_ends_as_the_models_own_end_does(self) -> None:
        stop = self.tokens("!")[0]
        grammar = self.compiled.start(frozenset({stop}))
        tokens = self.tokens(self.case.texts[0])
        assert stop not in self.allowed(grammar)
        grammar.accept(tokens)
        assert {stop, self.eos} <= self.allowed(grammar)
        assert grammar.validate([stop]) == 1
        assert grammar.accept([stop])
        assert grammar.terminated
        assert self.allowed(grammar) == {stop, self.eos}

    def two_answers_do_not_meet(self) -> None:
        one, other = self.compiled.start(), self.compiled.start()
        before = self.row(other).tobytes()
        one.accept(self.tokens(self.case.texts[-1])[:1])
        one.accept([self.tokens("~")[0]])
        assert self.row(other).tobytes() == before
        assert other.accept(self.tokens(self.case.texts[0]))

    def it_says_what_it_holds(self) -> None:
        assert self.compiled.num_bytes > 0
        assert list(self.compiled.unenforced) == []


CHECKS: list[Callable[[Check], None]] = [
    method for name, method in vars(Check).items() if name.count("_") > 2 and name[0] != "_"
]


def _xgrammars(spec: Spec) -> Spec:
    """Return a spec as one of those that are xgrammar's: a grammar or a structural tag."""
    form: dict[str, Any]
    match spec.kind:
        case Kind.REGEX:
            form = {"type": "regex", "pattern": spec.text}
        case Kind.CHOICE:
            words = [{"type": "const_string", "value": word} for word in json.loads(spec.text)]
            form = {"type": "or", "elements": words}
        case Kind.JSON | Kind.JSON_OBJECT:
            schema = json.loads(spec.text or '{"type": "object"}')
            form = {"type": "json_schema", "json_schema": said_for_xgrammar(schema, "")[0]}
        case _:
            return spec
    return Spec(Kind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": form}))


def main(tokenizer: str) -> None:
    """xgrammar's turn."""
    from inferway_structured.backends.stepped import Steppers
    from inferway_structured.backends.xgrammar import XGrammar

    with open(tokenizer) as file:
        vocabulary = Vocabulary(file.read(), size=49_152, eos_token_ids=(2,))
    backend = XGrammar(vocabulary)
    passed = []
    for name, case in CASES.items():
        for check in CHECKS:
            check(Check(backend.compile(_xgrammars(case.spec)), vocabulary, case))
            passed.append(f"{name}: {check.__name__}")
    with closing(Steppers(vocabulary)) as steppers:
        compiled = steppers.compile(XGrammar.name, CASES["grammar"].spec, ())
        for check in CHECKS:
            check(Check(compiled, vocabulary, CASES["grammar"]))
            passed.append(f"stepped: {check.__name__}")
    print(json.dumps(passed))


if __name__ == "__main__":
    main(sys.argv[1])
