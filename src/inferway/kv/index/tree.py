"""The tree of all holders' blocks: key -> slot (`shards`), slot -> its holders (`slots`, `states`),
and what each holder can reuse kept closed under "parent of" (`settling`).

Operations are one holder's. How long they take depends on what they name and on what that
detaches, attaches or frees; beyond `slice_blocks` of the latter, the rest is left for `settle` and
`free_lapsed`.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferway.kv.index.holder_sets import NOBODY, HolderSets
from inferway.kv.index.holders import Holder
from inferway.kv.index.protocol import FULL_ATTENTION, Copy, Remove, Store
from inferway.kv.index.shards import LIMIT, Shards
from inferway.kv.index.slots import NOWHERE, Slots
from inferway.model import BlockKey


class AttachmentUpdate:
    """The remaining work of attaching or detaching blocks of one holder, named by its bit.

    A holder's attached blocks are closed under "parent of". So when an inner block goes, everything
    that the holder has below it is detached, and attached again when the block returns. That may be
    a million blocks (a system prompt's descendants), so it is done in pieces. While something is
    left to do for a holder, it is *unsettled*, and prompts are matched with what it is known to
    have, block by block.

    The rule, applied until nothing changes: a child of a block is attached if and only if the block
    is. It needs no order, and no memory of why a block is looked at; so a slot that has meanwhile
    been given to another block does no harm.
    """

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


class Tree:
    """Written through its methods only; `MemoryIndex` reads it where speed counts."""

    def __init__(self, slice_blocks: int) -> None:
        self.shards: Shards[int] = Shards()
        self.slots = Slots()
        self.states = HolderSets()
        self.settling: dict[int, AttachmentUpdate] = {}  # bit -> what is left to do
        self.unsettled = 0  # those bits
        self.lapsed: list[int] = []  # slots without children or holders, to be freed
        self.touched: list[BlockKey] | None = None  # see `settle` and `free_slot`
        self.common = -1  # the state that all blocks of the last operation got; -1: they differ
        self.commons: list[int] | None = None  # those of all operations; see `changes`
        self._slice = slice_blocks

    def slot(self, key: BlockKey) -> int:
        """Return the block's slot; 0 if it is unknown."""
        shards = self.shards
        return shards.at[key >> shards.shift].get(key, 0)

    def state(self, key: BlockKey) -> int:
        return self.slots.states[self.slot(key)]

    def store(self, holder: Holder, op: Store) -> int:
        """Do the operation. Returns the slot of the last block. A parent nobody has told of gets a
        slot, too."""
        keys = op.keys
        parent, attach = 0, holder.bit
        if op.parent is not None:
            parent = self.slot(op.parent)
            if not parent:
                parent = self._new_slot(op.parent, NOBODY)
                self.states.counts[NOBODY] += 1
            attach &= self.states.attached[self.slots.states[parent]]
        if op.group != FULL_ATTENTION:
            attach = 0
        plane = self.states.plane(op.tier, op.group)
        at, shift = self.shards.at, self.shards.shift
        found = [at[key >> shift].get(key) for key in keys]
        if found.count(None) == len(keys) == len(set(keys)):
            last = self._store_new(holder, keys, parent, plane, attach)
            gained = len(keys)
        else:
            last, gained = self._store_mixed(holder, keys, parent, plane, attach)
        if op.group == FULL_ATTENTION:
            holder.num_blocks += gained
            if not attach:
                holder.num_detached += gained
        return last

    def copy(self, holder: Holder, op: Copy) -> None:
        slots, states, bit = self.slots, self.states, holder.bit
        plane = states.plane(op.tier, op.group)
        self.common = -1
        changed = []
        for key in op.keys:
            slot = self.slot(key)
            old = slots.states[slot]
            if not any(mask & bit for mask in states.planes[old]):
                continue
            attach = 0
            if op.group == FULL_ATTENTION and not states.known[old] & bit:
                attach = self._attached_parent(slot) & bit
                holder.num_blocks += 1
                holder.num_detached += not attach
                if attach and slots.first[slot]:
                    changed.append(slot)
            new = states.add(old, plane, bit, attach)
            if new != old:
                slots.states[slot] = new
                states.move(old, new)
        if changed and holder.num_detached:
            self._changed(holder, changed)

    def remove(self, holder: Holder, op: Remove) -> None:
        slots, states, bit = self.slots, self.states, holder.bit
        column, full = slots.states, op.group == FULL_ATTENTION
        first, counts = slots.first, states.counts
        plane = states.plane(op.tier, op.group)
        at, shift = self.shards.at, self.shards.shift
        old = new = -1
        num_states = num_missing = 0
        lost = was_attached = False
        changed: list[int] = []
        for key in op.keys:
            shard = at[key >> shift]
            slot = shard.get(key)
            if slot is None:
                num_missing += 1
                continue
            if column[slot] != old:
                num_states += 1
                old = column[slot]
                new = states.drop(old, plane, bit)
                lost = full and new != old and not states.known[new] & bit
                was_attached = bool(states.attached[old] & bit)
            if new == old:
                continue
            child = first[slot]
            if lost:
                holder.num_blocks -= 1
                if not was_attached:
                    holder.num_detached -= 1
                elif child:
                    changed.append(slot)
            if new != NOBODY or child:
                column[slot] = new
                states.move(old, new)
            elif counts[old] > 1 and not self.settling and slots.release_end(slot):
                counts[old] -= 1
                del shard[key]
            else:
                states.release(old)
                self.free_slot(slot)
        self.common = new if num_states == 1 and not num_missing else -1
        if changed:
            self._changed(holder, changed)

    def forget(self, bit: int) -> None:
        """Settle nothing more for this holder."""
        self.settling.pop(bit, None)
        self.unsettled &= ~bit

    def settle(self, holder: Holder, budget: int) -> int:
        """Go on with what was left to do, for at most so many blocks, and note them in `touched`.
        Returns what is left of the budget."""
        settling = self.settling[holder.bit]
        detached, budget = settling.run(self.slots, self.states, budget, self.touched)
        holder.num_detached += detached
        if settling.is_done:
            self.forget(holder.bit)
        else:
            self.unsettled |= holder.bit
        return budget

    def evict(self, slot: int) -> int:
        """Free a block without children, whoever has it. Returns its parent if that has no more
        children either, else 0."""
        slots = self.slots
        parent = slots.parents[slot]
        self.states.release(slots.states[slot])
        self.free_slot(slot)
        if not 0 < parent < NOWHERE:
            return 0
        return parent if slots.states[parent] and not slots.first[parent] else 0

    def free_slot(self, slot: int) -> int:
        """Free the slot of a block without children and holders (its state is released), and those
        of parents that only stood for it, and note them in `touched`; of a long chain the rest is
        `lapsed`. Returns how many."""
        slots, states, shards = self.slots, self.states, self.shards
        at, shift = shards.at, shards.shift
        for count in range(1, self._slice + 1):
            for settling in self.settling.values() if self.settling else ():
                settling.released(slot, slots.next[slot])
            key = slots.keys[slot]
            del at[key >> shift][key]
            if self.touched is not None:
                self.touched.append(key)
            slot = slots.release(slot)
            if not slot or states.planes[slots.states[slot]]:
                return count
            if count < self._slice:
                states.release(slots.states[slot])
        self.lapsed.append(slot)
        return self._slice

    def free_lapsed(self, budget: int) -> int:
        """Free about so many lapsed slots. Returns what is left of the budget."""
        slots, states, lapsed = self.slots, self.states, self.lapsed
        while lapsed and budget > 0:
            slot = lapsed.pop()
            state = slots.states[slot]
            if not states.is_empty(state) or slots.first[slot]:
                continue  # meanwhile held again
            if self.slot(slots.keys[slot]) == slot:  # else meanwhile freed
                states.release(state)
                budget -= self.free_slot(slot)
        return max(budget, 0)

    # steps

    def _store_new(
        self, holder: Holder, keys: Sequence[BlockKey], parent: int, plane: int, attach: int
    ) -> int:
        """Keys nobody has, all different. Returns the last one's slot."""
        state = self.states.add(NOBODY, plane, holder.bit, attach)
        self.states.counts[state] += len(keys)
        self.common = state
        slots = self.slots.new_chain(keys, state, parent)
        shards = self.shards
        at, shift = shards.at, shards.shift
        for key, slot in zip(keys, slots, strict=True):
            shard = at[key >> shift]
            shard[key] = slot
            if len(shard) == LIMIT:
                shards.split(key)
                at, shift = shards.at, shards.shift
        return slots[-1]

    def _store_mixed(
        self, holder: Holder, keys: Sequence[BlockKey], parent: int, plane: int, attach: int
    ) -> tuple[int, int]:
        """Any keys. Returns the last one's slot, and how many the holder did not have before
        in the full-attention group."""
        slots, states, bit = self.slots, self.states, holder.bit
        column = slots.states
        fresh = states.add(NOBODY, plane, bit, attach)
        states.counts[fresh] += 1  # so that it stays while we are here
        last_old = last_new = slot = -1
        num_states = 0
        gained = gate = 0  # gate: the block before, if what lies below it may be attached now
        changed: list[int] = []
        for key in keys:
            slot = self.slot(key)
            if not slot:
                slot = self._new_slot(key, fresh)
                slots.link(slot, parent)
                states.counts[fresh] += 1
                gained += 1
            elif slots.parents[slot] == NOWHERE and slot != parent:
                slots.link(slot, parent)
            if gate and (slots.first[gate] != slot or slots.next[slot]):
                changed.append(gate)  # it has other children than the next in the chain
            parent, gate, old = slot, 0, column[slot]
            if old != last_old:
                num_states += 1
                last_old, last_new = old, states.add(old, plane, bit, attach)
            if last_new == old:
                continue
            had = states.known[old] & bit
            gained += not had
            if attach and not states.attached[old] & bit:
                if had:
                    holder.num_detached -= 1
                if slots.first[slot]:
                    gate = slot
            column[slot] = last_new
            states.move(old, last_new)
        states.release(fresh)
        self.common = last_new if num_states == 1 else -1
        if gate:
            changed.append(gate)
        if changed and holder.num_detached:
            self._changed(holder, changed)
        return slot, gained

    def _new_slot(self, key: BlockKey, state: int) -> int:
        slot = self.slots.new(key, state)
        self.shards.set(key, slot)
        return slot

    def _attached_parent(self, slot: int) -> int:
        """Return who has the block's parent attached; everybody if it begins a prompt."""
        parent = self.slots.parents[slot]
        if parent == NOWHERE:
            return 0
        return self.states.attached[self.slots.states[parent]] if parent else -1

    def _changed(self, holder: Holder, blocks: Sequence[int]) -> None:
        """Note that these blocks of the holder have become attached or detached."""
        settling = self.settling.get(holder.bit)
        if settling is not None:
            settling.parents.extend(blocks)
            return
        settling = self.settling[holder.bit] = AttachmentUpdate(holder.bit)
        settling.parents.extend(blocks)
        self.settle(holder, self._slice)
