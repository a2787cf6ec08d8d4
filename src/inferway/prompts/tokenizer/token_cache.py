"""What was encoded before is not encoded again: pieces of a text, and the start of a growing chat.

A text may be cut so that its pieces have the ids that they have in the whole where an added token
begins. `tokenizers` (0.23, src/tokenizer/added_vocabulary.rs) makes it exact:

1. It cuts a text at its added tokens before it does anything else. Normaliser, pre-tokenizer and
   model then see one segment between two added tokens at a time, never its neighbours.
2. Added tokens are found from left to right, the longest at each place: as by a pattern of
   alternatives, the longest first. So a piece that begins with one is cut as it was in the text.
3. Tokens with `normalized` are looked for later, in what the normaliser has made of a segment.
   Without a normaliser that is the text itself; then they are cuts too, if no token, in either
   round, can overlap them.
4. `lstrip`, `rstrip` and `single_word` look at the characters next to a token. At a cut these are
   the first of the token that begins there, and the last of the token before: no spaces.
   (`single_word` also asks for words: then a text is not cut at all.)
5. The only step that asks where in the text a segment stands is Metaspace with
   `prepend_scheme: first`: is it the very beginning? A segment behind a cut never is, for the
   token stands before it; the first piece is, in the text as by itself.
6. What the post-processor does to ids, it does around the whole text.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import msgspec
import numpy as np
import tokenizers

from inferway.model import TokenIds


@dataclass(frozen=True, slots=True)
class SplitPoints:
    found: list[str]  # all that a pattern must find, going from left to right
    cuts: frozenset[str]  # those of them at which a text may be cut
    apart: dict[str, int]  # those again which may be looked for by themselves, and their ids


def find_split_points(tokenizer: tokenizers.Tokenizer) -> SplitPoints:
    """Return where texts may be cut for this tokenizer, by points 2 to 4 of the module's docstring.
    The result is empty if no cut is certain to be exact."""
    by_id = tokenizer.get_added_tokens_decoder()
    tokens = list(by_id.values())
    if (
        tokenizer.encode_special_tokens  # then some of them are ordinary text
        or any(token.single_word for token in tokens)
        or getattr(tokenizer.model, "dropout", None)  # no two encodings are alike
    ):
        return SplitPoints([], frozenset(), {})
    contents = [token.content for token in tokens]
    usable = [token for token in tokens if not token.normalized]
    if tokenizer.normalizer is None:
        late = set(apart([token.content for token in tokens if token.normalized], contents))
        usable += [token for token in tokens if token.content in late]
    cuts = [
        token.content
        for token in usable
        if not token.lstrip and not token.content[0].isspace() and not token.content[-1].isspace()
    ]
    ids = {token.content: token_id for token_id, token in by_id.items()}
    found = [token.content for token in usable]
    return SplitPoints(found, frozenset(cuts), {cut: ids[cut] for cut in apart(cuts, contents)})


def apart(candidates: Iterable[str], contents: Collection[str]) -> list[str]:
    """Return those of `candidates` whose occurrences in a text cannot share a character with an
    occurrence of another one of `contents`, or with another occurrence of their own."""
    beginnings = {content[:end] for content in contents for end in range(1, len(content))}
    endings = {content[start:] for content in contents for start in range(1, len(content))}
    all_contents, joined = frozenset(contents), "\0".join(contents)
    return [
        candidate
        for candidate in candidates
        if joined.count(candidate) == 1
        and not any(
            candidate[i:] in beginnings or candidate[:i] in endings
            for i in range(1, len(candidate))
        )
        and not any(
            candidate[i:j] in all_contents
            for i in range(len(candidate))
            for j in range(i + 1, len(candidate) + (i > 0))
        )
    ]


# Texts -> the ids of each.
EncodeAll = Callable[[Sequence[str]], list[TokenIds]]

# Of an entry, besides text and ids: dict slots, links, the objects' heads.
_ENTRY_BYTES = 500


class SegmentCache:
    """Encodes texts piece by piece and remembers the ids of each piece: an added token and what
    follows it. Any thread may encode. It holds at most `max_bytes` and drops the least recently
    used pieces first. Long text without added tokens gains nothing."""

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
    # Ids of a start are a view; what lies behind them, a turn or two, is not counted.
    return sys.getsizeof(piece) + ids.nbytes + _ENTRY_BYTES


# Characters. A text that has grown is encoded from up to so far before the growth: 30 µs.
GRID = 8192

_POINT_CHARS = 128  # of two starts that end alike the later one is kept
_MAX_CUTS = 64  # tokens looked for from a text's end; templates use a handful

# Where a start ends, and with what.
Point = tuple[int, str]


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
    """Encodes growing texts and remembers the ids of their starts, up to a late cut. Any thread may
    encode. It holds at most `max_bytes` and drops the least recently used starts first.

    Only tokens that can share no character with another one's occurrence are used as cuts: then
    every place where such a token's letters stand is a cut, whatever comes behind it, and the last
    one is found from the text's end. Each such place is one id, so where a cut lies among the ids
    is counted; to encode both sides by themselves takes a fifth longer.

    Starts are found by their last characters before a grid point; the last point in a text is
    remembered, so that a chat leaves one entry however long it grows. Then all of it is
    compared."""

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
            self.num_bytes += _num_bytes(start.compared, start.ids)
            while self.num_bytes > self._max_bytes:
                self._drop(next(iter(self._starts)))

    def _drop(self, point: Point) -> None:
        start = self._starts.pop(point, None)
        if start is not None:
            self.num_bytes -= _num_bytes(start.compared, start.ids)


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
