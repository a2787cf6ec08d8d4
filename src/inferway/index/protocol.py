"""What an index is: `apply` what engines did, `match` what a prompt would find.

The contract that every implementation passes stands in tests/contract/test_index.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inferway.model import BlockKey, HolderId


@dataclass(frozen=True, slots=True)
class Store:
    """`holder` now has these blocks. Storing a block twice is storing it once."""

    holder: HolderId
    keys: Sequence[BlockKey]


@dataclass(frozen=True, slots=True)
class Remove:
    """`holder` no longer has these blocks. Removing what it never had does nothing."""

    holder: HolderId
    keys: Sequence[BlockKey]


@dataclass(frozen=True, slots=True)
class Clear:
    """`holder` has nothing any more."""

    holder: HolderId


Op = Store | Remove | Clear


class Index(Protocol):
    """block key -> holders."""

    def apply(self, ops: Iterable[Op]) -> None:
        """Do `ops` in order. Never waits, never raises for unknown keys or holders."""

    async def match(self, keys: Sequence[BlockKey]) -> dict[HolderId, int]:
        """For each holder of `keys[0]`: how many of `keys` it holds from the start on,
        without a hole. Holders of nothing are absent; no keys, no holders."""

    def num_blocks(self, holder: HolderId) -> int:
        """How many blocks we believe that `holder` has."""
