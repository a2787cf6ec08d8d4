"""The index everybody uses: one dict in this process.

key -> a bitmask of holders, because a prompt's walk is then one dict probe and one AND per
block for all holders together. Beside it, each holder's own set of keys: what `Clear` costs is
what the holder holds, not what the index holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferway.index.protocol import Clear, Op, Remove, Store
from inferway.model import BlockKey, HolderId


class MemoryIndex:
    """`index.protocol.Index` in plain dicts. One writer, and readers on the same event loop."""

    def __init__(self) -> None:
        self._holders: dict[BlockKey, int] = {}
        self._keys: dict[HolderId, set[BlockKey]] = {}

    def apply(self, ops: Iterable[Op]) -> None:
        for op in ops:
            match op:
                case Store(holder, keys):
                    self._store(holder, keys)
                case Remove(holder, keys):
                    self._remove(holder, keys)
                case Clear(holder):
                    self._remove(holder, list(self._keys.pop(holder, ())))

    async def match(self, keys: Sequence[BlockKey]) -> dict[HolderId, int]:
        return self.match_now(keys)

    def match_now(self, keys: Sequence[BlockKey]) -> dict[HolderId, int]:
        """As `match`, for callers on this very event loop."""
        if not keys:
            return {}
        get = self._holders.get
        matched: dict[HolderId, int] = {}
        holders = get(keys[0], 0)
        for i, key in enumerate(keys):
            mask = get(key, 0)
            if mask == holders:
                continue
            still = holders & mask
            if still != holders:
                _note(matched, holders ^ still, i)
                holders = still
                if not holders:
                    return matched
        _note(matched, holders, len(keys))
        return matched

    def num_blocks(self, holder: HolderId) -> int:
        return len(self._keys.get(holder, ()))

    @property
    def num_keys(self) -> int:
        """How many different blocks somebody holds."""
        return len(self._holders)

    def _store(self, holder: HolderId, keys: Iterable[BlockKey]) -> None:
        bit = 1 << holder
        holders = self._holders
        for key in keys:
            holders[key] = holders.get(key, 0) | bit
        self._keys.setdefault(holder, set()).update(keys)

    def _remove(self, holder: HolderId, keys: Iterable[BlockKey]) -> None:
        bit = 1 << holder
        holders = self._holders
        for key in keys:
            left = holders.get(key, 0) & ~bit
            if left:
                holders[key] = left
            else:
                holders.pop(key, None)
        own = self._keys.get(holder)
        if own is not None:
            own.difference_update(keys)


def _note(matched: dict[HolderId, int], holders: int, blocks: int) -> None:
    """Each holder in the mask stopped after so many blocks."""
    while holders:
        lowest = holders & -holders
        matched[lowest.bit_length() - 1] = blocks
        holders ^= lowest
