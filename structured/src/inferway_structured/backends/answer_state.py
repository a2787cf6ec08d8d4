"""The state of one answer, why it may fail, and the bits of a mask: the grammars of all libraries
share these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferway_structured.grammar import MaskRow

# Why answers are cut off: what the grammar itself is to blame for. Whoever asks again for the same
# ends in the same way; all other reasons are faults of ours.
TOO_LONG = "the grammar takes too long, or too much memory, at this point"
TOO_LONG_IN_ALL = "the grammar has taken too long in all"
TOO_MANY = "the grammar has too many alternatives at this point"
REGEX_TOO_LONG = "a regular expression of the grammar takes too long at this point"
NO_TOKEN = "the grammar allows no token at this point"
OF_THE_SHAPE = frozenset({TOO_LONG, TOO_LONG_IN_ALL, TOO_MANY, REGEX_TOO_LONG, NO_TOKEN})

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


# A row of the bitmask: int32 words, the bit of token t is bit t % 32 of word t // 32.


def allow(row: MaskRow, token: int) -> None:
    _write(row, token >> 5, int(row[token >> 5]) | 1 << (token & 31))


def forbid(row: MaskRow, token: int) -> None:
    _write(row, token >> 5, int(row[token >> 5]) & ~(1 << (token & 31)))


def _write(row: MaskRow, at: int, word: int) -> None:
    word &= 0xFFFFFFFF
    row[at] = word - (1 << 32) if word >= 1 << 31 else word


def allowed(row: MaskRow, token: int) -> bool:
    return bool(int(row[token >> 5]) >> (token & 31) & 1)


def allow_only(row: MaskRow, tokens: Iterable[int]) -> None:
    row[:] = 0
    for token in tokens:
        allow(row, token)
