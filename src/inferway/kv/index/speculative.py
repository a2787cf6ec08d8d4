"""Prompts just routed count as held, until the engine's own events say so.

Without it a burst of equal prompts would be spread over the fleet: the first one's blocks
appear in the index only when its prefill has run. The overlay stands apart from the index, so
that what we hope never mixes with what engines told.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inferway.kv.index.prefix_lengths import different_lengths
from inferway.model import BlockKey, HolderId

STEP_BLOCKS = 4096  # that a turn adds and removes: about a millisecond
_SHORT_BLOCKS = 256  # a prompt up to this length waits for no other


@dataclass(slots=True, eq=False)
class Speculation:
    """A prompt on its way to a holder: the handle that `SpeculativeOverlay.remove` takes."""

    holder: HolderId
    keys: Sequence[BlockKey]
    active: bool = True
    num_added: int = 0  # of `keys`, from their start
    waits: bool = False  # in the overlay's queue, for a call that goes on with it


class SpeculativeOverlay:
    """Key -> the holders that prompts on their way bring that block to, as bits: what is not asked
    for costs nothing, however many holders there are.

    Every speculation counts all of its own blocks, also those that another one brings already:
    when the first of two equal prompts ends, the second still stands for all of them. Callers
    may leave out the blocks that the index itself matched (`skip`): the engine has them, and a
    query is continued from its own match in the index.

    With `soon`, which calls what it is given in a later turn of the loop, long prompts are added
    and removed STEP_BLOCKS a turn in all: added from their start, removed from their end.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._soon = soon
        self._unfinished: deque[Speculation] = deque()
        self._turn_comes = False  # this one's share is taken
        self._bits: dict[BlockKey, int] = {}
        self._ends: Counter[tuple[HolderId, BlockKey]] = Counter()  # prompts by their last block
        # How many prompts more than one bring the block there; none: not in it.
        self._more: dict[tuple[HolderId, BlockKey], int] = {}

    def add(self, holder: HolderId, keys: Sequence[BlockKey], skip: int = 0) -> Speculation:
        """Count `keys` of a prompt just routed to `holder`, whose first `skip` blocks it holds."""
        keys = keys[skip:] if skip else keys
        if not keys:
            return Speculation(holder, keys, active=False)
        self._ends[holder, keys[-1]] += 1
        if self._soon is None or len(keys) <= _SHORT_BLOCKS:
            self._add(holder, keys)
            return Speculation(holder, keys, num_added=len(keys))
        speculation = Speculation(holder, keys)
        self._work_on(speculation)
        return speculation

    def remove(self, speculation: Speculation) -> None:
        """Count a prompt's blocks no more: they are known by now, or will never come. A second call
        does nothing."""
        if not speculation.active:
            return
        speculation.active = False
        end = speculation.holder, speculation.keys[-1]
        self._ends[end] -= 1
        if not self._ends[end]:
            del self._ends[end]
        if self._soon is None or len(speculation.keys) <= _SHORT_BLOCKS:
            self._remove(speculation.holder, speculation.keys)
        else:
            self._work_on(speculation)

    def _work_on(self, speculation: Speculation) -> None:
        """Add or remove the speculation, now or when those before it are done."""
        if speculation.waits:
            return
        speculation.waits = True
        self._unfinished.append(speculation)
        if not self._turn_comes:
            self._take_turn()

    def _take_turn(self) -> None:
        left, unfinished = STEP_BLOCKS, self._unfinished
        while left > 0 and unfinished:
            left -= self._step(unfinished[0], left)
            if _is_finished(unfinished[0]):
                unfinished.popleft().waits = False
        self._turn_comes = left < STEP_BLOCKS
        if self._turn_comes:
            assert self._soon is not None
            self._soon(self._take_turn)

    def _step(self, speculation: Speculation, most: int) -> int:
        """Goes on with it by `most` blocks, and returns by how many it was."""
        before = speculation.num_added
        if speculation.active:
            after = min(before + most, len(speculation.keys))
            self._add(speculation.holder, speculation.keys[before:after])
        else:
            after = max(before - most, 0)
            self._remove(speculation.holder, speculation.keys[after:before])
        speculation.num_added = after
        return abs(after - before)

    def _add(self, holder: HolderId, keys: Sequence[BlockKey]) -> None:
        bits, more, bit = self._bits, self._more, 1 << holder
        get = bits.get
        for key in keys:
            there = get(key, 0)
            if there & bit:
                more[holder, key] = more.get((holder, key), 0) + 1
            else:
                bits[key] = there | bit

    def _remove(self, holder: HolderId, keys: Sequence[BlockKey]) -> None:
        bits, more, bit = self._bits, self._more, 1 << holder
        for key in keys:
            if more and (count := more.get((holder, key))):
                if count == 1:
                    del more[holder, key]
                else:
                    more[holder, key] = count - 1
                continue
            left = bits[key] ^ bit
            if left:
                bits[key] = left
            else:
                del bits[key]

    def remove_all(self, speculations: Sequence[Speculation]) -> None:
        for speculation in speculations:
            self.remove(speculation)

    def extend(
        self, keys: Sequence[BlockKey], matched: Mapping[HolderId, int]
    ) -> dict[HolderId, int]:
        """Return `matched` (the index's answer for `keys`), each holder's run continued by what is
        on its way there."""
        return {**matched, **self.longer(keys, matched)}

    def longer(
        self, keys: Sequence[BlockKey], matched: Mapping[HolderId, int]
    ) -> dict[HolderId, int]:
        """Return the same of those holders alone whose run goes on."""
        found: dict[HolderId, int] = {}
        if not self._bits:
            return found
        get, size = self._bits.get, len(keys)
        for start in {0, *different_lengths(matched)}:
            coming = get(keys[start], 0) if start < size else 0
            while coming:
                bit = coming & -coming
                coming ^= bit
                holder = bit.bit_length() - 1
                if matched.get(holder, 0) != start:
                    continue
                end = start + 1
                while end < size and get(keys[end], 0) & bit:
                    end += 1
                found[holder] = end
        return found

    def ends(self, holder: HolderId, key: BlockKey) -> bool:
        """Return whether a prompt on its way there has this as its last whole block."""
        return (holder, key) in self._ends

    def num_blocks(self, holder: HolderId) -> int:
        """Return how many different blocks are on their way to `holder`."""
        return sum([there >> holder & 1 for there in self._bits.values()])


def _is_finished(speculation: Speculation) -> bool:
    wanted = len(speculation.keys) if speculation.active else 0
    return speculation.num_added == wanted
