"""The blocks of one holder, in hashes, keys and places; changed by `apply`.

Each change has a method, which returns the operations that keep the index true.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from inferway.kv.events.hash_to_key import HashToKey, Place, Stored
from inferway.kv.events.holder_snapshot import (
    NUMBER,
    HolderSnapshot,
    PlaceColumns,
    Position,
    SavedHolder,
)
from inferway.kv.events.orphans import MAX_ORPHANS, Orphans
from inferway.kv.index.protocol import (
    CPU,
    FULL_ATTENTION,
    GPU,
    STORAGE,
    Clear,
    Copy,
    Holdings,
    Layout,
    Op,
    Remove,
    Store,
    Tier,
)
from inferway.kv.index.reuse import CacheLayout
from inferway.model import BlockKey, HolderId

MAX_TIERS = 8
_MAX_RUN = 512  # blocks adopted at once: half a millisecond
_PIECE_ITEMS = 4096  # copied at a time: a fraction of a millisecond
MAX_LATELY = 8192  # more blocks than are on their way from the GPU to another tier


_V = TypeVar("_V")


@dataclass(slots=True)
class ApplyStats:
    """Plain integers, read when /metrics is scraped. Blocks, but for `cleared` and `skipped`."""

    stored: int = 0  # copies
    removed: int = 0  # copies
    orphans: int = 0  # copies without a key, because their parent is unknown
    adopted: int = 0  # blocks that got their key later
    cleared: int = 0  # times that the engine dropped everything
    other_block_size: int = 0  # events of another block size than expected
    skipped: dict[str, int] = field(default_factory=dict)  # events, by reason

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


class HolderState:
    """`apply.EngineBlocks` reads all of it and writes through the methods."""

    def __init__(
        self,
        holder: HolderId,
        holdings: Holdings | None,
        stats: ApplyStats,
    ) -> None:
        self.bridge = HashToKey(holder, holdings)
        self.orphans = Orphans()
        # blocks of other groups than full attention whose key is not known
        self.deferred: dict[int, list[Place]] = {}
        self.layout: CacheLayout | None = None  # None: not told yet
        self.full_number: int | None = 0  # the group whose prefixes are kept; None: there is none
        # Of blocks that end within a whole one: the whole block before it, and the tokens after.
        self.within: OrderedDict[BlockKey, tuple[BlockKey | None, int]] = OrderedDict()
        self.block_size: int | None = None  # what the last event said
        self.tiers: dict[str | None, Tier] = {
            None: GPU,
            "GPU": GPU,
            "CPU": CPU,
            "STORAGE": STORAGE,
        }
        # Keys of blocks removed a moment ago, of an engine with several tiers: a copy may be told
        # of after the block it was made of is gone.
        self._lately: OrderedDict[int, BlockKey] = OrderedDict()
        self._has_tiers = False
        self._holder = holder
        self.stats = stats

    # changes

    def store(
        self, hashes: Sequence[int], keys: Sequence[BlockKey], parent: BlockKey | None, tier: Tier
    ) -> list[Op]:
        """Add a copy of each block of a chain. Return what the index must do."""
        self.stats.stored += len(hashes)
        return self._store(hashes, keys, parent, tier)

    def store_placed(
        self, block_hash: int, key: BlockKey, parent: BlockKey | None, within: int, at: Place
    ) -> list[Op]:
        """Add a copy of a block that is no link of the chain of full attention: of another group,
        or within a block. `parent` is the whole block before it, and `within` how many tokens of
        the next one it has, 0 if it ends where a whole block does. Return what the index must
        do."""
        self.stats.stored += 1
        if within:
            self.within[key] = (parent, within)
            if len(self.within) > MAX_ORPHANS:
                self.within.popitem(last=False)
        ops: list[Op] = []
        if not self.bridge.add(at, [block_hash], [key]):
            ops.append(Store(self._holder, [key], parent, *at))
        for place in self.deferred.pop(block_hash, ()):
            ops += self._add([(block_hash, key)], place)
        for other in self.orphans.pop(block_hash):
            ops += self._add([(block_hash, key)], (other, FULL_ATTENTION))
        return ops

    def store_together(self, stored: Stored, before: Sequence[Op]) -> Sequence[Op]:
        """Add a copy of each of these blocks, if it `awaits` none of them. Return what the index
        must do, after it has done what it must do `before`."""
        place = (GPU, FULL_ATTENTION)
        hashes, keys = list(stored.blocks), list(stored.blocks.values())
        self.stats.stored += len(hashes)
        gone = [op.keys for op in before if isinstance(op, Remove) and (op.tier, op.group) == place]
        had = self.bridge.add(place, hashes, keys, leaving=set().union(*gone))
        return self._without({keys[i] for i in had}, stored.ops) if had else stored.ops

    def add(self, hashes: Sequence[int], place: Place) -> list[Op]:
        """Add a copy of each of these blocks that are in the bridge. Return what the index must
        do."""
        if not hashes:
            return []
        self.stats.stored += len(hashes)
        return self._add(self._pairs(hashes), place)

    def awaits(self, hashes: Iterable[int]) -> bool:
        """Return whether something waits for one of these blocks: it is an orphan, or a window has
        it."""
        orphans, deferred = self.orphans.tiers, self.deferred
        return bool(orphans or deferred) and any(h in orphans or h in deferred for h in hashes)

    def key(self, block_hash: int) -> BlockKey | None:
        """Return the key of a block that is there, or was a moment ago; None if it is not known."""
        key = self.bridge.key(block_hash)
        return self._lately.get(block_hash) if key is None else key

    def take_waiting(self, block_hash: int) -> list[Place]:
        """Return the places in which a block waits, once for each copy; it waits no more."""
        orphans = [(tier, FULL_ATTENTION) for tier in self.orphans.pop(block_hash)]
        return [*orphans, *self.deferred.pop(block_hash, ())]

    def store_again(self, block_hash: int, parent_hash: int | None, tier: Tier) -> list[Op] | None:
        """Add a copy of a block that was removed everywhere. Return what the index must do; None if
        the block, or its parent, was removed too long ago."""
        key, parent = self._lately.get(block_hash), None
        if parent_hash is not None:
            parent = self.key(parent_hash)
        if key is None or (parent is None and parent_hash is not None):
            return None
        return self.store([block_hash], [key], parent, tier)

    def wait(self, hashes: Sequence[int], place: Place, *, implies_ancestors: bool = False) -> None:
        """Add a copy of each of these blocks, which have no key. `implies_ancestors`: the event
        says that the blocks before them are there as well."""
        if not hashes:
            return
        tier, group = place
        if group == FULL_ATTENTION:
            if implies_ancestors or tier != GPU:
                self.stats.orphans += len(hashes)
            counting = self.bridge.counting
            self.orphans.add(hashes, tier, implies_ancestors=implies_ancestors, counting=counting)
            return
        for block_hash in hashes:
            if len(self.deferred) < MAX_ORPHANS:
                self.deferred.setdefault(block_hash, []).append(place)

    def remove(self, hashes: Sequence[int], place: Place) -> list[Op]:
        """Drop a copy of each block. Return what the index must do."""
        if self._has_tiers:
            self._remember(hashes)
        if self.orphans.tiers and place == (GPU, FULL_ATTENTION):
            self.orphans.note_removed(hashes)
        gone, absent = self.bridge.drop(place, hashes)
        self.stats.removed += len(hashes) - len(absent)
        if absent and (self.orphans.tiers or self.deferred):
            for block_hash in absent:
                self._not_there(place, block_hash)
        return [Remove(self._holder, gone, *place)] if gone else []

    def adopt(
        self, hashes: Sequence[int], keys: Sequence[BlockKey], parent: BlockKey | None
    ) -> Iterator[list[Op]]:
        """Give the blocks of a chain that wait, or are vouched for, these keys. Yield what the
        index must do, in steps of so many blocks that none takes long."""
        found = self.orphans.known_of(hashes)
        for i, block_hash in enumerate(hashes):
            if found[i] and self.bridge.key(block_hash) is not None:
                found[i] = ()  # vouched for, and in the bridge already
        for start, end in pieces_found(found):
            before = keys[start - 1] if start else parent
            yield self._adopt(hashes[start:end], keys[start:end], before)

    def clear(self) -> list[Op]:
        """Forget everything but what kind of engine it is, without its groups. Return what the
        index must do."""
        self.bridge.clear()
        self._lately.clear()
        self.orphans.clear()
        self.deferred.clear()
        self.within.clear()
        self.layout, self.full_number = None, 0
        return [Clear(self._holder)]

    def set_layout(self, layout: CacheLayout | None) -> list[Op]:
        """Have the engine's groups. Return what the index must do."""
        # An index has no use for the layout of full attention alone.
        before, after = [
            each and (None if each.is_plain else each) for each in (self.layout, layout)
        ]
        self.layout = layout
        if layout is not None:
            self.block_size = layout.block_size
        at = 0 if layout is None else layout.full_position
        self.full_number = at if layout is None or at is None else layout.groups[at].number
        return [] if after == before else [Layout(self._holder, after)]

    def unplaced_kinds(self) -> tuple[str, ...]:
        """Return the kinds of the groups that hold blocks without a key."""
        if self.layout is None or not self.deferred:
            return ()
        numbers = {group - 1 for places in self.deferred.values() for _, group in places}
        return tuple(
            dict.fromkeys(each.kind for each in self.layout.groups if each.number in numbers)
        )

    def is_full(self, group: int) -> bool:
        """Return whether the group's prefixes are kept; a group that no event in GPU memory has
        named is taken for full attention, if there is no other."""
        if self.full_number is not None or self.layout is None:
            return group == self.full_number
        return all(each.number != group for each in self.layout.groups)

    def is_undone_by(self, layout: CacheLayout) -> bool:
        """Return whether the blocks that are here would be others with this layout."""
        if self.layout is None or not len(self.bridge):
            return False
        at = layout.full_position
        number = None if at is None else layout.groups[at].number
        is_other_group = self.full_number is not None and number != self.full_number
        return is_other_group or layout.block_size != self.block_size

    def count_no_copies(self) -> None:
        self.bridge.counting = False

    def tier(self, medium: str | None) -> Tier | None:
        """Return the tier of a medium; None if the engine names more than there can be."""
        tier = self.tiers.get(medium)
        self._has_tiers |= tier != GPU
        if tier is None and medium is not None and (next_tier := len(self.tiers) - 1) < MAX_TIERS:
            tier = self.tiers[medium] = next_tier
        return tier

    # a restart of the gateway

    def take(self, position: Position) -> Generator[list[Op], None, HolderSnapshot]:
        """Return what is here. It is made in steps of some hundreds of blocks; nothing may change
        meanwhile."""
        columns: dict[Place, PlaceColumns] = {}
        for place, region, shard in self.bridge.pieces():
            if place not in columns:
                copies = yield from _copied(self.bridge.copies(place), int)
                columns[place] = PlaceColumns(*place, hashes=[], keys=[], copies=copies)
            hashes = np.fromiter(shard, NUMBER, len(shard)) | np.uint64(region)
            columns[place].hashes.append(hashes.tobytes())
            columns[place].keys.append(np.fromiter(shard.values(), NUMBER, len(shard)).tobytes())
            yield []
        return HolderSnapshot(
            *(position, self.bridge.counting, self.block_size, self.layout),
            {name: tier for name, tier in self.tiers.items() if name is not None},
            list(columns.values()),
            (yield from _copied(self.within, tuple)),
            (yield from _copied(self.orphans.tiers, tuple)),
            (yield from _copied(self.deferred, tuple)),
        )

    def restore(self, saved: SavedHolder) -> Iterator[list[Op]]:
        """Have what a snapshot has, where nothing is yet. Yield what the index must do, in steps
        to be done before the next is taken."""
        snapshot = saved.snapshot
        self.block_size = snapshot.block_size
        self.tiers.update(snapshot.tiers)
        yield self.set_layout(snapshot.layout)
        for columns, chains in zip(snapshot.places, saved.chains, strict=True):
            place = columns.tier, columns.group
            for hashes, keys, parent in chains:
                self.bridge.add(place, hashes, keys)
                yield [Store(self._holder, keys, parent, *place)]
            if columns.copies:
                self.bridge.copies(place).update(columns.copies)
        self.within.update(snapshot.within)
        self.orphans.tiers.update(snapshot.orphans)
        self.deferred.update({h: list(places) for h, places in snapshot.deferred.items()})
        self.bridge.counting &= snapshot.counts_copies

    # steps

    def _store(
        self, hashes: Sequence[int], keys: Sequence[BlockKey], parent: BlockKey | None, tier: Tier
    ) -> list[Op]:
        """Store blocks, and what else was waiting for their keys."""
        if not self.orphans.tiers and not self.deferred:
            had = self.bridge.add((tier, FULL_ATTENTION), hashes, keys)
            if had:
                parent, keys = without(keys, had, parent)
            return [Store(self._holder, keys, parent, tier)] if keys else []
        ops: list[Op] = []
        waiting: Sequence[tuple[int, Sequence[Tier]]] = ()
        if self.orphans.tiers:
            orphans = self.orphans
            waiting = [(i, orphans.pop(h)) for i, h in enumerate(hashes) if h in orphans]
        had = self.bridge.add((tier, FULL_ATTENTION), hashes, keys)
        new = keys
        if had:
            parent, new = without(keys, had, parent)
        if new:
            ops.append(Store(self._holder, new, parent, tier))
        for i, tiers in waiting:
            for other in tiers:
                ops += self._add([(hashes[i], keys[i])], (other, FULL_ATTENTION))
        if self.deferred:
            for block_hash, key in zip(hashes, keys, strict=True):
                for place in self.deferred.pop(block_hash, ()):
                    ops += self._add([(block_hash, key)], place)
        return ops

    def _without(self, known: Collection[BlockKey], stores: Sequence[Store]) -> list[Op]:
        """Return the stores without blocks that were there, as far as chains allow."""
        ops: list[Op] = []
        for op in stores:
            had = [i for i, key in enumerate(op.keys) if key in known]
            parent, new = without(op.keys, had, op.parent)
            if new:
                ops.append(Store(self._holder, new, parent, op.tier))
        return ops

    def _add(self, pairs: Sequence[tuple[int, BlockKey]], place: Place) -> list[Op]:
        hashes, keys = [h for h, _ in pairs], [key for _, key in pairs]
        had = set(self.bridge.add(place, hashes, keys))
        new = [key for i, key in enumerate(keys) if i not in had]
        return [Copy(self._holder, new, *place)] if new else []

    def _pairs(self, hashes: Sequence[int]) -> list[tuple[int, BlockKey]]:
        """Return the hashes that have a key, with their keys."""
        return [(h, key) for h in hashes if (key := self.bridge.key(h)) is not None]

    def _remember(self, hashes: Sequence[int]) -> None:
        for block_hash in hashes:
            key = self.bridge.key(block_hash)
            if key is None:
                continue
            self._lately[block_hash] = key
            self._lately.move_to_end(block_hash)
            if len(self._lately) > MAX_LATELY:
                self._lately.popitem(last=False)

    def _not_there(self, place: Place, block_hash: int) -> None:
        """A block was removed from where it has no key."""
        tier, group = place
        if group == FULL_ATTENTION:
            self.orphans.drop(block_hash, tier, counting=self.bridge.counting)
            return
        deferred = self.deferred.get(block_hash)
        if deferred and place in deferred:
            deferred.remove(place)
            if not deferred:
                del self.deferred[block_hash]

    def _adopt(
        self, hashes: Sequence[int], keys: Sequence[BlockKey], parent: BlockKey | None
    ) -> list[Op]:
        ops: list[Op] = []
        self.stats.adopted += len(hashes)
        tiers = [self.orphans.pop(block_hash) or (GPU,) for block_hash in hashes]
        start = 0
        for end in range(1, len(hashes) + 1):
            if end < len(hashes) and tiers[end] == tiers[start]:
                continue
            ops += self._store(hashes[start:end], keys[start:end], parent, tiers[start][0])
            pairs = list(zip(hashes[start:end], keys[start:end], strict=True))
            for tier in tiers[start][1:]:
                ops += self._add(pairs, (tier, FULL_ATTENTION))
            start, parent = end, keys[end - 1]
        return ops


def without(
    keys: Sequence[BlockKey], had: Sequence[int], parent: BlockKey | None
) -> tuple[BlockKey | None, Sequence[BlockKey]]:
    """Return the part of a chain from the first key to the last that is not at one of the positions
    `had`, and its parent."""
    new = sorted(set(range(len(keys))).difference(had))
    if not new:
        return parent, []
    first, last = new[0], new[-1]
    return keys[first - 1] if first else parent, keys[first : last + 1]


def pieces_found(found: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yield the stretches [start, end) where something was found, long ones in pieces."""
    start = 0
    for end in range(len(found) + 1):
        if end == len(found) or not found[end]:
            if start < end:
                yield start, end
            start = end + 1
        elif end - start == _MAX_RUN:
            yield start, end
            start = end


def _copied(
    table: Mapping[int, Any], frozen: Callable[[Any], _V]
) -> Generator[list[Op], None, dict[int, _V]]:
    """Return a copy, made in steps, with values that do not change."""
    items = iter(table.items())
    copied: dict[int, _V] = {}
    while piece := list(islice(items, _PIECE_ITEMS)):
        copied.update((key, frozen(value)) for key, value in piece)
        yield []
    return copied
