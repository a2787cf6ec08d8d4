"""The lengths of a prompt's prefixes that many holders have, without an entry for each holder."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from inferway.model import Column, HolderId

HolderIds = NDArray[np.intp]


class PrefixLengths(Mapping[HolderId, int]):
    """Holder -> blocks, by groups of holders that have the same number of blocks; no holder is in
    two groups. Worth it from about a hundred holders on: a look-up takes a microsecond a group."""

    __slots__ = ("groups",)

    def __init__(self, groups: Sequence[tuple[HolderIds, int]]) -> None:
        self.groups = groups

    def column(self, holders: HolderIds) -> Column:
        """Return the number of blocks of each of these holders; 0 for those that have none."""
        most = max([int(holders.max(initial=-1)), *[int(ids.max()) for ids, _ in self.groups]])
        blocks = np.zeros(most + 1)
        for ids, count in self.groups:
            blocks[ids] = count
        column: Column = blocks[holders]
        return column

    def __getitem__(self, holder: HolderId) -> int:
        for ids, count in self.groups:
            if (ids == holder).any():
                return count
        raise KeyError(holder)

    def __iter__(self) -> Iterator[HolderId]:
        for ids, _ in self.groups:
            yield from ids.tolist()

    def items(self) -> ItemsView[HolderId, int]:
        blocks: dict[HolderId, int] = {}
        for ids, count in self.groups:
            blocks |= dict.fromkeys(ids.tolist(), count)
        return blocks.items()

    def __len__(self) -> int:
        return sum([len(ids) for ids, _ in self.groups])

    def __repr__(self) -> str:
        return f"PrefixLengths({self.groups!r})"


def different_lengths(blocks: Mapping[HolderId, int]) -> Set[int]:
    """Return the numbers of blocks that holders have, each once."""
    if isinstance(blocks, PrefixLengths):
        return {count for _, count in blocks.groups}
    return set(blocks.values())


def longest(blocks: Mapping[HolderId, int]) -> tuple[int, HolderId]:
    """Return the most blocks that a holder has, and the holder; of several the one of the highest
    number. There must be one."""
    if isinstance(blocks, PrefixLengths):
        return max([(count, int(ids.max())) for ids, count in blocks.groups])
    return max([(count, holder) for holder, count in blocks.items()])
