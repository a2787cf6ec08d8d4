"""The blocks of a prompt by the token that they end at, for engines whose blocks have several
sizes.

Keys of whole blocks are a chain (`keys`). A block that ends within one of them, because its group
has smaller blocks or because it is the last part of a prompt, has a key that begins at the whole
block before it: a chain of `unit` tokens each, with other constants than whole blocks of that size
have, so that an engine with such blocks never meets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from inferway.kv.blocks.extra_keys import BlockExtras
from inferway.kv.blocks.keys import BlockHasher
from inferway.model import BlockKey, MediaSpan, TokenIds

_WITHIN = 0x5D1E_57A6_0F1C_E5ED  # what the seed of keys within blocks differs by


@lru_cache(maxsize=64)
def hasher_within(unit: int, seed: int, lookahead: int = 0) -> BlockHasher:
    """Return what makes keys within blocks."""
    return BlockHasher(unit, seed ^ _WITHIN, lookahead)


class PromptPlaces:
    """`kv.index.protocol.Places` of one prompt, whose whole blocks `hasher` has made keys of."""

    __slots__ = (
        "_extras",
        "_hasher",
        "_ids",
        "_keys",
        "_media",
        "_within",
        "block_size",
        "num_hashed",
    )

    def __init__(
        self,
        hasher: BlockHasher,
        token_ids: TokenIds,
        keys: Sequence[BlockKey],
        extras: BlockExtras | None = None,
        media: Sequence[MediaSpan] = (),
    ) -> None:
        """`extras` are the request's without its media."""
        self.block_size = hasher.block_size
        self.num_hashed = max(len(token_ids) - hasher.lookahead, 0)
        self._hasher = hasher
        self._ids = token_ids
        self._keys = keys
        self._extras = extras
        self._media = media
        self._within: dict[tuple[int, int], list[BlockKey]] = {}  # block and unit -> its parts

    @property
    def num_tokens(self) -> int:
        """The tokens of the prompt."""
        return len(self._ids)

    def key(self, end: int, unit: int) -> BlockKey | None:
        """Return the key of the block that ends at token `end`; None if there is none."""
        size = self.block_size
        block, within = divmod(end, size)
        if not within:
            return self._keys[block - 1] if 0 < block <= len(self._keys) else None
        if within % unit or end > self.num_hashed or block > len(self._keys):
            return None
        parts = self._within.get((block, unit))
        if parts is None:
            parts = self._within[block, unit] = self._parts(block, unit)
        at = within // unit - 1
        return parts[at] if at < len(parts) else None

    def _parts(self, block: int, unit: int) -> list[BlockKey]:
        hasher = self._hasher
        within = hasher_within(unit, hasher.seed, hasher.lookahead)
        start = block * hasher.block_size
        ids = self._ids[start : start + hasher.block_size + hasher.lookahead]
        extras = self._extras
        if block and extras is not None:
            extras = BlockExtras(extras.every)  # a request's other extras are the first block's
        if self._media:
            of_media = BlockExtras().with_media(self._media, unit, hasher.lookahead)
            extras = (extras or BlockExtras()).joined(of_media.behind(start // unit))
        parent = self._keys[block - 1] if block else None
        return within.keys(np.ascontiguousarray(ids), extras, parent)
