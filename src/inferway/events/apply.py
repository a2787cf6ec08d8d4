"""One engine's events -> index operations. Returns them; does not call the index.

The engine names a block by its hash, the index by our key. The bridge between them is here: a
stored block's key is computed from the tokens in the event, continued from its parent's key.

Copies. vLLM does not merge equal blocks (block_pool.py, NOTE #1): a prompt whose length is a
multiple of the block size always recomputes its last block, so that one hash is then stored
twice. It publishes one BlockStored for each physical copy and one BlockRemoved for each that is
evicted, and each tier (medium) does so apart. So copies are counted, per tier and hash, and a
key is removed from the index when its last copy anywhere is gone. A removal of what the tier was
never said to hold (an orphan, or stored before we joined) takes nothing away.

Groups. Models with several kinds of attention publish each block once per KV-cache group. The
full-attention group decides what prefix can be reused; events of other groups are counted and
skipped. Which group that is, the events say (`kv_cache_spec_kind`); until one does, group 0.

Orphans. A block whose parent we do not know cannot be keyed: its hash covers tokens that we have
not seen, and guessing would make wrong keys. It is counted and skipped, and its children with
it, unless its own hash is known from another copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway.blocks.extra_keys import event_extras
from inferway.blocks.keys import BlockHasher
from inferway.events.wire import BlockRemoved, BlockStored, Event
from inferway.index.protocol import Clear, Op, Remove, Store
from inferway.model import BlockKey, HolderId, TokenIds

MAX_ORPHANS = 100_000  # remembered, so that their number is known

_FULL_ATTENTION = ("full_attention", "mla_attention", "sink_full_attention")
_DEFAULT_TIER = "GPU"


@dataclass(slots=True)
class ApplyStats:
    """Plain integers, read when somebody scrapes. Blocks, but for `cleared` and `skipped`."""

    stored: int = 0  # copies
    removed: int = 0  # copies
    orphans: int = 0  # skipped, because their parent is unknown
    cleared: int = 0  # times that the engine dropped everything
    other_block_size: int = 0  # events of another block size than expected
    skipped: dict[str, int] = field(default_factory=dict)  # events, by reason

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


class EngineBlocks:
    """What one holder's engine told us it holds: the bridge from its hashes to our keys."""

    def __init__(self, holder: HolderId, block_size: int, seed: int = 0) -> None:
        self.holder = holder
        self.block_size = block_size  # what prompts for this engine are cut into
        self.block_size_seen: int | None = None  # what its last event said
        self.first_tokens: TokenIds | None = None  # of the last block that began a prompt
        self.stats = ApplyStats()
        self._seed = seed
        self._hashers: dict[int, BlockHasher] = {}
        self._tiers: dict[str, dict[int, BlockKey]] = {}  # tier -> hash -> key, one copy or more
        self._more: dict[tuple[str, int], int] = {}  # (tier, hash) -> copies beyond the first
        self._places: dict[BlockKey, int] = {}  # in how many (tier, hash) a key is
        self._orphans: dict[int, None] = {}
        self._group: int | None = None  # the group that decides; None: not told yet

    @property
    def num_orphans(self) -> int:
        """Blocks the engine holds, as far as we know, that no prompt can be matched with."""
        return len(self._orphans)

    def apply(self, event: Event) -> list[Op]:
        """What the index must do so that it stays true."""
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, BlockRemoved):
            return self._removed(event)
        self.stats.cleared += 1
        return self.forget()

    def forget(self) -> list[Op]:
        """As if we had never heard of the engine; the counters go on."""
        for known in (self._tiers, self._more, self._places, self._orphans):
            known.clear()
        return [Clear(self.holder)]

    def _stored(self, event: BlockStored) -> list[Op]:
        if not self._counts(event.locality, event.group_idx, event.spec_kind):
            return []
        if not event.token_ids:
            pairs = self._known_pairs(event.block_hashes)
        else:
            pairs = list(zip(event.block_hashes, self._keys(event), strict=False))
            self._note_orphans(event.block_hashes[len(pairs) :])
        tier = event.medium or _DEFAULT_TIER
        new = [key for block_hash, key in pairs if self._add_copy(tier, block_hash, key)]
        self.stats.stored += len(pairs)
        return [Store(self.holder, new)] if new else []

    def _removed(self, event: BlockRemoved) -> list[Op]:
        if not self._counts(event.locality, event.group_idx, None):
            return []
        tier = event.medium or _DEFAULT_TIER
        gone = [key for h in event.block_hashes if (key := self._drop_copy(tier, h)) is not None]
        return [Remove(self.holder, gone)] if gone else []

    def _counts(self, locality: str | None, group_idx: int | None, kind: str | None) -> bool:
        """Whether an event says something of prefixes that this engine itself can reuse."""
        if locality == "REMOTE":
            self.stats.skip("remote")
            return False
        group = group_idx or 0  # None: there is only one
        if self._group is None and kind in _FULL_ATTENTION:
            self._group = group
        if group != (self._group or 0) or (kind is not None and kind not in _FULL_ATTENTION):
            self.stats.skip("other_group")
            return False
        return True

    def _keys(self, event: BlockStored) -> Sequence[BlockKey]:
        """Keys of the event's blocks; none when they are orphans."""
        self.block_size_seen = event.block_size
        self.stats.other_block_size += event.block_size != self.block_size
        first, parent = 0, None
        if event.parent_hash is not None:
            parent = self._key_of(event.parent_hash)
            if parent is None and event.block_hashes:  # the first may be known from another copy
                first, parent = 1, self._key_of(event.block_hashes[0])
            if parent is None:
                return []
        extra_keys = event.extra_keys[first:] if event.extra_keys else None
        extras = event_extras(event.lora_name, extra_keys, event.lora_id)
        tokens = np.array(event.token_ids[first * event.block_size :], dtype=np.uint32)
        keys = self._hasher(event.block_size).keys(tokens, extras, parent)
        return [parent, *keys] if first and parent is not None else keys

    def _hasher(self, block_size: int) -> BlockHasher:
        hasher = self._hashers.get(block_size)
        if hasher is None:
            hasher = self._hashers[block_size] = BlockHasher(block_size, self._seed)
        return hasher

    def _key_of(self, block_hash: int) -> BlockKey | None:
        for tier in self._tiers.values():
            key = tier.get(block_hash)
            if key is not None:
                return key
        return None

    def _known_pairs(self, hashes: Sequence[int]) -> list[tuple[int, BlockKey]]:
        """Of an event without tokens: blocks that other events have given a key."""
        pairs = [(h, key) for h in hashes if (key := self._key_of(h)) is not None]
        if len(pairs) < len(hashes):
            self.stats.skip("unknown_hash")
        return pairs

    def _add_copy(self, tier: str, block_hash: int, key: BlockKey) -> bool:
        """Whether the holder has `key` only now."""
        keys = self._tiers.setdefault(tier, {})
        if block_hash in keys:
            place = (tier, block_hash)
            self._more[place] = self._more.get(place, 0) + 1
            return False
        keys[block_hash] = key
        places = self._places.get(key, 0)
        self._places[key] = places + 1
        if self._orphans:
            self._orphans.pop(block_hash, None)
        return places == 0

    def _drop_copy(self, tier: str, block_hash: int) -> BlockKey | None:
        """The key, if that was the last copy of it."""
        keys = self._tiers.get(tier, {})
        key = keys.get(block_hash)
        if key is None:
            self._orphans.pop(block_hash, None)
            return None
        self.stats.removed += 1
        more = self._more.pop((tier, block_hash), 0)
        if more:
            if more > 1:
                self._more[tier, block_hash] = more - 1
            return None
        del keys[block_hash]
        places = self._places.pop(key) - 1
        if places:
            self._places[key] = places
            return None
        return key

    def _note_orphans(self, hashes: Sequence[int]) -> None:
        self.stats.orphans += len(hashes)
        for block_hash in hashes:
            self._orphans[block_hash] = None
        while len(self._orphans) > MAX_ORPHANS:
            del self._orphans[next(iter(self._orphans))]
