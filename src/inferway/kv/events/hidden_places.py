"""Places of blocks whose events do not tell them, from hashes made as the engine makes them.

An event that skips blocks names fewer hashes than its tokens have blocks, and that of a prompt's
last part has the tokens of that part alone. Whoever hashes all parts of the tokens as the engine
does (`dialect_finder`) finds those hashes among them. A hash covers the one before it in full, and
the wire carries 64 bits of it, so what was hashed is remembered, for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from inferway.kv.blocks.dialects import Dialect, HashExtra, LoraAdapter, hash_extras, wire_hash
from inferway.kv.blocks.extra_keys import BlockExtras, request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import hasher_within
from inferway.kv.index.reuse import CacheLayout
from inferway.model import BlockKey, MediaSpan, TokenIds

MOST_PLACES = 32_768  # of an engine: some 10 MB

_TOKEN = np.dtype(np.uint32)


class HiddenPlace(Struct, frozen=True, gc=False):
    """A place at which a block may end."""

    digest: bytes
    key: BlockKey | None  # None: it is not known
    parent: BlockKey | None  # the whole block before
    within: int  # tokens behind that one; 0: a whole block ends here


class Beside(Struct, frozen=True):
    """The values that are hashed beside the tokens of a prompt."""

    lora: LoraAdapter | None = None
    cache_salt: str | None = None
    media: Sequence[MediaSpan] = ()  # of the whole prompt

    def extras(self, *, at_start: bool) -> BlockExtras | None:
        """Return the extras of keys, at a prompt's start or behind it, but for its media."""
        lora, salt = self.lora, self.cache_salt if at_start else None
        if lora is None:
            return request_extras(None, salt)
        return request_extras(lora.name, salt, lora.path if at_start else None)

    def of_media(self, start: int, size: int, lookahead: int) -> BlockExtras:
        """Return the extras of blocks of `size` tokens that begin at token `start`."""
        return BlockExtras().with_media(self.media, size, lookahead).behind(start // size)

    def hashed(
        self, first: bool, start: int, unit: int, lookahead: int
    ) -> tuple[HashExtra, ...] | None:
        """Return what is hashed beside a part of `unit` tokens; `first`: it begins a prompt."""
        media: Sequence[tuple[str, int]] = ()
        if self.media:
            items = self.of_media(start, unit, lookahead).at.get(0, ())
            media = [(name, at) for _, name, at in items]
        return hash_extras(self.lora, self.cache_salt if first else None, media)


class HiddenPlaces:
    """The places that were hashed of one engine, by hashes as its events carry them."""

    def __init__(self, key_of: Callable[[int], BlockKey | None]) -> None:
        """`key_of` knows the keys of whole blocks by their hashes."""
        self._key_of = key_of
        self._places: OrderedDict[int, HiddenPlace] = OrderedDict()
        self._hash_of: dict[BlockKey, int] = {}  # of whole blocks

    def find(self, block_hash: int) -> HiddenPlace | None:
        """Return the place of a hash; None if it is not known."""
        return self._places.get(block_hash)

    def last_of(self, keys: Sequence[BlockKey]) -> int:
        """Return how many of a prompt's blocks lie before the first that is to be hashed."""
        known = self._hash_of
        return next((i for i in range(len(keys), 0, -1) if keys[i - 1] in known), 0)

    def hash_of(self, key: BlockKey) -> int:
        """Return the hash of a whole block that `last_of` has counted."""
        return self._hash_of[key]

    def clear(self) -> None:
        """Forget them all."""
        self._places.clear()
        self._hash_of.clear()

    def follow(
        self,
        dialect: Dialect,
        layout: CacheLayout,
        hasher: BlockHasher,
        parent_hash: int | None,
        tokens: Sequence[int] | TokenIds,
        beside: Beside,
        first_token: int = 0,
    ) -> list[int]:
        """Hash tokens that follow on a block; None: they begin a prompt. With look-ahead hashes,
        `tokens` has those behind the last part as well. `first_token` is the number of the first of
        them in the prompt, where `beside` has media. Return the hashes of all parts; none if the
        block is not known."""
        start = HiddenPlace(b"", None, None, 0)
        if parent_hash is not None:
            found = self._places.get(parent_hash)
            if found is None:
                return []
            start = found
        unit, ahead, digest = layout.unit, layout.lookahead, start.digest or None
        ids = np.asarray(tokens, _TOKEN)
        keys = _PartKeys(hasher, unit, start, beside, first_token, is_start=parent_hash is None)
        keys.begin(ids)
        hashes: list[int] = []
        for at in range(0, len(ids) - ahead - unit + 1, unit):
            end = at + unit
            first = parent_hash is None and at == 0
            extra = beside.hashed(first, first_token + at, unit, ahead)
            behind = tuple(ids[end : end + ahead].tolist())
            digest = dialect.block_hash(digest, ids[at:end].tolist(), extra, behind)
            block_hash = wire_hash(digest)
            key, parent, within = keys.next(ids, at, partial(self._key_of, block_hash))
            self._add(block_hash, HiddenPlace(digest, key, parent, within))
            if not within and key is not None:
                self._hash_of[key] = block_hash
            hashes.append(block_hash)
        return hashes

    def _add(self, block_hash: int, place: HiddenPlace) -> None:
        self._places[block_hash] = place
        self._places.move_to_end(block_hash)
        if len(self._places) > MOST_PLACES:
            gone, oldest = self._places.popitem(last=False)
            if oldest.key is not None and self._hash_of.get(oldest.key) == gone:
                del self._hash_of[oldest.key]


class _PartKeys:
    """The keys of parts of blocks, one after the other: `next` is asked for each part of `unit`
    tokens, from the place `start` on."""

    def __init__(
        self,
        hasher: BlockHasher,
        unit: int,
        start: HiddenPlace,
        beside: Beside,
        first_token: int,
        *,
        is_start: bool,
    ) -> None:
        self._hasher = hasher
        self._unit = unit
        self._inner = hasher_within(unit, hasher.seed, hasher.lookahead)
        self._within = start.within
        self._base = start.parent if start.within else start.key  # the whole block before
        self._previous = start.key
        self._is_known = is_start or start.key is not None
        self._beside = beside
        self._next_token = first_token
        self._extras = beside.extras(at_start=is_start)
        self._whole: list[BlockKey] = []  # keys of the next whole blocks

    def begin(self, ids: TokenIds) -> None:
        """Take the tokens that follow."""
        if not self._within and self._is_known:
            extras = self._with_media(self._extras, self._hasher.block_size)
            self._whole = self._hasher.keys(ids, extras, self._base)[::-1]

    def next(
        self, ids: TokenIds, at: int, known: Callable[[], BlockKey | None]
    ) -> tuple[BlockKey | None, BlockKey | None, int]:
        """Return the key of the part that begins at a token, the whole block before it, and the
        tokens behind that one, 0 at a block's end. `known` knows the key of a whole block."""
        self._within += self._unit
        extras = self._with_media(self._extras, self._unit)
        self._next_token += self._unit
        if self._extras is not None:
            every = self._extras.every
            self._extras = BlockExtras(every) if every else None
        if self._within < self._hasher.block_size:
            key = None
            if self._is_known:
                part = ids[at : at + self._unit + self._hasher.lookahead]
                key = self._previous = self._inner.keys(part, extras, self._previous)[0]
            return key, self._base, self._within
        key = self._whole.pop() if self._whole else known()
        parent, self._base, self._previous = self._base, key, key
        self._is_known, self._within = key is not None, 0
        if not self._whole:
            self.begin(ids[at + self._unit :])
        return key, parent, 0

    def _with_media(self, extras: BlockExtras | None, size: int) -> BlockExtras | None:
        """Return the extras of blocks of `size` tokens that begin at the next part."""
        if not self._beside.media:
            return extras
        of_media = self._beside.of_media(self._next_token, size, self._hasher.lookahead)
        return (extras or BlockExtras()).joined(of_media)
