"""Attached or detached: what changes below a block when a holder loses it, or has it again.

A holder's attached blocks are closed under "parent of". So when an inner block goes, everything
that the holder has below it is detached, and attached again when the block returns. That may be
a million blocks (a system prompt's descendants), so it is done in pieces. While something is
left to do for a holder, it is *unsettled*, and prompts are matched with what it is known to have,
block by block.

The rule, applied until nothing changes: a child of a block is attached if and only if the block
is. It needs no order, and no memory of why a block is looked at; so a slot that has meanwhile
been given to another block does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferway.kv.index.holder_sets import HolderSets
from inferway.kv.index.slots import Slots
from inferway.model import BlockKey


class AttachmentUpdate:
    """The remaining work of attaching or detaching blocks of one holder, named by its bit."""

    __slots__ = ("bit", "child", "parents", "slot")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.parents: list[int] = []  # blocks that changed; their children are to be looked at
        self.slot = 0  # of the block whose children are being looked at
        self.child = 0  # the next of them

    def run(
        self, slots: Slots, states: HolderSets, budget: int, touched: list[BlockKey] | None
    ) -> tuple[int, int]:
        """Look at so many children at most; those that change are noted in `touched`. Returns how
        many of them became detached, minus those that became attached, and what is left of the
        budget."""
        column, following, first = slots.states, slots.next, slots.first
        known, attached, bit = states.known, states.attached, self.bit
        last_old = last_new = -1
        detached = 0
        while budget > 0 and self._next_parent(first):
            wanted = attached[column[self.slot]] & bit
            child = self.child
            while child and budget > 0:
                budget -= 1
                slot, child = child, following[child]
                old = column[slot]
                if not known[old] & bit or attached[old] & bit == wanted:
                    continue
                if old != last_old:
                    last_old, last_new = old, states.flip(old, bit)
                column[slot] = last_new
                states.move(old, last_new)
                if touched is not None:
                    touched.append(slots.keys[slot])
                detached += -1 if wanted else 1
                if first[slot]:
                    self.parents.append(slot)
            self.child = child
        return detached, budget

    @property
    def is_done(self) -> bool:
        return not self.child and not self.parents

    def released(self, slot: int, sibling: int) -> None:
        """Note that `slot` is about to be freed; `sibling` comes after it."""
        if self.child == slot:
            self.child = sibling

    def _next_parent(self, first: Sequence[int]) -> bool:
        """Return whether there is a child to look at."""
        while not self.child and self.parents:
            self.slot = self.parents.pop()
            self.child = first[self.slot]
        return self.child != 0
