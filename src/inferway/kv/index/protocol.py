"""The contract of an index: `apply` what engines did, `match` what a prompt would find.

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

from inferway.kv.index.reuse import CacheLayout, Reuse
from inferway.metrics import Family
from inferway.model import BlockKey, HolderId, Places

# The group of KV caches whose prefixes the index keeps: full attention.
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
    """`holder` has nothing any more, and no layout either."""

    holder: HolderId


class Layout(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A layout: `holder` looks prompts up in these groups (`reuse`); None: it has full attention
    alone, as all have at first. The blocks of the group at `layout.full_position` are those of
    FULL_ATTENTION, those of the others are of their number + 1."""

    holder: HolderId
    layout: CacheLayout | None


Op = Store | Copy | Remove | Clear | Layout


class MatchResult(msgspec.Struct, frozen=True):
    """The blocks of a prompt that each holder has.

    `blocks`: for each holder of the first key, how many keys it holds from the start without a
    hole, in any tier. `discount`: how much less than `blocks` they weigh because some lie in lower
    tiers; holders without such are absent. `lower`: for each tier below the first, the index of the
    first key whose best tier is this one; holders without such are absent.

    A holder with a layout has as many `blocks` as are whole in what it reuses, and `reuse` has the
    tokens: hits may end within a block, and blocks may be held that are not reused."""

    blocks: Mapping[HolderId, int] = {}
    discount: Mapping[HolderId, float] = {}
    lower: Mapping[HolderId, Mapping[Tier, int]] = {}
    reuse: Mapping[HolderId, Reuse] = {}

    def tokens(self, holder: HolderId, block_size: int) -> int:
        """Return how many tokens the holder reuses, if its blocks have so many."""
        reuse = self.reuse.get(holder)
        return self.blocks.get(holder, 0) * block_size if reuse is None else reuse.tokens

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

    async def match(self, keys: Sequence[BlockKey], places: Places | None = None) -> MatchResult:
        """Return what each holder has of `keys`, a prompt's blocks from its first one on. Holders
        of nothing are absent; no keys, no holders. Without `places` the prompt is taken for one
        that goes on behind its last block, whose blocks end where `keys` do."""

    async def match_all(
        self,
        prompts: Sequence[Sequence[BlockKey]],
        places: Sequence[Places | None] | None = None,
    ) -> list[MatchResult]:
        """Return `match` of each, in their order."""

    @property
    def has_layouts(self) -> bool:
        """True if there are holders with a layout, to whom a prompt's `Places` matter."""

    def layout(self, holder: HolderId) -> CacheLayout | None:
        """Return the holder's layout; None if it has full attention alone."""

    def num_blocks(self, holder: HolderId) -> int:
        """Return how many full-attention blocks we believe that `holder` has, detached ones too;
        one that lies in several tiers is one."""

    def lower_tiers(self) -> Mapping[HolderId, Sequence[int]]:
        """Return, for holders with blocks below the first tier, how many of `num_blocks` lie at
        best in each tier below it, from the second on. Empty where that is not known, or where it
        would take more than a few milliseconds to count."""

    def families(self) -> Iterable[Family]:
        """Return its metric families (`kv.index.metrics`). Takes a millisecond or two."""
