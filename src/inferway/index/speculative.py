"""Prompts just routed count as held, until the engine's own events say so.

Without it a burst of equal prompts would be spread over the fleet: the first one's blocks
appear in the index only when its prefill has run. The overlay stands apart from the index, so
that what we hope never mixes with what engines told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferway.model import BlockKey, HolderId


@dataclass(slots=True, eq=False)
class Speculation:
    """One prompt on its way to one holder: the handle that `SpeculativeOverlay.remove` takes."""

    holder: HolderId
    keys: Sequence[BlockKey]
    active: bool = True


class SpeculativeOverlay:
    """Holder -> key -> how many prompts on their way bring that block.

    Every speculation counts all of its own blocks, also those that another one brings already:
    when the first of two equal prompts ends, the second still stands for all of them. Callers
    may leave out the blocks that the index itself matched (`skip`): the engine has them, and a
    query is continued from its own match in the index.
    """

    def __init__(self) -> None:
        self._counts: dict[HolderId, dict[BlockKey, int]] = {}

    def add(self, holder: HolderId, keys: Sequence[BlockKey], skip: int = 0) -> Speculation:
        """`keys` of a prompt just routed to `holder`, whose first `skip` blocks it holds."""
        keys = keys[skip:] if skip else keys
        if not keys:
            return Speculation(holder, keys, active=False)
        counts = self._counts.setdefault(holder, {})
        get = counts.get
        for key in keys:
            counts[key] = get(key, 0) + 1
        return Speculation(holder, keys)

    def remove(self, speculation: Speculation) -> None:
        """The prompt's blocks are known by now, or will never come. Once is enough."""
        if not speculation.active:
            return
        speculation.active = False
        counts = self._counts[speculation.holder]
        for key in speculation.keys:
            left = counts[key] - 1
            if left:
                counts[key] = left
            else:
                del counts[key]
        if not counts:
            del self._counts[speculation.holder]

    def remove_all(self, speculations: Sequence[Speculation]) -> None:
        for speculation in speculations:
            self.remove(speculation)

    def extend(
        self, keys: Sequence[BlockKey], matched: Mapping[HolderId, int]
    ) -> dict[HolderId, int]:
        """`matched` (the index's answer for `keys`), each holder's run continued by what is on
        its way there."""
        extended = dict(matched)
        for holder, counts in self._counts.items():
            start = end = matched.get(holder, 0)
            while end < len(keys) and keys[end] in counts:
                end += 1
            if end > start:
                extended[holder] = end
        return extended

    def num_blocks(self, holder: HolderId) -> int:
        """How many different blocks are on their way to `holder`."""
        return len(self._counts.get(holder, ()))
