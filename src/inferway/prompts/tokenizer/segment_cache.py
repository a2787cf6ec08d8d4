"""Encode only the pieces of a chat that were not met before.

A text is cut where an added token begins (`cuts` says why that is exact), and the ids of each piece
(that token and what follows it) are remembered.

Long text without added tokens (one message of 400 kB that grows) gains nothing.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import numpy as np

from inferway.model import TokenIds
from inferway.prompts.tokenizer.split_points import SplitPoints

EncodeAll = Callable[[Sequence[str]], list[TokenIds]]

# Of an entry, besides text and ids: dict slots, links, the objects' heads.
_ENTRY_BYTES = 300


class SegmentCache:
    """Encodes texts piece by piece and remembers the ids of each piece. Any thread may encode. It
    holds at most `max_bytes` and drops the least recently used pieces first."""

    def __init__(self, encode_all: EncodeAll, cuts: SplitPoints, max_bytes: int) -> None:
        self.num_bytes = 0
        self._encode_all = encode_all
        by_length = sorted(cuts.found, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, by_length)))
        self._cuts = cuts.cuts
        self._max_bytes = max_bytes
        self._pieces: OrderedDict[str, TokenIds] = OrderedDict()
        self._lock = Lock()

    def encode(self, text: str) -> TokenIds:
        pieces = list(self._cut(text))
        if len(pieces) < 2:
            return self._encode_all([text])[0]
        return np.concatenate(self._encode_pieces(pieces))

    def _cut(self, text: str) -> Iterator[str]:
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() > start and match.group() in self._cuts:
                yield text[start : match.start()]
                start = match.start()
        yield text[start:]

    def _encode_pieces(self, pieces: list[str]) -> list[TokenIds]:
        with self._lock:
            known = {p: ids for p in pieces if (ids := self._get(p)) is not None}
        missing = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        if missing:
            found = dict(zip(missing, self._encode_all(missing), strict=True))
            with self._lock:
                for piece, ids in found.items():
                    self._keep(piece, ids)
            known |= found
        return [known[piece] for piece in pieces]

    def _get(self, piece: str) -> TokenIds | None:
        ids = self._pieces.get(piece)
        if ids is not None:
            self._pieces.move_to_end(piece)
        return ids

    def _keep(self, piece: str, ids: TokenIds) -> None:
        if piece not in self._pieces:
            self._pieces[piece] = ids
            self.num_bytes += _num_bytes(piece, ids)
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= _num_bytes(*self._pieces.popitem(last=False))


def _num_bytes(piece: str, ids: TokenIds) -> int:
    return sys.getsizeof(piece) + ids.nbytes + _ENTRY_BYTES
