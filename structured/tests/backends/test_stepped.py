"""Grammars that are stepped in processes of their own, with a real library and vocabulary."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from structured.tests.ambiguous_draws import ambiguous_grammars
from structured.tests.backends.contract import CASES, CHECKS, Check
from structured.tests.compiling import smollm2
from tests.leftovers import children

from inferway_structured.backends import answer_state, stepped, stepper
from inferway_structured.backends.cascade import Cascade
from inferway_structured.backends.llguidance import LLGuidance
from inferway_structured.backends.stepped import SteppedCompiled, SteppedGrammar, Steppers
from inferway_structured.backends.vocabulary import Vocabulary
from inferway_structured.errors import CompileError, JobFailedError, SaturatedError, SpecError
from inferway_structured.grammar import Grammar, Verdict
from inferway_structured.spec import Kind, Spec

VOCABULARY = smollm2()
EOS = VOCABULARY.eos_token_ids[0]
AMBIGUOUS = 'root ::= s\ns ::= s s | "a" | "b"'
ENDLESS = 'root ::= "a"*'
# Rows stay short until one word completes all that is open, in one row and in many ways.
SUDDEN = "\n".join(
    [
        "root ::= r",
        "r ::= " + " | ".join(f'"a" r x{at}' for at in range(200)) + ' | "b" "c"',
        *(f'x{at} ::= "" | "x{at}"' for at in range(200)),
    ]
)


@pytest.fixture(scope="module")
def steppers() -> Iterator[Steppers]:
    made = Steppers(VOCABULARY)
    yield made
    made.close()


def started(steppers: Steppers, text: str) -> SteppedGrammar:
    return steppers.compile(LLGuidance.name, Spec(Kind.GRAMMAR, text), ()).start()


def tokens(text: str) -> list[int]:
    return VOCABULARY.ll_tokenizer.tokenize_str(text)


def mask(grammar: Grammar) -> Any:
    row = np.full(VOCABULARY.num_words, 7, np.int32)
    grammar.fill(row)
    return row


def allowed(grammar: Grammar) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask(grammar).view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(steppers: Steppers, check: Callable[[Check], None]) -> None:
    case = CASES["grammar"]

    check(Check(steppers.compile(LLGuidance.name, case.spec, ()), VOCABULARY, case))


def test_masks_are_those_of_the_library_here(steppers: Steppers) -> None:
    text = 'start: ("a" | /[b-z]+/ " ")* <|im_start|> "."'
    here = LLGuidance(VOCABULARY).compile(Spec(Kind.GRAMMAR, text)).start()
    there = started(steppers, text)
    for token in tokens("word and another "):
        assert mask(there).tobytes() == mask(here).tobytes()
        assert there.accept([token])
        assert here.accept([token])


@pytest.mark.slow
def test_an_ambiguous_grammar_ends_over_its_time_with_the_reason_and_no_other(
    steppers: Steppers,
) -> None:
    greedy, other = started(steppers, AMBIGUOUS), started(steppers, ENDLESS)
    token = tokens("a")
    for _ in range(1000):
        mask(greedy)
        if not greedy.accept(token):
            break

    assert greedy.failure in (answer_state.TOO_LONG, answer_state.TOO_LONG_IN_ALL)
    assert allowed(greedy) == [EOS]
    assert not greedy.accept([EOS])
    for _ in range(50):
        assert other.accept(token)
    assert EOS in allowed(other)


def test_a_step_that_would_take_for_ever_ends_within_its_cpu_time(steppers: Steppers) -> None:
    grammar = started(steppers, SUDDEN)
    while grammar.failure is None and len(allowed(grammar)) > 1:
        grammar.accept(tokens("aaaaaaaa"))

    assert grammar.failure == answer_state.TOO_LONG


def test_so_many_answers_at_a_time_and_when_one_has_ended_another() -> None:
    steppers = Steppers(VOCABULARY)
    compiled = steppers.compile(LLGuidance.name, Spec(Kind.GRAMMAR, ENDLESS), ())
    answers = [compiled.start() for _ in range(stepped.MAX_ANSWERS)]

    with pytest.raises(SaturatedError):
        compiled.start()
    del answers[0]

    assert compiled.start().accept(tokens("a"))
    steppers.close()


def test_all_answers_together_take_at_most_512_mib() -> None:
    """What the kernel would let them take, and what they have."""
    steppers = Steppers(VOCABULARY)
    compiled = steppers.compile(LLGuidance.name, Spec(Kind.GRAMMAR, ENDLESS), ())
    answers = []
    with suppress(SaturatedError):
        while True:
            answers.append(compiled.start())
            mask(answers[-1])
    (compiling,) = children(steppers._libraries[LLGuidance.name].pid)

    most = sum(map(most_bytes, children(compiling)))

    assert len(answers) == len(children(compiling))
    assert 200 << 20 < most <= 512 << 20
    steppers.close()


def most_bytes(pid: int) -> int:
    """Of memory, that a process shares with no other, and that it may still ask for."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Private_"))
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    return private + resource.prlimit(pid, resource.RLIMIT_AS)[0] - used


