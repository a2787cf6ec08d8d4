"""JSON, grammars, choices and regexes on llguidance: derivatives of regexes under an Earley parser.

Its matchers never raise. What one spends on a mask is bounded by fuel, the same on every machine: a
grammar that has spent it fails with that reason, and its mask lets only the end of the answer
through.

Copies of a matcher share its lexer, and one that has spent its fuel spoils the lexer for all of
them, for good (llguidance 1.7.6; a refused token looks the same then as one the grammar forbids).
Who has spent it on a mask fails at once: a second try would take as long again. The others, and
all whose lexer has grown too large, go through their tokens again with a copy of a new prototype,
and if that fails, too, with a matcher of their own. The next answer begins from a new prototype.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from inferway_structured.backends.answer_state import (
    NO_TOKEN,
    REFUSED,
    REGEX_TOO_LONG,
    TOO_MANY,
    AnswerState,
    allow,
    allow_only,
    allowed,
)
from inferway_structured.backends.blanks import START, may_repeat
from inferway_structured.backends.schemas.numbers import check_grammar_numbers, check_numbers
from inferway_structured.backends.schemas.rows import with_short_rows
from inferway_structured.backends.tag_grammar import tag_grammar
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, Options, Spec
from inferway_structured.validate.ebnf import is_ebnf
from inferway_structured.validate.respelled import ascii_classes

if TYPE_CHECKING:
    import llguidance
    import numpy as np
    from numpy.typing import NDArray

    from inferway_structured.backends.blanks import Blanks
    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.grammar import MaskRow, Unenforced

# The library's own defaults, and its speeds (llguidance/_lib.pyi), say what a unit takes: 14,000
# of lexer fuel and 20,000 items a millisecond. No step is to take 20 ms on a busy machine.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,  # once, in the compile
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 4_000,  # what `schemas.rows` lets through makes 2,000, and alternatives
    "max_lexer_states": 25_000,  # of all answers that share a lexer; 1 to 2 kB each
    "max_grammar_size": 500_000,
    "verbose_errors": False,  # they would quote the answer
}
# A lexer gets up to a state for each token of its answers (of 300 schemas; nearly all far fewer).
# Then it is left to those who have it, so that it neither fails for them nor grows for ever.
_TOKENS_PER_LEXER = 10_000
_TOKENS_PER_FUEL = 64  # in going through them again
_NO_FUEL = "too many expressions"
_FAILURES = (
    ("Current row has", TOO_MANY),
    ("lexer error", REGEX_TOO_LONG),
    ("parser error", TOO_MANY),
    ("NoExtension", NO_TOKEN),
)
_FAILED = "the grammar library has failed"
_MAX_MATCHERS = 3  # of one answer; the last is not shared
# In Lark: where a text must come, the model chooses the tokens that write it.
_UNFORCED = '%llguidance {"no_forcing": true}\n'


class LLGuidance:
    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def compile(self, spec: Spec, unenforced: Sequence[Unenforced] = ()) -> LLGuidanceCompiled:
        import llguidance
        import numpy as np

        source = written(spec, self._vocabulary.special_tokens)
        if not self._vocabulary.tokenizes and spec.kind in (Kind.GRAMMAR, Kind.STRUCTURAL_TAG):
            source = _UNFORCED + source
        tokenizer, limits = self._vocabulary.ll_tokenizer, _limits()

        def make() -> llguidance.LLMatcher:
            return llguidance.LLMatcher(tokenizer, source, log_level=0, limits=limits)

        prototype = make()
        if prototype.is_error():
            raise SpecError(refusal(prototype.get_error()))
        first = np.empty(self._vocabulary.num_words, np.int32)
        beginning = prototype.deep_copy()
        beginning.unsafe_compute_mask_ptr(first.ctypes.data, first.nbytes)
        _require_mask(beginning)
        compiled = LLGuidanceCompiled(
            make, prototype, first, self._vocabulary.eos_token_ids, len(source), tuple(unenforced)
        )
        if spec.options.any_whitespace:
            compiled.blanks = self._blanks(spec)
        return compiled

    def _blanks(self, spec: Spec) -> Blanks | None:
        match spec.kind:
            case Kind.STRUCTURAL_TAG:
                return self._vocabulary.blanks_in_tags
            case Kind.JSON if not may_repeat(spec.text):
                return self._vocabulary.blanks
            case Kind.JSON | Kind.JSON_OBJECT:
                return self._vocabulary.blanks_and_names
        return None


def check(spec: Spec) -> None:
    """Raises SpecError if the library does not take the spec. No tokenizer is needed."""
    import llguidance

    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
        written(spec), limits=_limits()
    )
    if failed:
        raise SpecError(refusal(messages[0]))


def compiled_alone(spec: Spec) -> llguidance.LLMatcher:
    """Return a spec compiled for a vocabulary of the 256 bytes: what a compile takes, and what it
    leaves in memory, is nearly all of the grammar and not of the vocabulary. Raises SpecError."""
    source = written(spec)
    prototype = _on_bytes(source)
    if prototype.is_error() and _SPECIAL in prototype.get_error().lower():
        prototype = _on_bytes(_SPECIAL_TOKEN.sub("<[1]>", source))
    if prototype.is_error():
        raise SpecError(refusal(prototype.get_error()))
    beginning = prototype.deep_copy()
    beginning.compute_bitmask()
    _require_mask(beginning)
    return prototype


def _require_mask(matcher: llguidance.LLMatcher) -> None:
    """Raises SpecError for a grammar that fails at an answer's first token: every answer would."""
    if matcher.is_error():
        raise SpecError(_failure(matcher))


