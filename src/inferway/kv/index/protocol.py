"""What an index is: `apply` what engines did, `match` what a prompt would find.

A key is a hash over all the tokens before it (kv/blocks/keys.py), so a block has one parent, always
the same, and what an engine holds are branches of one tree. A block can be reused only with all
its ancestors. One that an engine has without them is *detached*: known, not matched, and back in
the picture when they return.

The contract that every implementation passes stands in tests/contract/test_index.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from inferway.metrics import Family
from inferway.model import BlockKey, HolderId

# The group of KV caches whose blocks decide over a prefix: full attention. Others are windows.
FULL_ATTENTION = 0

# Where a block lies, best first: the number of a tier is its place in the index's weights.
Tier = int
GPU: Tier = 0
CPU: Tier = 1
STORAGE: Tier = 2

# What a block in each tier is worth. llm-d weighs GPU 1.0 and CPU 0.8; storage is our guess: still
# better than to compute it. A tier beyond the last weighs as the last.
TIER_WEIGHTS = (1.0, 0.8, 0.5)


# Structs and not dataclasses: one is made for every event, and a frozen dataclass takes 5 x longer.


class Store(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """`holder` now has these blocks in `tier`. They are a chain: each is the child of the one
    before it, the first the child of `parent` (None: it begins a prompt). Storing a block twice
    is storing it once; a block may lie in several tiers."""

    holder: HolderId
    keys: Sequence[BlockKey]
    parent: BlockKey | None = None
    tier: Tier = GPU
    group: int = FULL_ATTENTION


class Copy(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """`holder` has these blocks already, in whatever tier and group, and now in this one as well;
    any blocks, in any order. Those it has nowhere are ignored."""

    holder: HolderId
    keys: Sequence[BlockKey]
    tier: Tier = GPU
    group: int = FULL_ATTENTION


class Remove(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """`holder` no longer has these blocks in `tier`; any blocks, in any order. Removing what it
    never had does nothing."""

    holder: HolderId
    keys: Sequence[BlockKey]
    tier: Tier = GPU
    group: int = FULL_ATTENTION


class Clear(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """`holder` has nothing any more, and no windows either."""

    holder: HolderId


class Window(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """`holder` has a sliding-window group as well: it reuses a prefix only if that group holds
    the prefix's last `blocks` blocks (or all of them, if it has fewer), in any tier. 0 blocks
    take the window back."""

    holder: HolderId
    group: int  # not FULL_ATTENTION
    blocks: int


Op = Store | Copy | Remove | Clear | Window


class MatchResult(msgspec.Struct, frozen=True):
    """What each holder has of a prompt.

    `blocks`: for each holder of the first key, how many keys it holds from the start without a
    hole, in any tier. `discount`: how much less than `blocks` they weigh because some lie in lower
    tiers; holders without such are absent. `lower`: for each tier below the first, the index of the
    first key whose best tier is this one; holders without such are absent."""

    blocks: Mapping[HolderId, int] = {}
    discount: Mapping[HolderId, float] = {}
    lower: Mapping[HolderId, Mapping[Tier, int]] = {}

    def within(self, holder: HolderId, tier: Tier) -> int:
        """Return how many keys the holder has from the start on without a hole in `tier` or better
        ones. Windows are not looked at again: with them it may be fewer."""
        places = self.lower.get(holder, {}).items()
        return min(
            [place for lower, place in places if lower > tier], default=self.blocks.get(holder, 0)
        )


class Holdings(Protocol):
    """The part of an index that answers at once because it is in this process.
    `kv.events.hash_to_key` asks it instead of remembering a second time which keys an engine
    has."""

    def held(
        self, holder: HolderId, keys: Sequence[BlockKey], tier: Tier, group: int
    ) -> list[BlockKey]:
        """Return those of `keys` that the holder has there already, in their order."""

    def num_evicted(self, holder: HolderId) -> int:
        """Return how many of its blocks were dropped for want of room; 0 again after `Clear`."""


class Applies(Protocol):
    """The part of an index that events change."""

    def apply(self, ops: list[Op]) -> None:
        """Do `ops` in order. Never waits, never raises for unknown keys or holders."""


class Index(Holdings, Protocol):
    """block key -> holders."""

    def apply(self, ops: Iterable[Op]) -> None:
        """Do `ops` in order. Never waits, never raises for unknown keys or holders."""

    async def match(self, keys: Sequence[BlockKey]) -> MatchResult:
        """Return what each holder has of `keys`, a prompt's blocks from its first one on. Holders
        of nothing are absent; no keys, no holders."""

    async def match_all(self, prompts: Sequence[Sequence[BlockKey]]) -> list[MatchResult]:
        """Return `match` of each, in their order."""

    def num_blocks(self, holder: HolderId) -> int:
        """Return how many full-attention blocks we believe that `holder` has, detached ones too;
        one that lies in several tiers is one."""

    def lower_tiers(self) -> Mapping[HolderId, Sequence[int]]:
        """Return, for holders with blocks below the first tier, how many of `num_blocks` lie at
        best in each tier below it, from the second on. Empty where that is not known, or where it
        would take more than a few milliseconds to count."""

    def families(self) -> Iterable[Family]:
        """Return its metric families (`kv.index.metrics`). Takes a millisecond or two."""
