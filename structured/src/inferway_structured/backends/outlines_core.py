"""Small regexes and choices on outlines-core: an automaton over tokens, built whole before the
first of them. It has the cheapest masks (a microsecond), and no limits on what it builds: that is a
job for a child that can be killed, and worth it only for what is asked for again and again.

Its automata (0.2.14) lose every way on that leads from a text that is complete to one that is not
yet: of `a(-b)?` only "a" is left, of "yes" and "yes and no" the first. So it is given only what has
no such way: choices none of which begins another, and regexes of single characters in a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from inferway_structured.backends.answer_state import AnswerState
from inferway_structured.backends.bits import allow, allow_only, allowed
from inferway_structured.backends.outlines_child import MODULE, written_vocabulary
from inferway_structured.compile.jobs import Child, Job
from inferway_structured.spec import Kind, Spec
from inferway_structured.validate.respelled import ascii_classes

if TYPE_CHECKING:
    import outlines_core

    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.grammar import MaskRow, Unenforced

MAX_PATTERN_CHARS = 200
_MAX_REPEATS = 64
# What every library reads alike: characters, escapes and classes, all of them there at least once
# but the last, which may come as often as it likes.
_ATOM = (
    r"(?:[^\\^$()\[\]{}.*+?|]|\\[dws.\-+*?()\[\]{}|\\/^$]|\[(?:[^\\\[\]&~^]|\\[dws.\-\]\[\\])+\])"
)
_SOME = r"(?:\+|\{[1-9]\d*(?:,\d*)?\})?"
_ANY = r"(?:[*+?]|\{\d+(?:,\d*)?\})?"
_ROW = re.compile(rf"\^?((?:{_ATOM}{_SOME})*{_ATOM}{_ANY})\$?")
_COUNTS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_ROLLBACK = 32  # states that a guide keeps; further back, it starts over


class OutlinesJobs:
    """Says for a CompilationManager which specs are worth an automaton."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def fingerprint(self) -> str:
        from importlib.metadata import version

        return f"{self._vocabulary.fingerprint}-{version('outlines_core')}"

    @cached_property
    def child(self) -> Child:
        return Child((MODULE,), f"{MODULE}:prepare", lambda: written_vocabulary(self._vocabulary))

    def job(self, spec: Spec) -> Job | None:
        pattern = pattern_of(spec)
        if pattern is None:
            return None
        return Job(f"{MODULE}:index", pattern.encode(), self.load)

    def load(self, data: bytes) -> OutlinesCompiled:
        """Return what the child has built. Raises ValueError where it is not that."""
        import outlines_core

        index = outlines_core.Index.from_binary(data)
        return OutlinesCompiled(index, len(data), self._vocabulary.eos_token_ids)


def pattern_of(spec: Spec) -> str | None:
    """Return the regex whose automaton stays small; None if it may not."""
    if spec.kind is Kind.CHOICE:
        choices: list[str] = json.loads(spec.text)
        pattern = "|".join(f"(?:{re.escape(choice)})" for choice in choices)
        small = len(pattern) <= MAX_PATTERN_CHARS and not _any_begins_another(choices)
        return pattern if small else None
    if spec.kind is not Kind.REGEX or len(spec.text) > MAX_PATTERN_CHARS:
        return None
    repeats = [max(int(one or 0) for one in found) for found in _COUNTS.findall(spec.text)]
    row = _ROW.fullmatch(spec.text)
    return ascii_classes(row[1]) if row and sum(repeats) <= _MAX_REPEATS else None


def _any_begins_another(choices: Sequence[str]) -> bool:
    ordered = sorted(set(choices))
    return any(later.startswith(earlier) for earlier, later in pairwise(ordered))


class OutlinesCompiled:
    backend = "outlines_core"
    unenforced: Sequence[Unenforced] = ()

    def __init__(
        self, index: outlines_core.Index, num_bytes: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self.index = index
        self.num_bytes = num_bytes
        self.eos_token_ids = eos_token_ids

    def start(self, stop_token_ids: frozenset[int] = frozenset()) -> OutlinesGrammar:
        return OutlinesGrammar(self, stop_token_ids)


class OutlinesGrammar(AnswerState):
    __slots__ = ("_end", "_guide")

    def __init__(self, compiled: OutlinesCompiled, stop_token_ids: frozenset[int]) -> None:
        import outlines_core

        super().__init__(stop_token_ids.union(compiled.eos_token_ids))
        self._guide = outlines_core.Guide(compiled.index, max_rollback=_ROLLBACK)
        self._end = compiled.eos_token_ids[0]

    def _may_end(self) -> bool:
        return bool(self._guide.is_finished())

    def _goes(self, token: int) -> bool:
        if token in self._ends or not self._guide.accepts_tokens([token]):
            return False
        self._guide.advance(token, False)
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        if self._num_past_end or self._failure is not None:
            return 0
        num_valid = 0
        for token in tokens:
            if token in self._ends:
                num_ended = int(self._guide.is_finished())
                break
            if not self._goes(token):
                num_ended = 0
                break
            num_valid += 1
        else:
            num_ended = 0
        self._go_back(num_valid)
        return num_valid + num_ended

    def _go_back(self, num_tokens: int) -> None:
        if num_tokens <= self._guide.get_allowed_rollback():
            self._guide.rollback_state(num_tokens)
            return
        self._guide.reset()
        for token in self._tokens:
            self._guide.advance(token, False)

    def fill(self, row: MaskRow) -> None:
        if self._num_past_end or self._failure is not None:
            return allow_only(row, self._ends)
        self._guide.write_mask_into(row.ctypes.data, row.size, row.itemsize)
        if allowed(row, self._end):
            for token in self._ends:
                allow(row, token)
        return None

    def forced(self) -> Sequence[int]:
        return ()  # one token may be forced where another spelling of the same text is not