def _failure(matcher: llguidance.LLMatcher) -> str:
    error = matcher.get_error()
    return next((why for sign, why in _FAILURES if sign in error), _FAILED)


# Of a model's own vocabulary, in a Lark grammar: `<|tool|>`, `<[32000-32010]>`.
_SPECIAL = "token"
_SPECIAL_TOKEN = re.compile(r'<[^<>\s"/\\]+>')


def _on_bytes(source: str) -> llguidance.LLMatcher:
    import llguidance

    return llguidance.LLMatcher(_bytes_tokenizer(), source, log_level=0, limits=_limits())


@lru_cache(maxsize=1)
def _bytes_tokenizer() -> llguidance.LLTokenizer:
    import llguidance

    return llguidance.LLTokenizer("byte")


def takes_string(schema: Mapping[str, Any]) -> bool:
    """Return whether the library takes a schema of a string, with its pattern, format and lengths.
    It takes one that nothing matches."""
    return takes_text(json.dumps({"type": "string", **schema}))


def patterns_disjoint(patterns: Sequence[str]) -> bool:
    """Return whether no name matches two of these patterns; False where the library does not find
    out."""
    return takes_text(
        json.dumps({"type": "object", "patternProperties": dict.fromkeys(patterns, True)})
    )


@lru_cache(maxsize=4096)
def takes_text(schema: str) -> bool:
    """Return whether the library takes the text of a schema, also one that nothing matches."""
    import llguidance

    source = llguidance.LLMatcher.grammar_from_json_schema(schema)
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(source, limits=_limits())
    return not failed or "Unsatisfiable" in messages[0]


def _limits() -> Any:
    import llguidance

    return llguidance.LLParserLimits(**_LIMITS)


