"""Cleared holders' leftovers, taken away in pieces.

A cleared holder is out of the picture at once, because its bit no longer counts. Then its bit is
taken out of every value that has it (values, not blocks: they are few), and blocks that nobody
holds any more are looked for, thousands at a glance, and freed.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from inferway.kv.index.holder_sets import NOBODY
from inferway.kv.index.tree import Tree

_GLANCE = 8192  # slots
_GLANCE_COSTS = 16  # as much as so many blocks freed


class BitSweep:
    """One round of clearing: it removes the bits that were dead when it began."""

    def __init__(self, tree: Tree) -> None:
        self.bits = tree.states.dead
        self._tree = tree
        self._slots = tree.slots
        self._states = states = tree.states
        self._num_states = len(states.planes)
        self._next_state = 1
        self._orphaned: NDArray[np.bool_] | None = None  # by state: no holder is left in it
        self._any_orphaned = False
        self._num_slots = len(tree.slots.states)
        self._next_slot = 1
        self._found: list[int] = []

    def run(self, budget: int) -> bool:
        """Look at about so many blocks. Returns whether the round is over."""
        budget -= self._bury(budget)
        while budget > 0 and self._next_state >= self._num_states:
            if not self._found:
                if self._next_slot >= self._num_slots or not self._any_orphaned:
                    self._states.dead &= ~self.bits
                    return True
                self._glance()
                budget -= _GLANCE_COSTS
            budget -= self._free(budget)
        return False

    def _bury(self, budget: int) -> int:
        start = self._next_state
        end = self._next_state = min(start + budget, self._num_states)
        for state in range(start, end):
            self._any_orphaned |= self._states.drop_dead_bits(state)
        return end - start

    def _glance(self) -> None:
        if self._orphaned is None:
            planes = islice(self._states.planes, self._num_states)
            self._orphaned = np.array([not value for value in planes], dtype=bool)
            self._orphaned[NOBODY] = False
        start = self._next_slot
        end = self._next_slot = min(start + _GLANCE, self._num_slots)
        column = np.frombuffer(
            self._slots.states, dtype=np.uint32, count=end - start, offset=4 * start
        )
        known = column < len(self._orphaned)
        known[known] = self._orphaned[column[known]]
        self._found = (np.flatnonzero(known) + start).tolist()
        self._found.reverse()

    def _free(self, budget: int) -> int:
        slots, states = self._slots, self._states
        count = 0
        while self._found and count < budget:
            count += 1
            slot = self._found.pop()
            state = slots.states[slot]
            if state == NOBODY or not states.is_empty(state):
                continue  # meanwhile freed, or held again
            if slots.first[slot]:
                slots.states[slot] = NOBODY
                states.move(state, NOBODY)
                if self._tree.touched is not None:
                    self._tree.touched.append(slots.keys[slot])
            else:
                states.release(state)
                count += self._tree.free_slot(slot) - 1
        return count
