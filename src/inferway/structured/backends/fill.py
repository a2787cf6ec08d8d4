"""Many grammars, one bitmask: one call into llguidance for all of its grammars, on threads of its
own and without the GIL, the others one after the other.

A call for each row would wait for the GIL after each: up to 5 ms (sys.getswitchinterval) beside a
busy thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferway.structured.backends.llguidance import LLGuidanceGrammar

if TYPE_CHECKING:
    import llguidance
    import numpy as np
    from numpy.typing import NDArray

    from inferway.structured.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Rows:
    """One request's rows of the bitmask: `first` for its next token, and the one after it for what
    follows each of `drafts`, which `Grammar.validate` has let through."""

    grammar: Grammar
    first: int
    drafts: Sequence[int] = ()


class Filler:
    """Of one engine. One thread at a time."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._executor: llguidance.LLExecutor | None = None

    def fill(self, requests: Sequence[Rows], bitmask: NDArray[np.int32]) -> None:
        """Writes all rows of `requests`, contiguous in memory. Where an answer has ended or a
        grammar has failed among its drafts, the rows after that let every token through: they
        are never used. Does not raise, and leaves every grammar where it was."""
        plain: list[tuple[llguidance.LLMatcher, int]] = []
        drafted: list[tuple[llguidance.LLMatcher, int, list[int]]] = []
        for request in requests:
            grammar = request.grammar
            if not isinstance(grammar, LLGuidanceGrammar) or not grammar.waits_for_library:
                _fill_alone(request, bitmask)
            elif request.drafts:
                bitmask[request.first : request.first + len(request.drafts) + 1] = -1
                drafted.append((grammar.matcher, request.first, list(request.drafts)))
            else:
                plain.append((grammar.matcher, request.first))
        self._call(plain, drafted, bitmask)
        _blame_nobody(requests)
        for request in requests:
            grammar = request.grammar
            if isinstance(grammar, LLGuidanceGrammar) and grammar.waits_for_library:
                if request.drafts and grammar.matcher.is_error():
                    _fill_alone(request, bitmask)
                    continue
                for row in range(request.first, request.first + len(request.drafts) + 1):
                    grammar.filled(bitmask[row])

    def _call(
        self,
        plain: list[tuple[llguidance.LLMatcher, int]],
        drafted: list[tuple[llguidance.LLMatcher, int, list[int]]],
        bitmask: NDArray[np.int32],
    ) -> None:
        where = (bitmask.ctypes.data, bitmask.strides[0], len(bitmask))
        if plain:
            self._threads.unsafe_compute_mask_ptr(plain, *where)
        if drafted:
            self._threads.unsafe_compute_mask_ptr_with_draft_token(drafted, *where)

    @property
    def _threads(self) -> llguidance.LLExecutor:
        if self._executor is None:
            import llguidance

            self._executor = llguidance.LLExecutor(self._num_threads)
        return self._executor


def _blame_nobody(requests: Sequence[Rows]) -> None:
    """Where several failed with one lexer, which of them has spoiled it is not known."""
    failed = Counter(
        grammar.lexer
        for request in requests
        if isinstance(grammar := request.grammar, LLGuidanceGrammar)
        and grammar.waits_for_library
        and grammar.matcher.is_error()
    )
    for lexer, times in failed.items():
        if times > 1:
            lexer.is_spoiled = True


def _fill_alone(request: Rows, bitmask: NDArray[np.int32]) -> None:
    grammar, row = request.grammar, request.first
    grammar.fill(bitmask[row])
    num_accepted = 0
    for token in request.drafts:
        row += 1
        if grammar.terminated or not grammar.validate([token]):
            bitmask[row : request.first + len(request.drafts) + 1] = -1
            break
        grammar.accept([token])
        num_accepted += 1
        grammar.fill(bitmask[row])
    grammar.rollback(num_accepted)
