"""Blanks between the tokens of JSON, bounded: a model that writes nothing else would spend its
answer on them.

llguidance (1.7) lets them come without end, whatever pattern they have. So they are counted here,
and once there are as many as indented JSON needs at this depth, no token may come that begins with
one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from inferway.structured.backends.vocabulary import Vocabulary
    from inferway.structured.grammar import MaskRow

_BLANKS = frozenset(b" \t\r\n")
# A line's end and its indentation: two bytes, and four for each level; twice that at the top.
_FEW = 4
_A_LEVEL = 4


class Place(NamedTuple):
    """Where an answer is."""

    depth: int = 0  # of objects and arrays
    in_string: bool = False
    is_escaped: bool = False
    num_blanks: int = 0  # just before, outside of strings

    @property
    def has_enough(self) -> bool:
        return self.num_blanks >= _FEW + _A_LEVEL * self.depth


START = Place()


def after(place: Place, written: bytes) -> Place:
    depth, in_string, is_escaped, num_blanks = place
    for byte in written:
        if is_escaped:
            is_escaped = False
        elif in_string:
            is_escaped = byte == 0x5C
            in_string = byte != 0x22
        elif byte in _BLANKS:
            num_blanks += 1
        else:
            num_blanks = 0
            in_string = byte == 0x22
            depth += (byte in b"{[") - (byte in b"}]")
    return Place(depth, in_string, is_escaped, num_blanks)


class Blanks:
    """Of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import numpy as np

        self._written = vocabulary.token_bytes
        bits = np.ones(32 * vocabulary.num_words, np.uint8)
        bits[[at for at, written in enumerate(self._written) if _begins(written)]] = 0
        packed = np.packbits(bits, bitorder="little")
        self._others: NDArray[np.int32] = packed.view(np.int32)

    def after(self, place: Place, token: int) -> Place:
        written = self._written[token] if token < len(self._written) else None
        return after(place, written) if written else place

    def num_without_too_many(self, place: Place, tokens: Sequence[int]) -> int:
        """How many of `tokens` come before the first that may not."""
        for at, token in enumerate(tokens):
            if place.has_enough and token < len(self._written) and _begins(self._written[token]):
                return at
            place = self.after(place, token)
        return len(tokens)

    def forbid(self, row: MaskRow) -> None:
        """Leaves what does not begin with one; all, if that were nothing."""
        others = row & self._others
        if others.any():
            row[:] = others


def _begins(written: bytes | None) -> bool:
    return written is not None and written[0] in _BLANKS