def test_grammars_that_are_kept_have_their_memory_counted(steppers: Steppers) -> None:
    words = " | ".join(f'"word number {number}"' for number in range(3_000))
    small = steppers.compile(LLGuidance.name, Spec(Kind.GRAMMAR, ENDLESS), ())
    large = steppers.compile(LLGuidance.name, Spec(Kind.GRAMMAR, f"start: ({words})+"), ())

    assert 1 << 20 < small.num_bytes < large.num_bytes < stepped.COMPILE.memory_bytes


def test_grammars_that_take_too_much_memory_together_are_for_later(
    steppers: Steppers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped, "MAX_COMPILED_BYTES", 1 << 20)

    with pytest.raises(SaturatedError, match="try again"):
        started(steppers, ENDLESS)


def test_a_tokenizer_that_brings_its_own_library_is_told_by_what_its_tokens_write() -> None:
    """Where a text must come, the library here allows one way to tokenize it, and there all."""
    own = SimpleNamespace(eos_token_id=EOS, llg_tokenizer=VOCABULARY.ll_tokenizer)
    vocabulary = Vocabulary.of(own, 49_152)
    spec = Spec(Kind.GRAMMAR, 'start: (/[b-z]+/ " ")* <|im_start|> "a to the end"')
    steppers = Steppers(vocabulary)
    here = LLGuidance(vocabulary).compile(spec).start()
    there = steppers.compile(LLGuidance.name, spec, ()).start()

    for token in [*tokens("some words "), VOCABULARY.special_tokens["<|im_start|>"], *tokens("a")]:
        assert set(allowed(here)) <= set(allowed(there))
        assert here.accept([token])
        assert there.accept([token])
    texts = {VOCABULARY.ll_tokenizer.decode_str([token]) for token in allowed(there)}
    assert {" ", " t", " to"} <= texts
    assert all(" to the end".startswith(text) for text in texts)
    steppers.close()


def test_what_the_library_refuses_is_refused_with_its_words(steppers: Steppers) -> None:
    with pytest.raises(SpecError, match="unknown name"):
        started(steppers, "start: other")


def test_with_the_library_gone_answers_fail_and_the_next_grammar_starts_it_again() -> None:
    steppers = Steppers(VOCABULARY)
    grammar = started(steppers, ENDLESS)
    steppers._libraries[LLGuidance.name].kill()

    assert not grammar.accept(tokens("a"))
    assert grammar.failure == answer_state.TOO_LONG
    assert started(steppers, ENDLESS).accept(tokens("a"))
    steppers.close()
    with pytest.raises(CompileError):
        started(steppers, ENDLESS)


def test_where_no_more_processes_may_begin_answers_go_on() -> None:
    steppers = Steppers(VOCABULARY)
    grammar = started(steppers, ENDLESS)
    no_fork = b"def fork(): raise OSError\nimport os\nos.fork = fork"
    with suppress(JobFailedError):  # exec has no result
        steppers._libraries[LLGuidance.name].do("builtins:exec", no_fork)

    with pytest.raises(CompileError, match="no more processes"):
        started(steppers, ENDLESS)

    assert grammar.accept(tokens("a"))
    steppers.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_step_of_hostile_grammars_stays_below_its_limit(steppers: Steppers) -> None:
    """35 grammars, 1,000 tokens of each or until it fails."""
    reasons: set[str | None] = set()
    for name, text in ambiguous_grammars(22, 35):
        grammar, choose = started(steppers, text), Random(name)
        before = 0.0
        for num_tokens in range(1, 1001):
            may = [token for token in allowed(grammar) if token != EOS]
            took, before = grammar.cpu_seconds - before, grammar.cpu_seconds
            assert took < stepped.STEP.cpu_seconds + 0.05, name  # of a mask and a token, each so
            if not may or not grammar.accept([choose.choice(may)]):
                break
            most = stepper.ANSWER_SECONDS + stepper.TOKEN_SECONDS * num_tokens
            assert before < most + 2 * stepped.STEP.cpu_seconds, name
        reasons.add(grammar.failure)

    librarys_own = {answer_state.TOO_MANY}
    assert reasons - librarys_own == {None, answer_state.TOO_LONG, answer_state.TOO_LONG_IN_ALL}


@pytest.mark.parametrize(("inner", "is_alone"), [("star", True), ("const_string", False)])
def test_tags_that_repeat_inside_of_what_repeats_are_stepped_alone(
    steppers: Steppers, inner: str, is_alone: bool
) -> None:
    word = {"type": "const_string", "value": "a"}
    content = {"type": inner, "content": word} if inner == "star" else word
    tag = {"type": "structural_tag", "format": {"type": "plus", "content": content}}
    spec = Spec(Kind.STRUCTURAL_TAG, json.dumps(tag))

    compiled = Cascade(VOCABULARY, steppers).compile_said(spec, Verdict("llguidance", ()), 0)

    assert isinstance(compiled, SteppedCompiled) == is_alone
    assert compiled.start().accept(tokens("aa"))
