"""Blocks in numbered slots, and the tree they form: 29 bytes a block, in columns.

Slot 0 is no block; as a parent it stands for "none: the block begins a prompt". Children of a
block are a doubly linked list: `first` child, `next` and `before`, 0 at both ends. Every block
knows its parent. The parent of a block that somebody named as a parent before it was stored itself
is `NOWHERE` until then.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from inferway.model import BlockKey

NOWHERE = (1 << 32) - 1  # as a parent: the block belongs nowhere yet


class Slots:
    """Columns of equal length; the owner writes `states` and `marks`."""

    __slots__ = ("before", "first", "free", "keys", "marks", "next", "parents", "states")

    def __init__(self) -> None:
        self.keys = array("Q", [0])
        self.states = array("I", [0])  # its holders: an id of `holder_sets.HolderSets`
        self.first = array("I", [0])
        self.next = array("I", [0])
        self.before = array("I", [0])
        self.parents = array("I", [0])
        self.marks = bytearray(1)  # how lately it was of use
        self.free = array("I")  # slots without a block; keys and parents are those they had

    @property
    def num_used(self) -> int:
        return len(self.states) - 1 - len(self.free)

    def new(self, key: BlockKey, state: int) -> int:
        """Return a slot for a block that belongs nowhere yet."""
        if self.free:
            slot = self.free.pop()
            self.keys[slot] = key
            self.states[slot] = state
            self.parents[slot] = NOWHERE
            return slot
        self.keys.append(key)
        self.states.append(state)
        self.first.append(0)
        self.next.append(0)
        self.before.append(0)
        self.parents.append(NOWHERE)
        self.marks.append(0)
        return len(self.states) - 1

    def new_chain(self, keys: Sequence[BlockKey], state: int, parent: int) -> Sequence[int]:
        """Return slots for new blocks, each the child of the one before it, the first of
        `parent`."""
        count = len(keys)
        if len(self.free) >= count:
            return self._reuse_for_chain(keys, state, parent)
        if self.free or count == 1:  # of one, columns grow faster by one
            slots = [self.new(key, state) for key in keys]
            for slot in slots:
                self.link(slot, parent)
                parent = slot
            return slots
        start = len(self.states)
        end = start + count
        self.keys.extend(array("Q", keys))
        self.states.extend(array("I", [state]) * count)
        self.first.extend(range(start + 1, end))
        self.first.append(0)
        nothing = bytes(self.next.itemsize * count)
        self.next.frombytes(nothing)
        self.before.frombytes(nothing)
        self.parents.append(NOWHERE)
        self.parents.extend(range(start, end - 1))
        self.marks.extend(bytes(count))
        self.link(start, parent)
        return range(start, end)

    def _reuse_for_chain(self, keys: Sequence[BlockKey], state: int, parent: int) -> Sequence[int]:
        """`new_chain` of free slots, of which there are enough."""
        count = len(keys)
        slots = self.free[-count:].tolist()
        del self.free[-count:]
        slots.reverse()  # a chain is freed from its end: where it was, it is again
        keys_of, states, first, parents = self.keys, self.states, self.first, self.parents
        self.link(slots[0], parent)
        parent = 0
        for key, slot in zip(keys, slots, strict=True):
            keys_of[slot] = key
            states[slot] = state
            if parent:
                first[parent] = slot
                parents[slot] = parent
            parent = slot
        return slots

    def link(self, slot: int, parent: int) -> None:
        """Make `slot`, which belongs nowhere yet, a child of `parent`."""
        self.parents[slot] = parent
        if not parent:
            return
        sibling = self.first[parent]
        self.first[parent] = slot
        if sibling:
            self.next[slot] = sibling
            self.before[sibling] = slot

    def release(self, slot: int) -> int:
        """Free the slot of a block without children. Returns its parent if that has no more
        children either, else 0."""
        before, sibling, parent = self.before[slot], self.next[slot], self.parents[slot]
        childless = 0
        if before:
            self.next[before] = sibling
        elif 0 < parent < NOWHERE:
            self.first[parent] = sibling
            if not sibling:
                childless = parent
        if sibling:
            self.before[sibling] = before
        self.before[slot] = self.next[slot] = 0
        self.states[slot] = self.marks[slot] = 0
        self.free.append(slot)
        return childless

    def release_end(self, slot: int) -> bool:
        """Free the slot of a held block without children, if it is an only child and held as its
        parent is, as the end of a chain is; else do nothing, and return False."""
        states, first, parent = self.states, self.first, self.parents[slot]
        if not parent or first[parent] != slot or self.next[slot] or states[parent] != states[slot]:
            return False
        first[parent] = states[slot] = self.marks[slot] = 0
        self.free.append(slot)
        return True

    def num_bytes(self) -> int:
        links = (self.first, self.next, self.before, self.parents)
        columns = (self.keys, self.states, self.free, *links)
        return sum(c.itemsize * len(c) for c in columns) + len(self.marks)
