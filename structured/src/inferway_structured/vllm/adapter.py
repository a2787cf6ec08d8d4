"""One of our grammars as vLLM calls it: its StructuredOutputGrammar by shape, and registered as one
(install.py), so that vLLM is not imported here. Nothing in here raises: an exception out of a mask
would end the engine. A grammar that has failed ends its own request, and the log says why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from inferway_structured.backends.answer_state import REFUSED, allow_only
from inferway_structured.errors import panic_as_error

if TYPE_CHECKING:
    from inferway_structured.grammar import Grammar

    Ended = Callable[[str, str], None]  # a request's id, and why

log = logging.getLogger("vllm.inferway")


class RequestGrammar:
    """The grammar of one request, used by the engine core's thread alone."""

    __slots__ = ("_ended", "_ends", "_failure", "_grammar", "backend")

    def __init__(self, grammar: Grammar, backend: str, ends: Sequence[int], ended: Ended) -> None:
        """`ends`: the tokens that end an answer. `ended` is told of a request that its grammar
        ends."""
        self._grammar = grammar
        self._ends = ends
        self._ended = ended
        self._failure: str | None = None
        self.backend = backend

    @property
    def grammar(self) -> Grammar | None:
        """The grammar; None if it has failed here, and only the end of the answer may come."""
        return self._grammar if self._failure is None else None

    @property
    def failure(self) -> str | None:
        return self._failure or self._grammar.failure

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Move on by `tokens`. Return False if the request ends as an error."""
        if self.failure is None:
            try:
                if self._grammar.accept(tokens):
                    return True
            except BaseException as e:
                self._fail(panic_as_error(e))
        self._ended(request_id, self.failure or REFUSED)
        return False

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        if self.failure is not None:
            return []
        try:
            return tokens[: self._grammar.validate(tokens)]
        except BaseException as e:
            self._fail(panic_as_error(e))
            return []

    def rollback(self, num_tokens: int) -> None:
        try:
            self._grammar.rollback(num_tokens)
        except BaseException as e:
            self._fail(panic_as_error(e))

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Fill a row of `bitmask`, a torch tensor of int32 words, one row a position."""
        row = bitmask[batch_index].numpy()
        if self._failure is None:
            try:
                self._grammar.fill(row)
                return
            except BaseException as e:
                self._fail(panic_as_error(e))
        allow_only(row, self._ends)

    def forced(self) -> Sequence[int]:
        """Return what must come next; empty where the model has a choice."""
        if self.failure is not None:
            return ()
        try:
            return self._grammar.forced()
        except BaseException as e:
            self._fail(panic_as_error(e))
            return ()

    def is_terminated(self) -> bool:
        return self._grammar.terminated

    def reset(self) -> None:
        """Do nothing: vLLM calls it nowhere."""

    def _fail(self, error: Exception) -> None:
        self._failure = f"{self.backend} raised {type(error).__name__}"
        log.error(
            "a grammar of the library %s failed, and its request ends with an error",
            self.backend,
            exc_info=error,
        )
