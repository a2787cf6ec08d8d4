"""The holders an index knows, and the bit that stands for each of them in masks.

A bit belongs to a holder from its first block until it is cleared; then the holder may get
another one at once, and the old bit waits until no block has it any more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from inferway.kv.index.prefix_lengths import HolderIds
from inferway.kv.index.protocol import GPU, Tier
from inferway.kv.index.reuse import CacheLayout
from inferway.model import HolderId

_MAX_REMEMBERED = 1000


class Holder:
    """One holder and its counters; `MemoryIndex` writes them."""

    __slots__ = ("bit", "id", "layout", "num_blocks", "num_detached", "num_evicted")

    def __init__(self, holder: HolderId, bit: int) -> None:
        self.id = holder
        self.bit = bit
        self.num_blocks = 0  # of the full-attention group
        self.num_detached = 0  # of them
        self.num_evicted = 0  # since the last clear
        self.layout: CacheLayout | None = None  # None: full attention alone


class Holders:
    """The holders of an index and the bit of each."""

    __slots__ = (
        "_arrays",
        "_by_id",
        "_by_place",
        "_free",
        "changed",
        "ids",
        "laid_out",
        "live",
        "tiered",
    )

    def __init__(self) -> None:
        self.live = 0  # the bits of all holders
        self.laid_out = 0  # of those with a layout
        self.tiered = 0  # of those that have had blocks in lower tiers
        self._by_id: dict[HolderId, Holder] = {}
        self._by_place: list[Holder | None] = []  # place i has bit 1 << i
        self._free: list[int] = []  # places
        self.changed: set[HolderId] = set()  # of which something else than their blocks has changed
        self.ids: dict[int, list[HolderId]] = {}  # mask -> holders, as far as remembered
        self._arrays: dict[int, HolderIds] = {}  # the same, of masks of many

    def get(self, holder: HolderId) -> Holder | None:
        return self._by_id.get(holder)

    def get_or_add(self, holder: HolderId) -> Holder:
        found = self._by_id.get(holder)
        if found is not None:
            return found
        if self._free:
            place = self._free.pop()
        else:
            place = len(self._by_place)
            self._by_place.append(None)
        return self._add(holder, place)

    def put(self, holder: HolderId, place: int) -> Holder:
        """Return the holder, which has this place from now on if it had none: for a copy."""
        self._by_place += [None] * (place + 1 - len(self._by_place))
        return self._by_id.get(holder) or self._add(holder, place)

    def _add(self, holder: HolderId, place: int) -> Holder:
        added = self._by_place[place] = self._by_id[holder] = Holder(holder, 1 << place)
        self.live |= added.bit
        self.changed.add(holder)
        self._forget_ids()
        return added

    def in_tier(self, holder: Holder, tier: Tier) -> None:
        if tier != GPU and not self.tiered & holder.bit:
            self.tiered |= holder.bit
            self.changed.add(holder.id)

    def set_layout(self, holder: Holder, layout: CacheLayout | None) -> None:
        """Let the holder look prompts up in these groups."""
        self.changed.add(holder.id)
        holder.layout = layout
        if layout is None:
            self.laid_out &= ~holder.bit
        else:
            self.laid_out |= holder.bit

    def drop(self, holder: HolderId) -> Holder | None:
        """Forget a holder; its bit stays taken until `free`."""
        dropped = self._by_id.pop(holder, None)
        if dropped is not None:
            self.live &= ~dropped.bit
            self.laid_out &= ~dropped.bit
            self.tiered &= ~dropped.bit
            self._forget_ids()
        return dropped

    def free(self, bits: int) -> None:
        """Give the bits to others, for no block has them any more."""
        for place in places(bits):
            self._by_place[place] = None
            self._free.append(place)

    def _forget_ids(self) -> None:
        self.ids.clear()
        self._arrays.clear()

    def remember_ids(self, bits: int) -> list[HolderId]:
        """Return the ids of the live holders in a mask. A few masks make most answers, so `ids`
        keeps them."""
        if len(self.ids) >= _MAX_REMEMBERED:
            self.ids.clear()
        found = self.ids[bits] = [holder.id for holder in self.of(bits)]
        return found

    def ids_of_many(self, bits: int) -> HolderIds:
        """Return the same as an array, which must not be written to."""
        found = self._arrays.get(bits)
        if found is None:
            if len(self._arrays) >= _MAX_REMEMBERED:
                self._arrays.clear()
            ids = [holder.id for holder in self.of(bits)]
            found = self._arrays[bits] = np.array(ids, np.intp)
        return found

    def of(self, bits: int) -> Iterator[Holder]:
        """Yield the live holders in a mask."""
        for place in places(bits & self.live):
            holder = self._by_place[place]
            assert holder is not None
            yield holder


def places(bits: int) -> Iterator[int]:
    """Yield the positions of the ones in a mask, the lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
