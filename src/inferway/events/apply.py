"""One engine's events -> index operations. Returns them; does not call the index.

The engine names a block by its hash, the index by our key. The bridge between them is in
`bridge`: a stored block's key is computed from the tokens in the event, continued from its
parent's key. Copies are counted there: a key is removed from a tier with its last copy in it. A
removal of what the tier was never said to hold (an orphan, or stored before we joined) takes
nothing away.

Groups. Models with several kinds of attention publish each block once per KV-cache group. The
full-attention group decides what prefix can be reused; a sliding-window group must still cover
its last window. Which is which, the events say (`kv_cache_spec_kind`); until one does, group 0
is full attention. A window group's blocks are known by their hashes, which are those of the full
group; their events carry tokens of blocks that have left the window as well, so they cannot be
keyed. Events of other groups (Mamba, local attention) are counted and skipped.

Orphans. A block whose parent we do not know cannot be keyed: its hash covers tokens that we have
not seen, and guessing would make wrong keys. It is counted and skipped, and its children with
it, unless its own hash is known from another copy.

Block sizes. By default keys are those of the engine's own blocks. With `key_block_size`, for an
index that has one size for all engines, they are those of prompts cut into that size: see
`block_sizes`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway.blocks.extra_keys import event_extras
from inferway.blocks.keys import BlockHasher
from inferway.events.block_sizes import ResizedBlocks
from inferway.events.bridge import Bridge, Place
from inferway.events.wire import WINDOW_KINDS, BlockRemoved, BlockStored, Event
from inferway.index.protocol import (
    CPU,
    FULL_ATTENTION,
    GPU,
    STORAGE,
    Clear,
    Copy,
    Holdings,
    Op,
    Remove,
    Store,
    Tier,
    Window,
)
from inferway.model import BlockKey, HolderId, TokenIds

MAX_ORPHANS = 100_000  # remembered, so that their number is known
MAX_TIERS = 8

_FULL_ATTENTION = ("full_attention", "mla_attention", "sink_full_attention")
_SWEEP_EVERY = 32  # events
_SWEEP_BLOCKS = 2048


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
    """What one holder's engine told us it holds.

    With `holdings` (the index itself, if it is in this process), the operations returned must be
    applied to it before the next event is handed in: a third of the memory is saved by asking it
    which keys the holder has.
    """

    def __init__(
        self,
        holder: HolderId,
        block_size: int,
        seed: int = 0,
        *,
        holdings: Holdings | None = None,
        key_block_size: int | None = None,
    ) -> None:
        self.holder = holder
        self.block_size = block_size  # what prompts for this engine are cut into
        self.block_size_seen: int | None = None  # what its last event said
        self.first_tokens: TokenIds | None = None  # of the last block that began a prompt
        self.stats = ApplyStats()
        self._seed = seed
        self._hashers: dict[int, BlockHasher] = {}
        self._bridge = Bridge(holder, holdings)
        self._resized = ResizedBlocks(holder, key_block_size, seed) if key_block_size else None
        self._tiers: dict[str | None, Tier] = {
            None: GPU,
            "GPU": GPU,
            "CPU": CPU,
            "STORAGE": STORAGE,
        }
        self._orphans: dict[int, None] = {}
        self._full: int | None = None  # the group that decides; None: not told yet
        self._windows: dict[int, int] = {}  # engine's group -> blocks
        self._awaited: dict[int, list[Place]] = {}  # window blocks whose full block is to come
        self._events = 0

    @property
    def num_orphans(self) -> int:
        """Blocks the engine holds, as far as we know, that no prompt can be matched with."""
        return len(self._orphans)

    @property
    def num_awaited(self) -> int:
        """Window blocks whose full-attention block we have not heard of."""
        return len(self._awaited)

    @property
    def num_blocks(self) -> int:
        """Hashes that we have a key for, once for each tier and group."""
        return len(self._bridge) + (len(self._resized) if self._resized else 0)

    def apply(self, event: Event) -> list[Op]:
        """What the index must do so that it stays true."""
        self._events += 1
        if not self._events % _SWEEP_EVERY:
            self._bridge.sweep(_SWEEP_BLOCKS)
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, BlockRemoved):
            return self._removed(event)
        self.stats.cleared += 1
        return self.forget()

    def forget(self) -> list[Op]:
        """As if we had never heard of the engine's blocks; what kind of engine it is, and the
        counters, stay. The memory is given back by and by, or by `sweep`."""
        self._bridge.clear()
        if self._resized is not None:
            self._resized.clear()
        self._orphans.clear()
        self._awaited.clear()
        windows = [Window(self.holder, group + 1, n) for group, n in self._windows.items()]
        return [Clear(self.holder), *windows]

    def sweep(self, max_blocks: int) -> bool:
        """Frees what `forget` left, and forgets what the index has evicted; looks at about so
        many blocks. Whether there is more to do."""
        return self._bridge.sweep(max_blocks)

    def num_bytes(self) -> int:
        """About; keys are counted with the index."""
        return self._bridge.num_bytes()

    # events

    def _stored(self, event: BlockStored) -> list[Op]:
        if event.locality is not None or event.group_idx is not None or event.spec_kind is not None:
            if event.locality == "REMOTE":
                return self._skip("remote")
            if not self._is_full(event.group_idx or 0, event.spec_kind):
                return self._stored_window(event)
        tier = self._tier(event.medium)
        if tier is None:
            return self._skip("medium")
        if self._resized is not None:
            return self._stored_resized(self._resized, event, tier)
        if not event.token_ids:
            return self._stored_known(event, tier)
        return self._stored_tokens(event, tier)

    def _stored_tokens(self, event: BlockStored, tier: Tier) -> list[Op]:
        hashes, parent = event.block_hashes, None
        self.block_size_seen = size = event.block_size
        self.stats.other_block_size += size != self.block_size
        tokens = np.frombuffer(array("I", event.token_ids), dtype=np.uint32)
        extra_keys = event.extra_keys
        ops: list[Op] = []
        if event.parent_hash is None:
            self.first_tokens = tokens[:size]
        else:
            parent = self._bridge.key(event.parent_hash)
            if parent is None:  # the first may be known from another copy
                parent = self._bridge.key(hashes[0]) if hashes else None
                if parent is None:
                    self._note_orphans(hashes)
                    return ops
                ops = self._add_known([(hashes[0], parent)], (tier, FULL_ATTENTION))
                hashes, tokens = hashes[1:], tokens[size:]
                extra_keys = extra_keys[1:] if extra_keys else None
        extras = None
        if extra_keys or event.lora_name or event.lora_id is not None:
            extras = event_extras(event.lora_name, extra_keys, event.lora_id)
        keys = self._hasher(size).keys(tokens, extras, parent)
        self.stats.stored += len(hashes)
        had = self._bridge.add((tier, FULL_ATTENTION), hashes, keys)
        if had:
            parent, new = _between(keys, had, parent)
        else:
            new = keys
        if new:
            ops.append(Store(self.holder, new, parent, tier))
        if self._orphans:
            for block_hash in hashes:
                self._orphans.pop(block_hash, None)
        if self._awaited:
            ops += self._add_awaited(hashes, keys)
        return ops

    def _stored_known(self, event: BlockStored, tier: Tier) -> list[Op]:
        """An event without tokens: blocks that other events have given a key."""
        pairs = [(h, key) for h in event.block_hashes if (key := self._bridge.key(h)) is not None]
        if len(pairs) < len(event.block_hashes):
            self.stats.skip("unknown_hash")
        return self._add_known(pairs, (tier, FULL_ATTENTION))

    def _stored_resized(self, blocks: ResizedBlocks, event: BlockStored, tier: Tier) -> list[Op]:
        hashes = event.block_hashes
        if not event.token_ids:
            if not all(blocks.knows(block_hash) for block_hash in hashes):
                self.stats.skip("unknown_hash")
            return blocks.known(hashes, tier)
        self.block_size_seen = event.block_size
        self.stats.other_block_size += event.block_size != self.block_size
        if not blocks.fits(event.block_size):
            return self._skip("block_size")
        tokens = np.frombuffer(array("I", event.token_ids), dtype=np.uint32)
        if event.parent_hash is None:
            self.first_tokens = tokens[: event.block_size]
        ops = blocks.stored(event, tokens, tier)
        if ops is None:
            self._note_orphans(hashes)
            return []
        self.stats.stored += len(hashes)
        for block_hash in hashes if self._orphans else ():
            self._orphans.pop(block_hash, None)
        return ops

    def _stored_window(self, event: BlockStored) -> list[Op]:
        group, tier = event.group_idx or 0, self._tier(event.medium)
        blocks = self._window_blocks(event)
        if tier is None or (not blocks and group not in self._windows):
            return self._skip("other_group")
        ops: list[Op] = []
        if self._windows.get(group) != blocks:
            self._windows[group] = blocks
            ops.append(Window(self.holder, group + 1, blocks))
        if not blocks:
            return ops
        place = (tier, group + 1)
        pairs = []
        for block_hash in event.block_hashes:
            key = self._bridge.key(block_hash)
            if key is not None:
                pairs.append((block_hash, key))
            elif len(self._awaited) < MAX_ORPHANS:
                self._awaited.setdefault(block_hash, []).append(place)
        return ops + self._add_known(pairs, place)

    def _window_blocks(self, event: BlockStored) -> int:
        """How many blocks the event's group must have of a prefix's end; 0 if that cannot be
        told. Blocks of another size than the full group's have hashes of their own."""
        if event.spec_kind is None:
            return self._windows.get(event.group_idx or 0, 0)
        same_size = event.block_size == (self.block_size_seen or self.block_size)
        if event.spec_kind not in WINDOW_KINDS or not event.sliding_window or not same_size:
            return 0
        if self._resized is not None:
            return 0
        # as vLLM's SlidingWindowManager: the token to come sees window - 1 tokens before it
        return -(-(event.sliding_window - 1) // event.block_size)

    def _removed(self, event: BlockRemoved) -> list[Op]:
        group = event.group_idx or 0
        if event.locality == "REMOTE":
            return self._skip("remote")
        tier = self._tier(event.medium)
        if tier is None:
            return self._skip("medium")
        if group in self._windows:
            place = (tier, group + 1)
        elif group == (self._full or 0):
            place = (tier, FULL_ATTENTION)
        else:
            return self._skip("other_group")
        if self._resized is not None:
            return self._removed_resized(self._resized, event, tier)
        gone = []
        for block_hash in event.block_hashes:
            key, is_gone = self._bridge.drop(place, block_hash)
            if key is None:
                self._not_there(place, block_hash)
                continue
            self.stats.removed += 1
            if is_gone:
                gone.append(key)
        return [Remove(self.holder, gone, *place)] if gone else []

    def _removed_resized(self, blocks: ResizedBlocks, event: BlockRemoved, tier: Tier) -> list[Op]:
        ops: list[Op] = []
        for block_hash in event.block_hashes:
            done = blocks.removed(block_hash, tier)
            if done is None:
                self._orphans.pop(block_hash, None)
                continue
            self.stats.removed += 1
            ops += done
        return ops

    # steps

    def _is_full(self, group: int, kind: str | None) -> bool:
        """Whether a group's blocks are those that decide."""
        if kind is not None and kind not in _FULL_ATTENTION:
            return False
        if self._full is None and kind is not None:
            self._full = group
        return group == (self._full or 0)

    def _tier(self, medium: str | None) -> Tier | None:
        """None: the engine names more than there can be."""
        tier = self._tiers.get(medium)
        if tier is None and medium is not None and (next_tier := len(self._tiers) - 1) < MAX_TIERS:
            tier = self._tiers[medium] = next_tier
        return tier

    def _hasher(self, block_size: int) -> BlockHasher:
        hasher = self._hashers.get(block_size)
        if hasher is None:
            hasher = self._hashers[block_size] = BlockHasher(block_size, self._seed)
        return hasher

    def _add_known(self, pairs: Sequence[tuple[int, BlockKey]], place: Place) -> list[Op]:
        """Further copies of blocks that are in the bridge."""
        hashes, keys = [h for h, _ in pairs], [key for _, key in pairs]
        self.stats.stored += len(pairs)
        had = set(self._bridge.add(place, hashes, keys))
        new = [key for i, key in enumerate(keys) if i not in had]
        return [Copy(self.holder, new, *place)] if new else []

    def _add_awaited(self, hashes: Sequence[int], keys: Sequence[BlockKey]) -> list[Op]:
        """Window blocks that we can name now."""
        ops: list[Op] = []
        for block_hash, key in zip(hashes, keys, strict=False):
            for place in self._awaited.pop(block_hash, ()):
                ops += self._add_known([(block_hash, key)], place)
        return ops

    def _not_there(self, place: Place, block_hash: int) -> None:
        """A block was removed from where we know of none."""
        if place[1] == FULL_ATTENTION:
            self._orphans.pop(block_hash, None)
            return
        awaited = self._awaited.get(block_hash)
        if awaited and place in awaited:
            awaited.remove(place)
            if not awaited:
                del self._awaited[block_hash]

    def _note_orphans(self, hashes: Sequence[int]) -> None:
        self.stats.orphans += len(hashes)
        for block_hash in hashes:
            self._orphans[block_hash] = None
        while len(self._orphans) > MAX_ORPHANS:
            del self._orphans[next(iter(self._orphans))]

    def _skip(self, reason: str) -> list[Op]:
        self.stats.skip(reason)
        return []


def _between(
    keys: Sequence[BlockKey], had: Sequence[int], parent: BlockKey | None
) -> tuple[BlockKey | None, Sequence[BlockKey]]:
    """The part of a chain from the first key to the last that is not at one of the positions
    `had`, and its parent."""
    new = sorted(set(range(len(keys))).difference(had))
    if not new:
        return parent, []
    first, last = new[0], new[-1]
    return keys[first - 1] if first else parent, keys[first : last + 1]
