"""A cache of encoded starts of texts, so that a growing chat is not encoded anew each time.

A text may be cut so that both sides have the ids that they have in the whole where an added token
begins. `tokenizers` (0.23, src/tokenizer/added_vocabulary.rs) makes it exact:

1. It cuts a text at its added tokens before it does anything else. Normaliser, pre-tokenizer and
   model then see one segment between two added tokens at a time, never its neighbours.
2. Added tokens are found from left to right, the longest at each place. So a token whose letters
   can share no character with another token's, or with its own once more, is found wherever its
   letters stand, whatever is around them: only such tokens are used (`apart`).
3. Tokens with `normalized` are looked for later, in what the normaliser has made of a segment.
   Without a normaliser that is the text itself; then they are cuts too.
4. `lstrip`, `rstrip` and `single_word` look at the characters next to a token. At a cut these are
   the first of the token that begins there, and the last of the token before: no spaces.
   (`single_word` also asks for words: then a text is not cut at all.)
5. The only step that asks where in the text a segment stands is Metaspace with
   `prepend_scheme: first`: is it the very beginning? A segment behind a cut never is, for the
   token stands before it; the first piece is, in the text as by itself.
6. What the post-processor does to ids, it does around the whole text.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock

import msgspec
import numpy as np
import tokenizers

from inferway.model import TokenIds


def find_cuts(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    """Return the tokens at whose every occurrence a text may be cut, and their ids, by points 2 to
    4 of the module's docstring; none if no cut is certain to be exact."""
    by_id = tokenizer.get_added_tokens_decoder()
    if (
        tokenizer.encode_special_tokens  # then some of them are ordinary text
        or any(token.single_word for token in by_id.values())
        or getattr(tokenizer.model, "dropout", None)  # no two encodings are alike
    ):
        return {}
    ids = {
        token.content: token_id
        for token_id, token in by_id.items()
        if not (token.normalized and tokenizer.normalizer is not None)
        and not (token.lstrip or token.content[0].isspace() or token.content[-1].isspace())
    }
    contents = [token.content for token in by_id.values()]
    return {content: ids[content] for content in apart(ids, contents)}


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

# Characters. A text that has grown is encoded from up to so far before the growth: 30 µs.
GRID = 8192

_POINT_CHARS = 128  # of two starts that end alike the later one is kept

# Where a start ends, and with what.
Point = tuple[int, str]


def _num_bytes(text: str, ids: TokenIds) -> int:
    # Ids of a start are a view; what lies behind them, a turn or two, is not counted.
    return sys.getsizeof(text) + ids.nbytes + _ENTRY_BYTES


class _Start(msgspec.Struct, frozen=True):
    point: Point
    compared: str  # a text that begins with this ...
    cut: int  # ... can be cut here ...
    ids: TokenIds  # ... and these come before


class PrefixTokenCache:
    """Encodes growing texts and remembers the ids of their starts, up to a late cut. Any thread may
    encode. It holds at most `max_bytes` and drops the least recently used starts first.

    Each place where a cut's letters stand is a cut, whatever comes behind it, so the last one is
    found from the text's end. It is one id, so where it lies among the ids is counted; to encode
    both sides by themselves takes a fifth longer.

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
        """`cuts` as `find_cuts` returns them."""
        self.num_bytes = 0
        self._encode_all = encode_all
        self._cuts = cuts
        self._tokens = {token_id: token for token, token_id in cuts.items()}
        self._last_found = ""
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
        place, token = self._last_cut(text, begin, end, ids)
        num_before = self._num_ids_before(place, token, text, begin, ids) if token else None
        if known:
            ids = np.concatenate([known.ids, ids])
        if num_before:
            num_before += len(known.ids) if known else 0
            self._keep(_Start(_point(text, end), text[:end], place, ids[:num_before]), known)
        return ids

    def encode_settled(self, text: str, place: int) -> TokenIds:
        """Return the ids of `text` up to its last cut that does not begin behind `place`: of a text
        that ends there, the ids that are the same whatever follows."""
        longest = max(map(len, self._cuts), default=0)
        text = text[: place + longest]
        ids = self.encode(text)
        settled = 0
        for token in self._tokens_in(ids):
            at = text.rfind(token, 0, place + len(token))
            before = self._num_ids_before(at, token, text, 0, ids) if at >= 0 else None
            if before is not None:
                settled = max(settled, before + (at + len(token) <= place))
        return ids[:settled]

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

    def _last_cut(self, text: str, begin: int, end: int, ids: TokenIds) -> tuple[int, str]:
        """Return the last cut between the two, and its token, which is empty if there is none.
        Which of several tokens' is not important: the one that was found last time is looked for
        first, then those that `ids` have."""
        last_found = self._last_found  # other threads write it
        if last_found:
            place = text.rfind(last_found, begin + 1, end)
            if place >= 0:
                return place, last_found
        for token in self._tokens_in(ids):
            place = text.rfind(token, begin + 1, end)
            if place >= 0:
                self._last_found = token
                return place, token
        return 0, ""

    def _tokens_in(self, ids: TokenIds) -> Iterator[str]:
        """Yield the cuts that may be among the ids."""
        return filter(None, map(self._tokens.get, set(ids.tolist())))

    def _num_ids_before(
        self, place: int, token: str, text: str, begin: int, ids: TokenIds
    ) -> int | None:
        """Return how many of `ids`, those of `text` from `begin` on, come before the token at
        `place`; None if its id also stands for something else."""
        places = np.flatnonzero(ids == self._cuts[token])
        before = text.count(token, begin, place)
        is_clear = before + text.count(token, place) == len(places)
        return int(places[before]) if is_clear else None

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


def _point(text: str, end: int) -> Point:
    return end, text[max(0, end - _POINT_CHARS) : end]
