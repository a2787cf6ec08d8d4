"""Encode a growing chat without encoding again what was there before.

A text is cut where an added token begins, and the ids of each piece (that token and what follows
it) are remembered. `tokenizers` (0.23, src/tokenizer/added_vocabulary.rs) makes this exact:

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

Finding, cutting and looking up two thousand pieces costs more than encoding the new one. So of the
texts seen last the ids up to a late cut are remembered as well, and a text that begins like one of
them is cut only from there on. The beginnings are compared up to the longest token's length behind
that cut: no token that begins before it can then be another one.

Long text without added tokens (one message of 400 kB that grows) gains nothing.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import tokenizers

from inferway.model import TokenIds

# Texts with fewer pieces are not remembered as a whole.
_MANY_PIECES = 32
_MAX_TEXTS = 64  # each is compared with every text that comes

EncodeAll = Callable[[Sequence[str]], list[TokenIds]]

# Of an entry, besides text and ids: dict slots, links, the objects' heads.
_ENTRY_BYTES = 300


@dataclass(frozen=True, slots=True)
class Cuts:
    found: list[str]  # all that the pattern must find
    cuts: frozenset[str]  # those of them at which a text may be cut


class PieceCache:
    """Any thread may encode. Holds at most `max_bytes`, half of it for texts as a whole; what was
    used longest ago goes first."""

    def __init__(self, encode_all: EncodeAll, cuts: Cuts, max_bytes: int) -> None:
        self._encode_all = encode_all
        by_length = sorted(cuts.found, key=len, reverse=True)
        self._longest = len(by_length[0]) if by_length else 0
        self._pattern = re.compile("|".join(map(re.escape, by_length)))
        self._cuts = cuts.cuts
        self._pieces = _Remembered(max_bytes // 2)
        self._starts = _Remembered(max_bytes // 2, _MAX_TEXTS)
        self._lock = Lock()

    @property
    def num_bytes(self) -> int:
        return self._pieces.num_bytes + self._starts.num_bytes

    def encode(self, text: str) -> TokenIds:
        with self._lock:
            compared = self._starts.longest_start_of(text)
            start_ids = self._starts.get(compared) if compared else None
        start = len(compared) - self._longest if compared else 0
        pieces = list(self._cut(text, start))
        if start_ids is None and len(pieces) < 2:
            return self._encode_all([text])[0]
        all_ids = self._encode_pieces(pieces)
        if start_ids is not None:
            all_ids.insert(0, start_ids)
            pieces.insert(0, text[:start])
        if start_ids is not None or len(pieces) >= _MANY_PIECES:
            self._remember_start(text, pieces, all_ids, compared)
        return np.concatenate(all_ids)

    def _cut(self, text: str, start: int) -> Iterator[str]:
        for match in self._pattern.finditer(text, start):
            if match.start() > start and match.group() in self._cuts:
                yield text[start : match.start()]
                start = match.start()
        yield text[start:]

    def _encode_pieces(self, pieces: list[str]) -> list[TokenIds]:
        with self._lock:
            known = {p: ids for p in pieces if (ids := self._pieces.get(p)) is not None}
        missing = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        if missing:
            found = dict(zip(missing, self._encode_all(missing), strict=True))
            with self._lock:
                for piece, ids in found.items():
                    self._pieces.keep(piece, ids)
            known |= found
        return [known[piece] for piece in pieces]

    def _remember_start(
        self, text: str, pieces: list[str], all_ids: list[TokenIds], grown_from: str | None
    ) -> None:
        """The ids up to the last cut that has text enough behind it."""
        cut, count = len(text), len(pieces)
        while count and cut + self._longest > len(text):
            count -= 1
            cut -= len(pieces[count])
        compared = text[: cut + self._longest]
        if not count or compared == grown_from:
            return
        ids = np.concatenate(all_ids[:count])
        with self._lock:
            if grown_from is not None:
                self._starts.drop(grown_from)
            self._starts.keep(compared, ids)


class _Remembered:
    """Text -> its ids, the most recently used; the owner has the lock."""

    def __init__(self, max_bytes: int, max_texts: int = sys.maxsize) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._max_texts = max_texts
        self._ids: OrderedDict[str, TokenIds] = OrderedDict()

    def get(self, text: str) -> TokenIds | None:
        ids = self._ids.get(text)
        if ids is not None:
            self._ids.move_to_end(text)
        return ids

    def longest_start_of(self, text: str) -> str | None:
        return max(filter(text.startswith, self._ids), key=len, default=None)

    def keep(self, text: str, ids: TokenIds) -> None:
        if text not in self._ids:
            self._ids[text] = ids
            self.num_bytes += _num_bytes(text, ids)
        while self.num_bytes > self._max_bytes or len(self._ids) > self._max_texts:
            self.num_bytes -= _num_bytes(*self._ids.popitem(last=False))

    def drop(self, text: str) -> None:
        ids = self._ids.pop(text, None)
        if ids is not None:
            self.num_bytes -= _num_bytes(text, ids)


def _num_bytes(piece: str, ids: TokenIds) -> int:
    return sys.getsizeof(piece) + ids.nbytes + _ENTRY_BYTES


def find_cuts(tokenizer: tokenizers.Tokenizer) -> Cuts:
    """Where texts may be cut for this tokenizer (points 2 to 4 above); nowhere, if need be."""
    tokens = list(tokenizer.get_added_tokens_decoder().values())
    if (
        tokenizer.encode_special_tokens  # then some of them are ordinary text
        or any(token.single_word for token in tokens)
        or getattr(tokenizer.model, "dropout", None)  # no two encodings are alike
    ):
        return Cuts([], frozenset())
    first_round = [token for token in tokens if not token.normalized]
    found = [token.content for token in first_round]
    usable = first_round
    if tokenizer.normalizer is None:
        contents = [token.content for token in tokens]
        apart = _not_overlapping([token.content for token in tokens if token.normalized], contents)
        found += apart
        usable = [token for token in tokens if token.content in set(found)]
    cuts = [
        token.content
        for token in usable
        if not token.lstrip and not token.content[0].isspace() and not token.content[-1].isspace()
    ]
    return Cuts(found, frozenset(cuts))


def _not_overlapping(candidates: list[str], contents: list[str]) -> list[str]:
    """Those of which no occurrence can share a character with one of another of `contents`."""
    return [
        candidate
        for candidate in candidates
        if not any(
            candidate != content and (_overlap(candidate, content) or _overlap(content, candidate))
            for content in contents
        )
    ]


def _overlap(first: str, second: str) -> bool:
    """Whether `second` can begin inside an occurrence of `first`, or is in it."""
    return any(first.startswith(second[: len(first) - start], start) for start in range(len(first)))
