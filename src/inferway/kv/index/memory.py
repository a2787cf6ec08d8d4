"""The usual index: one tree of blocks in this process.

What each holder can reuse is kept closed under "parent of" when it is written (`tree`), so that
reading it takes few looks (`reading`).

Nothing here waits for long, however big the index: dicts are split before they are big, `Clear`
gives a holder a fresh bit and leaves the old one to be swept in pieces (`clearing`), and so do
operations that detach or attach a lot. A little of such work is done with every `apply`; `sweep`
does more of it.

With `max_blocks`, the blocks least likely to be asked for make room (`eviction`). What is believed
stays true then, but is no longer all there is: `num_evicted`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from inferway.kv.index.bit_sweep import BitSweep
from inferway.kv.index.eviction import MATCHED, STORED, Eviction
from inferway.kv.index.holder_sets import NOBODY
from inferway.kv.index.holders import Holder, Holders
from inferway.kv.index.metrics import index_families
from inferway.kv.index.prefix_lengths import different_lengths
from inferway.kv.index.protocol import (
    TIER_WEIGHTS,
    Clear,
    Copy,
    Layout,
    MatchResult,
    Op,
    Remove,
    Store,
)
from inferway.kv.index.reading import MANY_HOLDERS, HeldBlocks
from inferway.kv.index.slots import NOWHERE
from inferway.kv.index.tree import Tree
from inferway.metrics import Family
from inferway.model import BlockKey, HolderId, Places

# What a block held by one engine costs at most, with its share of kv/events/hash_to_key.py:
# docs/benchmarks/index.md has the measurement.
BYTES_PER_BLOCK = 250

SLICE_BLOCKS = 2048  # blocks that one operation may look at besides its own: about a millisecond
_WITH_EACH_APPLY = 32  # of what was left over
_WITH_EACH_MATCH = 1024  # of what keeps a match from halving
_LINKS = 8192  # slots
_MOST_COUNTED = 10_000  # different sets of holders: some milliseconds


class MemoryIndex(HeldBlocks):
    """`kv.index.protocol.Index`. One writer, and readers on the same event loop."""

    def __init__(
        self,
        *,
        weights: Sequence[float] = TIER_WEIGHTS,
        max_blocks: int | None = None,
        max_bytes: int | None = None,
        slice_blocks: int = SLICE_BLOCKS,
        many_holders: int = MANY_HOLDERS,
    ) -> None:
        """`weights`: what a block in each tier is worth, best first. `max_bytes` counts the
        bridges of its holders as well, a block as BYTES_PER_BLOCK. `slice_blocks`: so many an
        operation looks at; the rest is left for later."""
        bounds = [max_blocks, None if max_bytes is None else max_bytes // BYTES_PER_BLOCK]
        self.max_blocks = min((bound for bound in bounds if bound is not None), default=None)
        self.evicted = 0  # blocks dropped for want of room, once for each holder
        self._with_each_match = min(slice_blocks, _WITH_EACH_MATCH)
        self._tree = tree = Tree(slice_blocks)
        holders, column = Holders(), tree.slots.states
        super().__init__(tree.shards, column, tree.states, holders, weights, many_holders)
        self._clearing: BitSweep | None = None
        self._eviction = None if self.max_blocks is None else Eviction(self._tree.slots)

    # what engines did

    def apply(self, ops: Iterable[Op]) -> None:
        tree = self._tree
        for op in ops:
            match op:
                case Store():
                    self._store(op)
                case Remove():
                    holder = self._holders.get(op.holder)
                    if holder is not None:
                        tree.remove(holder, op)
                case Copy():
                    holder = self._holders.get(op.holder)
                    if holder is not None:
                        self._holders.in_tier(holder, op.tier)
                        tree.copy(holder, op)
                case Clear():
                    self._clear(op)
                case Layout():
                    holder = self._holders.get_or_add(op.holder)
                    self._holders.set_layout(holder, op.layout)
            if tree.commons is not None:
                tree.commons.append(tree.common)
                tree.common = -1  # the next operation may be refused
        if self._has_left_over:
            self._sweep(_WITH_EACH_APPLY)
        elif self._eviction is not None:
            self._make_room(self._eviction)

    def sweep(self, max_blocks: int) -> bool:
        """Do what operations left over, looking at about so many blocks (~1 µs each). Returns
        whether there is more to do."""
        return self._sweep(max_blocks)

    def _sweep(self, max_blocks: int) -> bool:
        tree, budget = self._tree, self._settle(max_blocks)
        budget = tree.free_lapsed(budget)
        if self._clearing is None and tree.states.dead:
            self._clearing = BitSweep(tree)
        if self._clearing is not None and self._clearing.run(budget):
            self._holders.free(self._clearing.bits)
            self._clearing = None
        if self._eviction is not None:  # a block cannot go before its children are freed
            self._make_room(self._eviction)
        return self._has_left_over

    @property
    def _has_left_over(self) -> bool:
        tree = self._tree
        return bool(tree.unsettled or tree.states.dead or tree.lapsed)

    def _settle(self, budget: int) -> int:
        """Returns what is left of the budget."""
        for holder in list(self._holders.of(self._tree.unsettled)):
            if budget > 0:
                budget = self._tree.settle(holder, budget)
        return budget

    def _store(self, op: Store) -> None:
        if not op.keys:
            return
        holder = self._holders.get_or_add(op.holder)
        self._holders.in_tier(holder, op.tier)
        tree = self._tree
        if self.evicted and op.parent is not None and not tree.slot(op.parent):
            # they would lie there, never matched
            held = set(self.held(op.holder, op.keys, op.tier, op.group))
            self._count_evicted(holder, len(set(op.keys) - held))
            return
        last = tree.store(holder, op)
        if self._eviction is not None and not tree.slots.marks[last]:
            tree.slots.marks[last] = STORED

    def _clear(self, op: Clear) -> None:
        holder = self._holders.drop(op.holder)
        if holder is not None:
            self._tree.states.dead |= holder.bit
            self._tree.forget(holder.bit)

    # what a prompt would find

    def match_now(self, keys: Sequence[BlockKey], places: Places | None = None) -> MatchResult:
        tree = self._tree
        if tree.unsettled:
            self._settle(self._with_each_match)
        self._unsettled = tree.unsettled
        found = super().match_now(keys, places)
        if self._eviction is not None and found.blocks:
            longest = max(different_lengths(found.blocks))
            tree.slots.marks[tree.slot(keys[longest - 1])] = MATCHED
        return found

    # how it is

    def links(self) -> Iterator[bytes]:
        """Yield all blocks that are held with their parents, some thousands at a time, in rows of
        two 64-bit numbers, little-endian; the parent is 0 if the block begins a prompt. A block
        that is held all the while is among them."""
        slots = self._tree.slots
        for start in range(1, len(slots.keys), _LINKS):
            keys = np.frombuffer(slots.keys, np.uint64)
            parents = np.frombuffer(slots.parents, np.uint32)[start : start + _LINKS]
            states = np.frombuffer(slots.states, np.uint32)[start : start + _LINKS]
            held = (states != NOBODY) & (parents != NOWHERE)  # of a free slot both are old
            rows = np.empty((np.count_nonzero(held), 2), "<u8")
            rows[:, 0] = keys[start : start + _LINKS][held]
            rows[:, 1] = keys[parents[held]]
            del keys, parents, states  # the columns cannot grow while they are read
            yield rows.tobytes()

    def lower_tiers(self) -> dict[HolderId, list[int]]:
        states = self._tree.states
        if not self._holders.tiered or len(states) > _MOST_COUNTED:
            return {}
        found: dict[HolderId, list[int]] = {}
        for state, blocks in enumerate(states.counts):
            for tier, mask in states.best_tiers(state):
                for holder in self._holders.of(mask):
                    counts = found.setdefault(holder.id, [0] * (len(states.tiers) - 1))
                    counts[tier - 1] += blocks
        return found

    @property
    def num_keys(self) -> int:
        """The number of different blocks that are known, including those of cleared holders until
        they are swept, and those that only stand for the parent of another."""
        return self._tree.slots.num_used

    @property
    def num_values(self) -> int:
        """The number of different sets of holders that blocks have."""
        return len(self._tree.states)

    def num_bytes(self) -> int:
        """Return about what the index takes, bridges not counted. Takes a millisecond or two."""
        shards = sum(map(sys.getsizeof, self._tree.shards.dicts()))
        integers = 80 * self.num_keys  # a key's and a slot's
        return shards + integers + self._tree.slots.num_bytes() + self._tree.states.num_bytes()

    def families(self) -> Iterator[Family]:
        return index_families(self.num_bytes(), self.evicted)

    # bounds

    def note_matched(self, keys: Iterable[BlockKey]) -> None:
        """Take these as the last blocks that prompts have matched: they and those before them are
        not the first to make room."""
        tree = self._tree
        for key in keys if self._eviction is not None else ():
            slot = tree.slot(key)
            if slot:
                tree.slots.marks[slot] = MATCHED

    def _make_room(self, eviction: Eviction) -> None:
        assert self.max_blocks is not None
        slots = self._tree.slots
        while slots.num_used > self.max_blocks:
            slot = eviction.next()
            if not slot:
                return
            while slot and slots.num_used > self.max_blocks:
                self._take_from_holders(slot)
                slot = self._tree.evict(slot)
                if slot and slots.marks[slot]:
                    break

    def _take_from_holders(self, slot: int) -> None:
        states, slots = self._tree.states, self._tree.slots
        state = slots.states[slot]
        for holder in self._holders.of(states.known[state]):
            holder.num_blocks -= 1
            holder.num_detached -= not states.attached[state] & holder.bit
            self._count_evicted(holder, 1)

    def _count_evicted(self, holder: Holder, blocks: int) -> None:
        holder.num_evicted += blocks
        self.evicted += blocks
        self._holders.changed.add(holder.id)
