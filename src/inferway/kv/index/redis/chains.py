"""What one holder has, and which of it a prompt can reach. No I/O.

A block of the full-attention group is *attached* if it begins a prompt or its parent is attached;
one that is not is known, and attached as soon as its parent comes (back). Only attached blocks
are written to Redis, so that a holder's set there is closed under "parent of". Blocks of other
groups are written as they are: windows keep no chain.

`store`, `copy` and `remove` return the keys whose place in the group has changed, in the order
that keeps such a set closed after each of them: parents first when blocks come, children first
when they go. They cost what has changed: an engine that drops an inner block before all that is
below it makes `remove` long (1 µs for each block below). Engines evict from the ends of their
chains.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from inferway.kv.index.protocol import FULL_ATTENTION, GPU, Tier
from inferway.kv.index.shards import LIMIT, Shards
from inferway.model import BlockKey

_KEY_BYTES = 48  # a Python integer of 64 bits
_USUAL = 1  # the mask of a block that lies in the GPU's full-attention group and nowhere else


class Chains:
    """The blocks of one holder. Where a block lies is a mask with a bit for each tier of each
    group that the holder has been seen to use."""

    def __init__(self) -> None:
        self._parents: Shards[BlockKey | None] = Shards()
        self._child: Shards[BlockKey] = Shards()  # the only one of most
        self._siblings: dict[BlockKey, set[BlockKey]] = {}  # parent -> its other children
        self._masks: Shards[int] = Shards()  # of blocks whose mask is not the usual one
        self._detached: set[BlockKey] = set()
        self._num_full = 0  # in the full-attention group
        self._bits: dict[tuple[Tier, int], int] = {(GPU, FULL_ATTENTION): _USUAL}
        self._group_bits: dict[int, int] = {FULL_ATTENTION: _USUAL}
        self._tier_bits: list[tuple[Tier, int]] = [(GPU, _USUAL)]  # full attention, best first

    def __len__(self) -> int:
        """Blocks of the full-attention group, attached or not."""
        return self._num_full

    @property
    def num_attached(self) -> int:
        return self._num_full - len(self._detached)

    @property
    def lower_tiers(self) -> Sequence[Tier]:
        """The tiers below the GPU that full-attention blocks have been in."""
        return [tier for tier, _ in self._tier_bits if tier != GPU]

    @property
    def other_groups(self) -> Sequence[int]:
        return sorted(group for group in self._group_bits if group != FULL_ATTENTION)

    def tier(self, key: BlockKey) -> Tier | None:
        """Return the best tier in which an attached block lies; None for all others."""
        parents = self._parents
        if key not in parents.at[key >> parents.shift] or key in self._detached:
            return None
        mask = self._mask(key)
        if mask == _USUAL:
            return GPU
        return next((tier for tier, bit in self._tier_bits if mask & bit), None)

    def is_in(self, key: BlockKey, group: int) -> bool:
        """Return whether the holder has the block in any tier, attached or not."""
        return self._is_known(key) and bool(self._mask(key) & self._group_bits.get(group, 0))

    def lies_in(self, key: BlockKey, tier: Tier, group: int) -> bool:
        return self._is_known(key) and bool(self._mask(key) & self._bits.get((tier, group), 0))

    def num_bytes(self) -> int:
        """Return about what it takes."""
        tables = (self._parents, self._child, self._masks)
        shards = sum(sys.getsizeof(shard) for table in tables for shard in table.dicts())
        sets = sum(map(sys.getsizeof, self._siblings.values()))
        others = sys.getsizeof(self._siblings) + sys.getsizeof(self._detached)
        return shards + sets + others + _KEY_BYTES * len(self._parents)

    def attached(self) -> Iterator[list[BlockKey]]:
        """Yield all attached blocks, piece by piece. Blocks may change between two pieces: each is
        in the picture as it is when its piece is made, or has been returned as changed since."""
        for shard in self._parents.dicts():
            yield [key for key in shard if self.tier(key) is not None]

    def members(self, group: int) -> Iterator[list[BlockKey]]:
        """Yield all blocks of another group, piece by piece."""
        for shard in self._parents.dicts():
            yield [key for key in shard if self.is_in(key, group)]

    def dismantle(self) -> Iterator[None]:
        """Free the memory of blocks that nobody needs any more, piece by piece."""
        for table in (self._parents, self._child, self._masks):
            for shard in table.dicts():
                shard.clear()
                yield

    def store(
        self, keys: Iterable[BlockKey], parent: BlockKey | None, tier: Tier, group: int
    ) -> Sequence[BlockKey]:
        """Have `keys`, which are a chain, the first a child of `parent` (None: it begins a
        prompt)."""
        changed: list[BlockKey] = []
        bit = self._bit(tier, group)
        full = group == FULL_ATTENTION
        reached = parent is None or self.tier(parent) is not None
        parents = self._parents
        for key in keys:
            own = parents.at[key >> parents.shift]
            if key in own:
                self._put(key, bit, group, changed)
                reached = self.tier(key) is not None
            else:
                own[key] = parent
                if len(own) == LIMIT:
                    parents.split(key)
                if bit != _USUAL:
                    self._masks.set(key, bit)
                if parent is not None:
                    self._link(parent, key)
                if full:
                    self._arrive(key, reached, changed)
                else:
                    changed.append(key)
            parent = key
        return changed

    def copy(self, keys: Iterable[BlockKey], tier: Tier, group: int) -> Sequence[BlockKey]:
        """Have those of `keys` that the holder has anywhere here as well."""
        changed: list[BlockKey] = []
        bit = self._bit(tier, group)
        for key in keys:
            if self._is_known(key):
                self._put(key, bit, group, changed)
        return changed

    def remove(self, keys: Iterable[BlockKey], tier: Tier, group: int) -> Sequence[BlockKey]:
        changed: list[BlockKey] = []
        moved = False  # to a lower tier: it may still be detached by what follows
        bit = self._bits.get((tier, group), 0)
        for key in keys:
            if not self._is_known(key) or not (mask := self._mask(key)) & bit:
                continue
            left = mask ^ bit
            still = left & self._group_bits[group]
            if group != FULL_ATTENTION:
                if not still:
                    changed.append(key)
            elif not still:
                self._leave(key, changed)
            elif key not in self._detached:
                changed.append(key)
                moved = True
            if left:
                self._set_mask(key, left)
            else:
                self._drop(key)
        if moved:  # each in its last place only: there its children have gone before it
            return list(dict.fromkeys(reversed(changed)))[::-1]
        return changed

    # where blocks lie

    def _is_known(self, key: BlockKey) -> bool:
        parents = self._parents
        return key in parents.at[key >> parents.shift]

    def _mask(self, key: BlockKey) -> int:
        """Of a known block."""
        masks = self._masks
        return masks.at[key >> masks.shift].get(key, _USUAL)

    def _set_mask(self, key: BlockKey, mask: int) -> None:
        if mask == _USUAL:
            self._masks.pop(key)
        else:
            self._masks.set(key, mask)

    def _bit(self, tier: Tier, group: int) -> int:
        bit = self._bits.get((tier, group))
        if bit is None:
            bit = self._bits[tier, group] = 1 << len(self._bits)
            self._group_bits[group] = self._group_bits.get(group, 0) | bit
            if group == FULL_ATTENTION:
                self._tier_bits = sorted([*self._tier_bits, (tier, bit)])
        return bit

    def _put(self, key: BlockKey, bit: int, group: int, changed: list[BlockKey]) -> None:
        """A known block lies in one more place, or did already."""
        mask = self._mask(key)
        if mask & bit:
            return
        self._set_mask(key, mask | bit)
        new = not mask & self._group_bits[group]
        if group != FULL_ATTENTION:
            if new:
                changed.append(key)
        elif new:
            parent = self._parents.get(key)
            self._arrive(key, parent is None or self.tier(parent) is not None, changed)
        elif key not in self._detached:
            changed.append(key)

    def _drop(self, key: BlockKey) -> None:
        """It lies nowhere. Its children stay linked to it: it may come back."""
        parent = self._parents.pop(key)
        self._masks.pop(key)
        if parent is not None:
            self._unlink(parent, key)

    # what can be reached

    def _arrive(self, key: BlockKey, reached: bool, changed: list[BlockKey]) -> None:
        """The full-attention group has a block that it had not."""
        self._num_full += 1
        if not reached:
            self._detached.add(key)
            return
        changed.append(key)
        if self._detached:
            self._attach_below(key, changed)

    def _leave(self, key: BlockKey, changed: list[BlockKey]) -> None:
        """The full-attention group has it no more."""
        self._num_full -= 1
        if key in self._detached:
            self._detached.discard(key)
            return
        self._detach_below(key, changed)
        changed.append(key)

    def _attach_below(self, key: BlockKey, changed: list[BlockKey]) -> None:
        """The descendants that waited for `key`, parents first."""
        stack = [key]
        while stack:
            for child in self._children(stack.pop()):
                if child in self._detached:
                    self._detached.discard(child)
                    changed.append(child)
                    stack.append(child)

    def _detach_below(self, key: BlockKey, changed: list[BlockKey]) -> None:
        """The descendants of `key`, which is going: children first."""
        below: list[BlockKey] = []
        stack = [key]
        while stack:
            for child in self._children(stack.pop()):
                if self.tier(child) is not None and child != key:
                    self._detached.add(child)
                    below.append(child)
                    stack.append(child)
        changed.extend(reversed(below))

    # who is whose child

    def _children(self, key: BlockKey) -> Iterator[BlockKey]:
        child = self._child.get(key)
        if child is not None:
            yield child
            if self._siblings:
                yield from self._siblings.get(key, ())

    def _link(self, parent: BlockKey, key: BlockKey) -> None:
        child = self._child
        own = child.at[parent >> child.shift]
        first = own.setdefault(parent, key)
        if first != key:
            self._siblings.setdefault(parent, set()).add(key)
        elif len(own) == LIMIT:
            child.split(parent)

    def _unlink(self, parent: BlockKey, key: BlockKey) -> None:
        """A parent that has siblings always has a first child too."""
        siblings = self._siblings.get(parent)
        if self._child.get(parent) != key:
            assert siblings is not None
            siblings.discard(key)
        elif siblings:
            self._child.set(parent, siblings.pop())
        else:
            self._child.pop(parent)
        if siblings is not None and not siblings:
            del self._siblings[parent]
