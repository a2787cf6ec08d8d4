"""Which engines hold which blocks: each block has the bits of its engines, so that a prompt is
matched with all of them at once, however many there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

_MANY = 12  # bits; from so many on numpy finds them sooner


class Holders:
    """The holders of blocks. An engine that holds a block holds all before it."""

    __slots__ = ("_masks",)

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def add(self, engine: int, blocks: Iterable[int]) -> None:
        masks, bit = self._masks, 1 << engine
        for block in blocks:
            masks[block] = masks.get(block, 0) | bit

    def remove(self, engine: int, blocks: Iterable[int]) -> None:
        """Forget blocks that the engine holds."""
        masks, bit = self._masks, 1 << engine
        for block in blocks:
            left = masks[block] & ~bit
            if left:
                masks[block] = left
            else:
                del masks[block]

    def forget(self, engine: int) -> None:
        """Forget an engine that is no more, whatever it held."""
        keep = ~(1 << engine)
        self._masks = {block: left for block, mask in self._masks.items() if (left := mask & keep)}

    def match(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return how many of `blocks`, from the start, each engine holds that has any."""
        held: dict[int, int] = {}
        masks = self._masks
        if not blocks:
            return held
        mask = masks.get(blocks[0], 0)
        at = 1
        while mask and at < len(blocks):
            still = mask & masks.get(blocks[at], 0)
            if still != mask:
                _note(held, mask ^ still, at)
                mask = still
            at += 1
        _note(held, mask, at)
        return held


def _note(held: dict[int, int], bits: int, count: int) -> None:
    if bits.bit_count() > _MANY:
        octets = np.frombuffer(bits.to_bytes(-(-bits.bit_length() // 8), "little"), np.uint8)
        engines = np.unpackbits(octets, bitorder="little").nonzero()[0].tolist()
        held.update(dict.fromkeys(engines, count))
        return
    while bits:
        low = bits & -bits
        held[low.bit_length() - 1] = count
        bits ^= low
