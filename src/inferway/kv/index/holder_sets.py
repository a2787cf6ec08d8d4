"""Sets of holders and where they hold a block: values that many blocks share, by number.

A value is `attached` and a mask for each *plane*. A mask has one bit per holder; a plane is a
tier of a group of KV caches, and its mask says who holds the block there. `attached` has those
whose block can be reached, all its ancestors being held as well; it speaks of the full-attention
group, in any tier.

In a fleet there are far fewer different values than blocks: a conversation's blocks lie with one
engine or two, a system prompt's with most. So a block needs four bytes for it, and a mask of a
thousand bits is stored once. A value that no block has any more is dropped.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence

from inferway.kv.index.protocol import FULL_ATTENTION, GPU, Tier

NOBODY = 0  # the id of the value without holders; always there

Planes = tuple[int, ...]


class HolderSets:
    """Columns by id; `counts` (blocks that have the value) is kept by `move` and `release`."""

    __slots__ = (
        "_first_free",
        "_free",
        "_ids",
        "attached",
        "changed",
        "counts",
        "dead",
        "known",
        "num_planes",
        "planes",
        "tiers",
        "window_planes",
    )

    def __init__(self) -> None:
        self.attached = [0]
        self.known = [0]  # its holders in the full-attention group, attached or not
        self.planes: list[Planes] = [()]
        self.counts = array("q", [1])
        self.dead = 0  # bits of holders that are gone; no new value has them
        self.changed: list[int] | None = None  # ids that have got a value, with repetitions
        # plane numbers: of the full-attention group by tier (-1: no block was there yet) ...
        self.tiers = [0]
        # ... and of other groups: (tier, group) -> plane
        self.window_planes: dict[tuple[Tier, int], int] = {}
        self.num_planes = 1
        self._ids: dict[tuple[int, Planes], int] = {(0, ()): NOBODY}
        self._free: list[int] = []

    def plane(self, tier: Tier, group: int) -> int:
        """Return the plane's number; a new one if need be."""
        plane = 0 if tier == GPU and group == FULL_ATTENTION else self.known_plane(tier, group)
        if plane >= 0:
            return plane
        plane = self.num_planes
        self.num_planes += 1
        if group != FULL_ATTENTION:
            self.window_planes[tier, group] = plane
        else:
            self.tiers += [-1] * (tier + 1 - len(self.tiers))
            self.tiers[tier] = plane
        return plane

    def known_plane(self, tier: Tier, group: int) -> int:
        """Return the plane's number; -1 if no block was ever there."""
        if group != FULL_ATTENTION:
            return self.window_planes.get((tier, group), -1)
        return self.tiers[tier] if tier < len(self.tiers) else -1

    def add(self, state: int, plane: int, bit: int, attach: int) -> int:
        """Return the state that is `state` with the holder `bit` in `plane`; `attach` is `bit` or
        0."""
        planes = self.planes[state]
        if plane < len(planes):
            planes = (*planes[:plane], planes[plane] | bit, *planes[plane + 1 :])
        else:
            planes = (*planes, *(0,) * (plane - len(planes)), bit)
        return self._id(self.attached[state] | attach, planes)

    def drop(self, state: int, plane: int, bit: int) -> int:
        """Return the state that is `state` without the holder in `plane`."""
        planes = self.planes[state]
        if plane >= len(planes) or not planes[plane] & bit:
            return state
        planes = (*planes[:plane], planes[plane] & ~bit, *planes[plane + 1 :])
        return self._id(self.attached[state] & self._known(planes), planes)

    def flip(self, state: int, bit: int) -> int:
        """Return the state in which the holder's attached becomes detached, or the other way
        round."""
        return self._id(self.attached[state] ^ bit, self.planes[state])

    def move(self, old: int, new: int) -> None:
        """Count a block whose state has changed."""
        self.counts[new] += 1
        self.release(old)

    def release(self, state: int, blocks: int = 1) -> None:
        """Count so many blocks that no longer have this state."""
        self.counts[state] -= blocks
        if not self.counts[state]:
            self._forget(state)
            self._free.append(state)
            self.planes[state] = ()
            self.attached[state] = self.known[state] = 0

    def is_empty(self, state: int) -> bool:
        return not self.planes[state]

    def drop_dead_bits(self, state: int) -> bool:
        """Take the dead bits out of one state. Returns whether nobody is left in it."""
        planes = self.planes[state]
        if not any(mask & self.dead for mask in planes):
            return False
        self._forget(state)
        live = ~self.dead
        attached = self.attached[state] = self.attached[state] & live
        planes = self.planes[state] = _trimmed(tuple([mask & live for mask in planes]))
        self.known[state] = self._known(planes)
        self._ids.setdefault((attached, planes), state)  # else a second id for one value
        if self.changed is not None:
            self.changed.append(state)
        return not planes

    def put(self, state: int, attached: int, planes: Planes) -> None:
        """Give the state this value, whatever it had: for a copy, which counts no blocks and looks
        up no value. States that were not there before have nobody until they are put."""
        self.make_room(state)
        self.attached[state], self.planes[state] = attached, planes
        self.known[state] = self._known(planes)

    def make_room(self, state: int) -> None:
        """Have the state, without holders until it is put."""
        missing = state + 1 - len(self.planes)
        if missing > 0:
            self.attached += [0] * missing
            self.known += [0] * missing
            self.planes += [()] * missing

    def group_mask(self, state: int, group: int) -> int:
        """Return the holders of the block in a group, in any tier."""
        if group == FULL_ATTENTION:
            return self.known[state]
        planes, mask = self.planes[state], 0
        for (_, of), plane in self.window_planes.items():
            if of == group and plane < len(planes):
                mask |= planes[plane]
        return mask

    def best_tiers(self, state: int) -> Sequence[tuple[Tier, int]]:
        """Return (tier, holders with it there and in no better one), without the first tier."""
        planes = self.planes[state]
        found, seen = [], planes[0] if planes else 0
        for tier, plane in enumerate(self.tiers):
            if tier and 0 <= plane < len(planes):
                mask = planes[plane] & ~seen
                seen |= mask
                if mask:
                    found.append((tier, mask))
        return found

    def places(self, state: int) -> Iterator[tuple[Tier, int, int]]:
        """Yield (tier, group, holders there) for each of its places."""
        planes = self.planes[state]
        for tier, plane in enumerate(self.tiers):
            if 0 <= plane < len(planes):
                yield tier, FULL_ATTENTION, planes[plane]
        for (tier, group), plane in self.window_planes.items():
            if plane < len(planes):
                yield tier, group, planes[plane]

    def __len__(self) -> int:
        return len(self.planes) - len(self._free)

    def num_bytes(self) -> int:
        """Return about what they take; a mask in several states is counted once in each."""
        masks = sum(sys.getsizeof(mask) for mask in self.attached)
        return 2 * masks + 200 * len(self.planes) + sys.getsizeof(self._ids)

    def _known(self, planes: Planes) -> int:
        if len(self.tiers) == 1:
            return planes[0] if planes else 0
        known = 0
        for plane in self.tiers:
            if 0 <= plane < len(planes):
                known |= planes[plane]
        return known

    def _id(self, attached: int, planes: Planes) -> int:
        if self.dead:
            attached &= ~self.dead
            planes = tuple([mask & ~self.dead for mask in planes])
        if planes and not planes[-1]:
            planes = _trimmed(planes)
        value = (attached, planes)
        state = self._ids.get(value)
        if state is not None:
            return state
        if self._free:
            state = self._ids[value] = self._free.pop()
            self.attached[state], self.planes[state] = value
            self.known[state] = self._known(planes)
        else:
            state = self._ids[value] = len(self.planes)
            self.attached.append(attached)
            self.planes.append(planes)
            self.known.append(self._known(planes))
            self.counts.append(0)
        if self.changed is not None:
            self.changed.append(state)
        return state

    def _forget(self, state: int) -> None:
        value = (self.attached[state], self.planes[state])
        if self._ids.get(value) == state:
            del self._ids[value]


def _trimmed(planes: Planes) -> Planes:
    while planes and not planes[-1]:
        planes = planes[:-1]
    return planes
