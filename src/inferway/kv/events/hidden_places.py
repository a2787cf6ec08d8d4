"""Where blocks are whose events do not say it, from hashes made as the engine makes them.

An event that skips blocks names fewer hashes than its tokens have blocks, and that of a prompt's
last part has the tokens of that part alone. Whoever hashes all parts of the tokens as the engine
does (`dialect_finder`) finds those hashes among them. A hash covers the one before it in full, and
the wire carries 64 bits of it, so what was hashed is remembered, for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct

from inferway.kv.blocks.dialects import Dialect, HashExtra, LoraAdapter, hash_extras, wire_hash
from inferway.kv.blocks.extra_keys import BlockExtras, request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import hasher_within
from inferway.kv.index.reuse import CacheLayout
from inferway.model import BlockKey, TokenIds

MOST_PLACES = 32_768  # of an engine: some 10 MB

_TOKEN = np.dtype(np.uint32)


class HiddenPlace(Struct, frozen=True, gc=False):
    """A place at which a block may end."""

    digest: bytes
    key: BlockKey | None  # None: it is not known
    parent: BlockKey | None  # the whole block before
    within: int  # tokens behind that one; 0: a whole block ends here


class Beside(Struct, frozen=True):
    """What is hashed beside the tokens of a prompt."""

    lora: LoraAdapter | None = None
    cache_salt: str | None = None

    def extras(self, *, at_start: bool) -> BlockExtras | None:
        """Return the extras of keys, at a prompt's start or behind it."""
        lora, salt = self.lora, self.cache_salt if at_start else None
        if lora is None:
            return request_extras(None, salt)
        return request_extras(lora.name, salt, lora.path if at_start else None)


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
    ) -> list[int]:
        """Hash tokens that follow on a block; None: they begin a prompt. With look-ahead hashes,
        `tokens` has those behind the last part as well. Return the hashes of all parts; none if the
        block is not known."""
        start = HiddenPlace(b"", None, None, 0)
        if parent_hash is not None:
            found = self._places.get(parent_hash)
            if found is None:
                return []
            start = found
        is_start = parent_hash is None
        base, within = (start.key, 0) if not start.within else (start.parent, start.within)
        previous = start.key
        is_known = is_start or start.key is not None
        unit, size = layout.unit, layout.block_size
        ids = np.asarray(tokens, _TOKEN)
        ahead, digest = layout.lookahead, start.digest or None
        extras = beside.extras(at_start=is_start)
        whole: list[BlockKey] = []
        if not within and is_known:
            whole = hasher.keys(ids, extras, base)
        inner = hasher_within(unit, hasher.seed, ahead)
        hashes: list[int] = []
        block = 0
        for at in range(0, len(ids) - ahead - unit + 1, unit):
            first = is_start and at == 0
            digest = dialect.block_hash(
                digest,
                ids[at : at + unit].tolist(),
                *_hashed_beside(beside, first, ids[at + unit : at + unit + ahead]),
            )
            block_hash, within = wire_hash(digest), within + unit
            if within == size:
                key = whole[block] if block < len(whole) else self._key_of(block_hash)
                block += len(whole) > block
                place = HiddenPlace(digest, key, base, 0)
                base = previous = key
                is_known, within = key is not None, 0
                if key is not None:
                    self._hash_of[key] = block_hash
                    if block == len(whole):
                        whole, block = hasher.keys(ids[at + unit :], _without_first(extras), key), 0
            else:
                if is_known:
                    part = ids[at : at + unit + ahead]
                    own = extras if first else _without_first(extras)
                    previous = inner.keys(part, own, previous)[0]
                place = HiddenPlace(digest, previous if is_known else None, base, within)
            self._add(block_hash, place)
            hashes.append(block_hash)
        return hashes

    def _add(self, block_hash: int, place: HiddenPlace) -> None:
        self._places[block_hash] = place
        self._places.move_to_end(block_hash)
        if len(self._places) > MOST_PLACES:
            gone, oldest = self._places.popitem(last=False)
            if oldest.key is not None and self._hash_of.get(oldest.key) == gone:
                del self._hash_of[oldest.key]


def _hashed_beside(
    beside: Beside, first: bool, ahead: Iterable[int]
) -> tuple[tuple[HashExtra, ...] | None, tuple[int, ...]]:
    salt = beside.cache_salt if first else None
    return hash_extras(beside.lora, salt), tuple(int(token) for token in ahead)


def _without_first(extras: BlockExtras | None) -> BlockExtras | None:
    return None if extras is None or not extras.every else BlockExtras(extras.every)
