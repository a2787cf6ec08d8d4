"""Eviction of blocks when there is no more room: a clock with a second chance.

Only a block without children can go, or what lies below it would be lost with it. The hand goes
backwards over the slots, because chains lie in them forwards: so it meets a chain's end first,
and its way up frees the chain. A mark protects a block for a round or two: matching a prompt
marks the last block it found (the blocks before it have children and are safe by that), storing
marks the last block stored, which is fresher with each holder that comes to have it.
"""

from __future__ import annotations

import numpy as np

from inferway.kv.index.slots import Slots

STORED = 1
MATCHED = 2
_GLANCE = 8192  # slots
_MAX_GLANCES = 64  # then marks no longer protect: storing must not wait for long


class Eviction:
    """Proposes slots; the owner frees them."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._hand = 0
        self._candidates: list[int] = []

    def next(self) -> int:
        """Return a slot in use, without children; 0 if there is none."""
        for glance in range(2 * _MAX_GLANCES):
            while self._candidates:
                slot = self._candidates.pop()
                if self._slots.states[slot] and not self._slots.first[slot]:
                    return slot
            self._glance(mercy=glance < _MAX_GLANCES)
        return 0

    def _glance(self, *, mercy: bool) -> None:
        slots = self._slots
        if self._hand <= 1:
            self._hand = len(slots.states)
        start = max(1, self._hand - _GLANCE)
        count = self._hand - start
        self._hand = start
        leaves = np.frombuffer(slots.first, np.uint32, count, 4 * start) == 0
        leaves &= np.frombuffer(slots.states, np.uint32, count, 4 * start) != 0
        marks = np.frombuffer(slots.marks, np.uint8, count, start)
        useful = leaves & (marks > 0)
        if mercy:
            leaves ^= useful
        marks[useful] -= 1
        self._candidates = (np.flatnonzero(leaves) + start).tolist()
