"""Changes of an index, for copies of it in other processes (`copied`).

A copy is told results, not operations: which set of holders each block has now. So the tree of
blocks is kept once, by the index itself, and a copy does no more than enter a number for a key,
which takes about two fifths of the operation's time. Both are of one program: fields are told by
their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from inferway.kv.index.holder_sets import NOBODY
from inferway.kv.index.holders import Holder, Holders
from inferway.kv.index.protocol import (
    FULL_ATTENTION,
    Clear,
    Copy,
    Layout,
    Op,
    Remove,
    Store,
    Tier,
)
from inferway.kv.index.reuse import CacheLayout
from inferway.kv.index.tree import Tree
from inferway.model import BlockKey, HolderId

PIECE_BLOCKS = 2048  # looked at for one piece of a picture: about a millisecond
PIECE_STATES = 256


class BlockChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Blocks that have another set of holders now."""

    state: int  # an id of sets; NOBODY: the blocks are forgotten
    keys: list[BlockKey]
    holder: HolderId | None = None  # that has stored, copied or removed them; None: it is not known
    num_blocks: int = 0  # of the holder, now
    is_removal: bool = False  # the holder has told that it has removed them


class SetChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A set of holders has this value now (`holder_sets`); masks are little-endian."""

    state: int
    attached: bytes
    planes: list[bytes]


class HolderChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """All of a holder but its blocks."""

    holder: HolderId
    place: int
    num_blocks: int
    num_evicted: int
    is_tiered: bool
    layout: CacheLayout | None


class PlanesChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The meaning of the planes of sets (`HolderSets.tiers`, `HolderSets.window_planes`)."""

    tiers: list[int]
    windows: list[tuple[Tier, int, int]]  # tier, group, plane


class IndexChanges(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Changes between two moments at which the index was whole: a copy applies all of them before
    it answers."""

    blocks: list[BlockChange] = []
    cleared: list[HolderId] = []  # they have nothing any more
    holders: list[HolderChange] = []
    sets: list[SetChange] = []
    planes: PlanesChange | None = None
    unsettled: bytes | None = None  # bits of holders whose blocks are not yet closed


class ChangeLog:
    """Notes what changes in an index from now on; `take` is called after each piece of it. An
    index has one at a time."""

    def __init__(self, tree: Tree, holders: Holders) -> None:
        self._tree = tree
        self._holders = holders
        self._touched: list[BlockKey] = []
        self._sets: list[int] = []
        self._commons: list[int] = []
        tree.touched, tree.states.changed = self._touched, self._sets
        tree.commons, tree.common = self._commons, -1
        self._num_planes = 1
        self._unsettled = 0

    def take(self, ops: Sequence[Op]) -> IndexChanges | None:
        """Return what has changed, by these operations, the last that the index has applied, and by
        what was left over from others; None if nothing has."""
        tree, holders = self._tree, self._holders
        blocks: list[BlockChange] = []
        cleared: list[HolderId] = []
        commons = self._commons
        if len(commons) != len(ops):  # some were left of operations that failed
            commons = [-1] * len(ops)
        # A block that an operation after its own has changed is told again, by that one or below.
        for op, common in zip(ops, commons, strict=True):
            if isinstance(op, Clear):
                cleared.append(op.holder)
            elif not isinstance(op, Layout):
                self._note_blocks(op, common, blocks)
        self._commons.clear()
        if self._touched:
            found = self._states(self._touched)
            blocks += [BlockChange(state, keys) for state, keys in found]
            self._touched.clear()
        differ: list[HolderChange] = []
        if holders.changed:
            known = [holders.get(holder) for holder in holders.changed]
            differ = [_holder(holder, holders) for holder in known if holder is not None]
            holders.changed.clear()
        sets: list[SetChange] = []
        if self._sets:
            sets = [self._set(state) for state in dict.fromkeys(self._sets)]
            self._sets.clear()
        planes = unsettled = None
        if tree.states.num_planes != self._num_planes:
            self._num_planes = tree.states.num_planes
            planes = self._planes()
        if tree.unsettled != self._unsettled:
            self._unsettled = tree.unsettled
            unsettled = _bytes(self._unsettled)
        if blocks or cleared or differ or sets or planes is not None or unsettled is not None:
            return IndexChanges(blocks, cleared, differ, sets, planes, unsettled)
        return None

    def close(self) -> None:
        """Note nothing any more."""
        self._tree.touched = self._tree.states.changed = self._tree.commons = None

    def picture(
        self, piece_blocks: int = PIECE_BLOCKS, piece_states: int = PIECE_STATES
    ) -> Iterator[IndexChanges]:
        """Yield all that the index holds, in pieces of a millisecond. Whoever is told each of them
        and, from the first one on, all changes besides, has an equal copy at the end."""
        tree, holders = self._tree, self._holders
        states, slots = tree.states, tree.slots
        everybody = [_holder(each, holders) for each in holders.of(holders.live)]
        unsettled = _bytes(tree.unsettled)
        yield IndexChanges(holders=everybody, planes=self._planes(), unsettled=unsettled)
        start = NOBODY + 1
        while start < len(states.planes):  # it may grow meanwhile
            end = min(start + piece_states, len(states.planes))
            used = [state for state in range(start, end) if states.planes[state]]
            yield IndexChanges(sets=[self._set(state) for state in used])
            start = end
        start = 1
        while start < len(slots.states):
            end = min(start + piece_blocks, len(slots.states))
            by_state: dict[int, list[BlockKey]] = {}
            for key, state in zip(slots.keys[start:end], slots.states[start:end], strict=True):
                if state != NOBODY:
                    by_state.setdefault(state, []).append(key)
            yield IndexChanges([BlockChange(state, keys) for state, keys in by_state.items()])
            start = end

    def _note_blocks(
        self, op: Store | Copy | Remove, common: int, blocks: list[BlockChange]
    ) -> None:
        """`common`: the state that all of its blocks have got, if that is known."""
        holder = self._holders.get(op.holder)
        num_blocks = 0 if holder is None else holder.num_blocks
        is_removal = isinstance(op, Remove) and op.group == FULL_ATTENTION
        found = self._states(op.keys) if common < 0 else ((common, list(op.keys)),)
        for state, keys in found:
            blocks.append(BlockChange(state, keys, op.holder, num_blocks, is_removal))

    def _states(self, keys: Sequence[BlockKey]) -> list[tuple[int, list[BlockKey]]]:
        """Stretches of keys with one state, and the state of each."""
        shards, column = self._tree.shards, self._tree.slots.states
        at, shift = shards.at, shards.shift
        states = [column[at[key >> shift].get(key, 0)] for key in keys]
        stretches: list[tuple[int, list[BlockKey]]] = []
        last = -1
        for state, key in zip(states, keys, strict=True):
            if state != last:
                stretches.append((state, []))
                last = state
            stretches[-1][1].append(key)
        return stretches

    def _set(self, state: int) -> SetChange:
        states = self._tree.states
        planes = [_bytes(mask) for mask in states.planes[state]]
        return SetChange(state, _bytes(states.attached[state]), planes)

    def _planes(self) -> PlanesChange:
        states = self._tree.states
        windows = [(tier, group, plane) for (tier, group), plane in states.window_planes.items()]
        return PlanesChange(list(states.tiers), windows)


def _holder(holder: Holder, holders: Holders) -> HolderChange:
    return HolderChange(
        holder.id,
        holder.bit.bit_length() - 1,
        holder.num_blocks,
        holder.num_evicted,
        bool(holders.tiered & holder.bit),
        holder.layout,
    )


def _bytes(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")
