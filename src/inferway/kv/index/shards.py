"""A dict from 64-bit numbers that grows without a pause.

One dict of six million entries stalls its process for a second when it resizes. Here entries lie
in many small dicts, by the top bits of their key; one that is full is split into five (1 ms; a few
where memory is slow: its entries lie all over it).
The five are uneven, each 1.15 times the one before: of equal parts all would be full, and later
all half empty, at the same time, and a dict that has just grown takes twice the memory of one
that is about to. So it takes ~38 bytes an entry at any size, instead of 27 to 54 by turns.

Hot loops do not call methods: they look up `table.at[key >> table.shift]`, and after inserting
they call `split` when the shard has exactly `LIMIT` entries. `at` and `shift` change only there,
and `at` may be another list then.

With `folded`, entries are kept under `key & FOLD`: the four bits dropped are the same throughout
a shard, so nothing is lost, and a Python integer below 2**60 takes 32 bytes instead of 48.
"""

from __future__ import annotations

from typing import Generic, TypeVar

LIMIT = 1_365  # entries at which CPython's dict would grow from 2,048 places to 4,096
FOLD = (1 << 60) - 1
_REGIONS = 16  # a shard never spans two regions: its keys have the same four top bits
_CUTS = (0.149, 0.320, 0.516, 0.741, 1.0)  # where a shard's parts end: widths grow by 2 ** (1 / 5)
_FINE = 16  # positions that a shard should have when it is split
_MAX_POSITIONS = 1 << 18

V = TypeVar("V")


class Shards(Generic[V]):
    """64-bit number -> V. What is not on a hot path has methods."""

    __slots__ = ("_dicts", "at", "folded", "shift")

    def __init__(self, *, folded: bool = False) -> None:
        self.folded = folded
        self.shift = 60
        self.at: list[dict[int, V]] = [{} for _ in range(_REGIONS)]
        # each once, by identity: of millions of entries there are as many positions as stall a loop
        self._dicts = {id(shard): shard for shard in self.at}

    def get(self, key: int) -> V | None:
        return self.at[key >> self.shift].get(key & FOLD if self.folded else key)

    def set(self, key: int, value: V) -> None:
        shard = self.at[key >> self.shift]
        shard[key & FOLD if self.folded else key] = value
        if len(shard) == LIMIT:
            self.split(key)

    def pop(self, key: int) -> V | None:
        return self.at[key >> self.shift].pop(key & FOLD if self.folded else key, None)

    def __len__(self) -> int:
        return sum(map(len, self._dicts.values()))

    def dicts(self) -> list[dict[int, V]]:
        """Return each dict of the shards once."""
        return list(self._dicts.values())

    def split(self, key: int) -> None:
        """Make several shards of that of `key`, as long as there are positions to tell them
        apart."""
        low, high = self._span(key)
        while high - low < _FINE and len(self.at) < _MAX_POSITIONS:
            twice = self.at * 2
            twice[::2] = twice[1::2] = self.at
            self.at = twice
            self.shift -= 1
            low, high = 2 * low, 2 * high
        if high - low < 2:
            return
        at, shift, shard, start = self.at, self.shift, self.at[low], low
        for cut in _CUTS:
            end = low + round((high - low) * cut)
            part: dict[int, V] = {}
            self._dicts[id(part)] = part
            at[start:end] = [part] * (end - start)
            start = end
        del self._dicts[id(shard)]
        region = low - low % (len(at) // _REGIONS) if self.folded else 0
        for short, value in shard.items():
            at[region + (short >> shift)][short] = value

    def _span(self, key: int) -> tuple[int, int]:
        """The positions [low, high) of the shard of `key`."""
        at, position = self.at, key >> self.shift
        shard = at[position]
        low = high = position
        while low and at[low - 1] is shard:
            low -= 1
        while high < len(at) and at[high] is shard:
            high += 1
        return low, high
