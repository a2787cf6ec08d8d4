"""A copy of an index that another process has: it is told what changes, and answers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from inferway.kv.index.changes import BlockChange, HolderChange, IndexChanges
from inferway.kv.index.holder_sets import NOBODY, HolderSets
from inferway.kv.index.holders import Holders
from inferway.kv.index.metrics import index_families
from inferway.kv.index.protocol import CPU, TIER_WEIGHTS
from inferway.kv.index.reading import MANY_HOLDERS, HeldBlocks
from inferway.kv.index.shards import LIMIT, Shards
from inferway.metrics import Family
from inferway.model import HolderId

_ITSELF = range(1 << 32)  # as the column of states: a key has its state, not a place


class CopiedIndex(HeldBlocks):
    """The part of `kv.index.protocol.Index` that answers. `hear` is told all changes of the other
    index, in order (`changes.ChangeLog`)."""

    def __init__(
        self, *, weights: Sequence[float] = TIER_WEIGHTS, many_holders: int = MANY_HOLDERS
    ) -> None:
        shards: Shards[int] = Shards()
        super().__init__(shards, _ITSELF, HolderSets(), Holders(), weights, many_holders)

    def hear(self, changes: IndexChanges) -> None:
        """Take over what has changed."""
        states, holders = self._states, self._holders
        for holder in changes.cleared:
            holders.drop(holder)
        if changes.planes is not None:
            windows = changes.planes.windows
            states.tiers = list(changes.planes.tiers)
            states.window_planes = {(tier, group): plane for tier, group, plane in windows}
        for change in changes.holders:
            self._hear_of_holder(change)
        for each in changes.sets:
            planes = tuple([int.from_bytes(mask, "little") for mask in each.planes])
            states.put(each.state, int.from_bytes(each.attached, "little"), planes)
        if changes.unsettled is not None:
            self._unsettled = int.from_bytes(changes.unsettled, "little")
        self._hear_of_blocks(changes.blocks)

    def lower_tiers(self) -> Mapping[HolderId, Sequence[int]]:
        """Return nothing: that is not known here."""
        return {}

    def num_bytes(self) -> int:
        """Return about what the copy takes. Takes a millisecond or two."""
        dicts = self._shards.dicts()
        keys = 48 * sum(map(len, dicts))
        return keys + sum(map(sys.getsizeof, dicts)) + self._states.num_bytes()

    def families(self) -> Iterator[Family]:
        return index_families(self.num_bytes())

    def _hear_of_holder(self, change: HolderChange) -> None:
        holders = self._holders
        holder = holders.put(change.holder, change.place)
        holder.num_blocks, holder.num_evicted = change.num_blocks, change.num_evicted
        if change.is_tiered:
            holders.in_tier(holder, CPU)
        if change.layout != holder.layout:
            holders.set_layout(holder, change.layout)

    def _hear_of_blocks(self, changes: Iterable[BlockChange]) -> None:
        shards, states = self._shards, self._states
        at, shift = shards.at, shards.shift
        for change in changes:
            state = change.state
            holder = None if change.holder is None else self._holders.get(change.holder)
            if holder is not None:
                holder.num_blocks = change.num_blocks
            if state == NOBODY:
                for key in change.keys:
                    at[key >> shift].pop(key, None)
                continue
            states.make_room(state)
            for key in change.keys:
                shard = at[key >> shift]
                shard[key] = state
                if len(shard) == LIMIT:
                    shards.split(key)
                    at, shift = shards.at, shards.shift
