"""Encode a growing chat without encoding again what was there before.

The texts of a chat's requests begin alike, and each is a little longer than the one before. So of a
text that was encoded, the ids of its start are remembered, up to a late *cut*: a place where an
added token begins, from which on the rest can be encoded by itself (`cuts` says why).

Only tokens that can share no character with another one's occurrence are used as cuts: then every
place where such a token's letters stand is a cut, whatever comes behind it, and the last one is
found from the text's end. Each such place is one id, so where a cut lies among the ids is counted;
to encode both sides by themselves takes a fifth longer.

Starts are found by their last characters before a grid point; the last point in a text is
remembered, so that a chat leaves one entry however long it grows. Then all of it is compared.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

import msgspec
import numpy as np

from inferway.model import TokenIds

# Characters. A text that has grown is encoded from up to so far before the growth: 30 µs.
GRID = 8192

# Of an entry, besides text and ids: dict slots, links, the objects' heads.
_ENTRY_BYTES = 500
_POINT_CHARS = 128  # of two starts that end alike the later one is kept
_MAX_CUTS = 64  # tokens looked for from a text's end; templates use a handful

# Where a start ends, and with what.
Point = tuple[int, str]

# Texts -> the ids of each.
EncodeAll = Callable[[Sequence[str]], list[TokenIds]]


class _Start(msgspec.Struct, frozen=True):
    point: Point
    compared: str  # a text that begins with this ...
    cut: int  # ... can be cut here ...
    ids: TokenIds  # ... and these come before


class _Cut(NamedTuple):
    place: int  # in the text
    token: str
    token_id: int


class PrefixTokenCache:
    """Encodes growing texts and remembers the ids of their starts. Any thread may encode. It holds
    at most `max_bytes` and drops the least recently used starts first."""

    def __init__(
        self,
        encode_all: EncodeAll,
        cuts: Mapping[str, int],
        max_bytes: int,
        grid: int = GRID,
    ) -> None:
        """`cuts`: tokens whose every occurrence is a cut, and their ids (`SplitPoints.apart`)."""
        self.num_bytes = 0
        self._encode_all = encode_all
        self._cuts = list(cuts.items())[:_MAX_CUTS]
        self._max_bytes = max_bytes
        self._grid = grid
        self._starts: OrderedDict[Point, _Start] = OrderedDict()
        self._lock = Lock()

    def encode(self, text: str) -> TokenIds:
        if len(text) < self._grid or not self._cuts:
            return self._encode_all([text])[0]
        known = self._find(text)
        begin = known.cut if known else 0
        [ids] = self._encode_all([text[begin:]])
        end = len(text) - len(text) % self._grid
        cut = self._last_cut(text, begin, end)
        num_before = _num_ids_before(cut, text, begin, ids) if cut else 0
        if known:
            ids = np.concatenate([known.ids, ids])
        if cut and num_before:
            num_before += len(known.ids) if known else 0
            self._keep(_Start(_point(text, end), text[:end], cut.place, ids[:num_before]), known)
        return ids

    def num_new_chars(self, text: str) -> int:
        """Return how many characters of `text` follow the start that is remembered."""
        known = self._find(text)
        return len(text) - (known.cut if known else 0)

    def _find(self, text: str) -> _Start | None:
        with self._lock:
            for end in range(len(text) - len(text) % self._grid, 0, -self._grid):
                start = self._starts.get(_point(text, end))
                if start is not None and text.startswith(start.compared):
                    self._starts.move_to_end(start.point)
                    return start
        return None

    def _last_cut(self, text: str, begin: int, end: int) -> _Cut | None:
        """Between the two. Which of several tokens' is not important: the one that was found last
        time is looked for first."""
        for i, (token, token_id) in enumerate(self._cuts):
            place = text.rfind(token, begin + 1, end)
            if place >= 0:
                if i:
                    self._cuts = [self._cuts[i], *self._cuts[:i], *self._cuts[i + 1 :]]
                return _Cut(place, token, token_id)
        return None

    def _keep(self, start: _Start, grown_from: _Start | None) -> None:
        with self._lock:
            self._drop(start.point)
            if grown_from is not None:  # by whom it is shared, he makes it anew
                self._drop(grown_from.point)
            self._starts[start.point] = start
            self.num_bytes += _num_bytes(start)
            while self.num_bytes > self._max_bytes:
                self._drop(next(iter(self._starts)))

    def _drop(self, point: Point) -> None:
        start = self._starts.pop(point, None)
        if start is not None:
            self.num_bytes -= _num_bytes(start)


def _num_ids_before(cut: _Cut, text: str, begin: int, ids: TokenIds) -> int:
    """How many of `ids`, those of `text` from `begin` on, come before the cut; 0 if the token's id
    also stands for something else."""
    places = np.flatnonzero(ids == cut.token_id)
    before = text.count(cut.token, begin, cut.place)
    if before + text.count(cut.token, cut.place) != len(places):
        return 0
    return int(places[before])


def _point(text: str, end: int) -> Point:
    return end, text[max(0, end - _POINT_CHARS) : end]


def _num_bytes(start: _Start) -> int:
    # `ids` are a view; what lies behind them, a turn or two, is not counted
    return sys.getsizeof(start.compared) + start.ids.nbytes + _ENTRY_BYTES
