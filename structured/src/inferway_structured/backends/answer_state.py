"""The state of one answer, where the library is shown no more than the tokens before its end."""

from __future__ import annotations

from collections.abc import Sequence

REFUSED = "the engine chose a token that the grammar does not allow"


class AnswerState:
    """The state of one answer that the grammars of all libraries keep: whether the grammar has
    failed, which tokens it has accepted, and how many of them came at the end of the answer or
    after it. The end is counted here, so that it can be taken back, and so that no token is given
    to a parser that has stopped."""

    __slots__ = ("_ends", "_failure", "_num_past_end", "_tokens")

    def __init__(self, ends: frozenset[int]) -> None:
        """`ends`: the tokens that end an answer where it may end."""
        self._ends = ends
        self._tokens: list[int] = []  # that the library has accepted
        self._num_past_end = 0
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """The reason why the grammar has failed; None if it has not."""
        return self._failure

    @property
    def terminated(self) -> bool:
        """True if the end of the answer was accepted."""
        return self._num_past_end > 0

    def accept(self, tokens: Sequence[int]) -> bool:
        """Move on by all of `tokens`, or return False and fail."""
        return self._failure is None and all(map(self._accept_one, tokens))

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` that were accepted."""
        past_end = min(num_tokens, self._num_past_end)
        self._num_past_end -= past_end
        left = min(num_tokens - past_end, len(self._tokens))
        if left:
            del self._tokens[-left:]
            self._go_back(left)

    def _accept_one(self, token: int) -> bool:
        if self._is_past_end(token):
            self._num_past_end += 1
        elif self._goes(token):
            self._tokens.append(token)
        else:
            self._failure = self._failure or REFUSED
            return False
        return True

    def _is_past_end(self, token: int) -> bool:
        """Return whether it is the end, which may come now, or comes after that."""
        return self._num_past_end > 0 or (token in self._ends and self._may_end())

    def _may_end(self) -> bool:
        raise NotImplementedError

    def _goes(self, token: int) -> bool:
        """Return whether the library moves on by it."""
        raise NotImplementedError

    def _go_back(self, num_tokens: int) -> None:
        """Have the library take back its last tokens, which are no longer in `_tokens`."""
        raise NotImplementedError