def refusal(message: str) -> str:
    """Return the library's message without its context."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith("while processing")), "refused")
    return first[:300].removesuffix(".")


def written(spec: Spec, special_tokens: Mapping[str, int] | None = None) -> str:
    """Return the spec in the library's own language. Raises SpecError where it has no words for
    it."""
    import llguidance

    match spec.kind:
        case Kind.JSON:
            return _json(spec.text, spec.options)
        case Kind.JSON_OBJECT:
            return _json('{"type":"object"}', spec.options)
        case Kind.REGEX:
            return llguidance.LLMatcher.grammar_from_regex(ascii_classes(spec.text))
        case Kind.CHOICE:
            return _choice(json.loads(spec.text))
        case Kind.GRAMMAR:
            check_grammar_numbers(spec.text)
            try:
                return llguidance.grammar_from(
                    "grammar" if is_ebnf(spec.text) else "lark", spec.text
                )
            except ValueError as error:
                raise SpecError(refusal(str(error))) from None
        case Kind.STRUCTURAL_TAG:
            check_numbers(spec.text)
            return tag_grammar(spec.text, _ways(spec.options), special_tokens or {})


def _choice(words: Sequence[str]) -> str:
    """Return the grammar of these words, as one lexeme: as alternatives of the parser, some
    thousands would pass its limits."""
    return "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, dict.fromkeys(words)))


def _json(schema: str, options: Options) -> str:
    import llguidance

    check_numbers(schema)
    try:
        said = with_short_rows(schema)
        ways = _ways(options)  # to add them, the library reads the whole schema
        overrides = None if ways == _ways(Options()) else ways
        return llguidance.LLMatcher.grammar_from_json_schema(said, overrides=overrides)
    except ValueError as error:
        raise SpecError(refusal(str(error))) from None


def _ways(options: Options) -> Any:
    ways: dict[str, object] = {"whitespace_flexible": options.any_whitespace}
    if options.whitespace_pattern is not None:
        ways["whitespace_pattern"] = options.whitespace_pattern
    return ways


class Lexer:
    """The lexer state that matchers share when they were copied from one prototype."""

    __slots__ = ("is_spoiled", "num_tokens", "prototype")

    def __init__(self, prototype: llguidance.LLMatcher) -> None:
        self.prototype = prototype
        self.num_tokens = 0  # of all its answers
        self.is_spoiled = False

    @property
    def is_used_up(self) -> bool:
        return self.is_spoiled or self.num_tokens > _TOKENS_PER_LEXER

    def has_failed(self) -> bool:
        """Return whether the lexer has failed, as it shows in a mask that belongs to no answer."""
        if not self.is_spoiled:
            probe = self.prototype.deep_copy()
            probe.compute_bitmask()
            self.is_spoiled = probe.is_error()
        return self.is_spoiled


class LLGuidanceCompiled:
    backend = LLGuidance.name

    def __init__(
        self,
        make: Callable[[], llguidance.LLMatcher],
        prototype: llguidance.LLMatcher,
        first: NDArray[np.int32],
        eos_token_ids: tuple[int, ...],
        num_source_bytes: int,
        unenforced: tuple[Unenforced, ...] = (),
    ) -> None:
        """`first`: the mask of an answer's first token."""
        self.make = make
        self.first = first
        self.eos_token_ids = eos_token_ids
        self.unenforced = unenforced
        self.num_bytes = first.nbytes + 50_000 + 40 * num_source_bytes
        self.blanks: Blanks | None = None  # to be counted in the answer
        self._lexer = Lexer(prototype)
        self._renewing = Lock()

    def start(self, stop_token_ids: frozenset[int] = frozenset()) -> LLGuidanceGrammar:
        return LLGuidanceGrammar(self, stop_token_ids)

    def matcher(self) -> tuple[llguidance.LLMatcher, Lexer]:
        """Return a matcher for one answer, and the lexer that it shares with others."""
        with self._renewing:
            if self._lexer.is_used_up:
                self._lexer = Lexer(self.make())
            return self._lexer.prototype.deep_copy(), self._lexer


class LLGuidanceGrammar(AnswerState):
    __slots__ = (
        *("matcher", "lexer", "_compiled", "_first"),
        *("_num_matchers", "_eos", "_stops", "_blanks", "_places"),
    )

    def __init__(self, compiled: LLGuidanceCompiled, stop_token_ids: frozenset[int]) -> None:
        super().__init__(stop_token_ids.union(compiled.eos_token_ids))
        self.matcher, self.lexer = compiled.matcher()
        self._compiled = compiled
        self._first = compiled.first
        self._eos = compiled.eos_token_ids
        self._stops = stop_token_ids.difference(self._eos)
        self._num_matchers = 1
        self._blanks = compiled.blanks
        # after each of the tokens; where blanks are not counted, no more
        self._places = [self._blanks.start if self._blanks else START]

    def _may_end(self) -> bool:
        return self.matcher.is_accepting()

    def _accept_one(self, token: int) -> bool:
        if self._is_past_end(token):
            self._num_past_end += 1
            return True
        if self.matcher.consume_token(token):
            self._tokens.append(token)
            self.lexer.num_tokens += 1
            if self._blanks is not None:
                self._places.append(self._blanks.after(self._places[-1], token))
            return True
        if self.lexer.has_failed() and self._start_over():
            return self._accept_one(token)
        if "Current row has" in self.matcher.get_error():
            return self._fail()
        self._failure = self._failure or REFUSED
        return False

    def validate(self, tokens: Sequence[int]) -> int:
        if self._num_past_end or self._failure is not None:
            return 0
        end = next((at for at, token in enumerate(tokens) if token in self._ends), len(tokens))
        before = list(tokens[:end])
        num_valid = self.matcher.validate_tokens(before) if before else 0
        if self._blanks is not None:
            num_valid = self._blanks.num_without_too_many(self._places[-1], before[:num_valid])
        if num_valid < end or end == len(tokens):
            return num_valid
        return num_valid + self._may_end_after(before)

    def _may_end_after(self, tokens: list[int]) -> bool:
        if not tokens:
            return self.matcher.is_accepting()
        may = self.matcher.consume_tokens(tokens) and self.matcher.is_accepting()
        self.matcher.rollback(len(tokens))
        return may

    def _go_back(self, num_tokens: int) -> None:
        del self._places[len(self._tokens) + 1 :]
        if self._failure is None and not self.matcher.rollback(num_tokens):
            _ = self._start_over() or self._fail()

    def fill(self, row: MaskRow) -> None:
        if self._num_past_end or self._failure is not None:
            return allow_only(row, self._ends)
        if self._tokens:
            self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if self.matcher.is_error():
                if self._is_not_to_blame() and self._start_over():
                    return self.fill(row)
                self._fail()
                return allow_only(row, self._ends)
        else:
            row[:] = self._first
        return self._let_stop(row)

    def _is_not_to_blame(self) -> bool:
        """Return whether it is the fault of others with its lexer, or of all together, that there
        is no mask."""
        if self.lexer.is_spoiled:
            return True
        return _NO_FUEL not in self.matcher.get_error() and self.lexer.has_failed()

    def _let_stop(self, row: MaskRow) -> None:
        """Lets the request's own stop tokens come where the model's own may, and no blank where
        there are enough."""
        if self._blanks is not None:
            self._blanks.narrow(row, self._places[-1])
        if self._stops and any(allowed(row, token) for token in self._eos):
            for token in self._stops:
                allow(row, token)

    def forced(self) -> Sequence[int]:
        if self._num_past_end or self._failure is not None or self.matcher.is_stopped():
            return ()
        return self.matcher.compute_ff_tokens()

    def _start_over(self) -> bool:
        """Return whether another matcher takes the same tokens. What a compile takes, and some
        milliseconds for a thousand tokens."""
        self.lexer.is_spoiled = True
        if self._num_matchers == _MAX_MATCHERS or self._failure is not None:
            return False
        self._num_matchers += 1
        if self._num_matchers < _MAX_MATCHERS:
            self.matcher, self.lexer = self._compiled.matcher()
        else:
            self.matcher = self._compiled.make()
            self.lexer = Lexer(self.matcher)
        for at in range(0, len(self._tokens), _TOKENS_PER_FUEL):
            if at:
                self.matcher.compute_bitmask()  # fills up the fuel
            if not self.matcher.consume_tokens(self._tokens[at : at + _TOKENS_PER_FUEL]):
                return self._start_over() or self._fail()
        return True

    def _fail(self) -> bool:
        """Fail for what the matcher says. Return False."""
        self.lexer.has_failed()
        self._failure = self._failure or _failure(self.matcher)
        return False
