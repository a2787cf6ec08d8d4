"""Queries that an index answers from the holders of each block: the part of a `MemoryIndex` that
reads, and all of a copy that another process has (`copied`).

Along a prompt holders only ever drop out, because what each can reuse is kept closed under
"parent of" when it is written (`tree`). So `match` looks for the places where that happens by
halving, instead of at each block (`matching`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from inferway.kv.index.holder_sets import HolderSets
from inferway.kv.index.holders import Holders
from inferway.kv.index.matching import prefix_lengths, runs, walked_prefix_lengths
from inferway.kv.index.prefix_lengths import PrefixLengths
from inferway.kv.index.protocol import (
    FULL_ATTENTION,
    MatchResult,
    Tier,
)
from inferway.kv.index.reuse import CacheLayout, Holds, Reuse, reusable_tokens
from inferway.kv.index.shards import Shards
from inferway.model import BlockKey, HolderId, Places

MANY_HOLDERS = 128  # of a prompt: an entry for each of so many takes longer than arrays

_NOTHING = MatchResult()


class HeldBlocks:
    """The part of `kv.index.protocol.Index` that does not change anything. Readers are on the
    writer's event loop."""

    def __init__(
        self,
        shards: Shards[int],
        column: Sequence[int],
        states: HolderSets,
        holders: Holders,
        weights: Sequence[float],
        many_holders: int,
    ) -> None:
        """A block's key has a place in `shards`, which `column` has the state of: an id of
        `states`. `weights`: what a block in each tier is worth, best first. `many_holders`: where a
        prompt has so many or more, `match` answers with `PrefixLengths`."""
        self._shards = shards
        self._column = column
        self._states = states
        self._holders = holders
        self._discounts = [1.0 - weight for weight in weights]
        self._many_holders = many_holders
        self._unsettled = 0  # bits of holders whose blocks are not yet closed under "parent of"

    # what a prompt would find

    async def match(self, keys: Sequence[BlockKey], places: Places | None = None) -> MatchResult:
        return self.match_now(keys, places)

    async def match_all(
        self,
        prompts: Sequence[Sequence[BlockKey]],
        places: Sequence[Places | None] | None = None,
    ) -> list[MatchResult]:
        if places is None:
            return [self.match_now(keys) for keys in prompts]
        return [self.match_now(*each) for each in zip(prompts, places, strict=True)]

    def match_now(self, keys: Sequence[BlockKey], places: Places | None = None) -> MatchResult:
        """Return what `match` returns, at once: for callers on this very event loop."""
        states, holders, unsettled = self._states, self._holders, self._unsettled
        found: list[tuple[int, int]] = []
        if keys:
            settled = holders.live & ~unsettled
            found = prefix_lengths(keys, self._shards, self._column, states.attached, settled)
            if unsettled:
                found += walked_prefix_lengths(keys, self._state, states.known, unsettled)
        if not holders.laid_out:
            if not found:
                return _NOTHING
            blocks = self._blocks_of(found)
            if holders.tiered:
                return MatchResult(blocks, *self._in_lower_tiers(keys, blocks))
            return MatchResult(blocks)
        held = self._each_of(found)
        reuse = self._reuse(keys, places, held)
        return MatchResult(held, *self._in_lower_tiers(keys, held), reuse)

    @property
    def has_layouts(self) -> bool:
        return bool(self._holders.laid_out)

    def layout(self, holder: HolderId) -> CacheLayout | None:
        found = self._holders.get(holder)
        return None if found is None else found.layout

    def _state(self, key: BlockKey) -> int:
        shards = self._shards
        return self._column[shards.at[key >> shards.shift].get(key, 0)]

    def _blocks_of(self, found: Sequence[tuple[int, int]]) -> Mapping[HolderId, int]:
        """Return how many blocks each holder has, from masks of holders and what these have."""
        holders = self._holders
        are_many = sum([mask.bit_count() for mask, _ in found]) >= self._many_holders
        if are_many and not holders.tiered:
            return PrefixLengths([(holders.ids_of_many(mask), count) for mask, count in found])
        return self._each_of(found)

    def _each_of(self, found: Sequence[tuple[int, int]]) -> dict[HolderId, int]:
        holders = self._holders
        blocks: dict[HolderId, int] = {}
        ids = holders.ids
        for mask, count in found:
            for holder in ids.get(mask) or holders.remember_ids(mask):
                blocks[holder] = count
        return blocks

    def _reuse(
        self, keys: Sequence[BlockKey], places: Places | None, blocks: dict[HolderId, int]
    ) -> dict[HolderId, Reuse]:
        """Return what holders with a layout reuse, and let `blocks`, which has how many they hold
        of full attention, have how many of them that is."""
        found: dict[HolderId, Reuse] = {}
        masks: dict[int, dict[BlockKey, int]] = {}
        for holder in self._holders.of(self._holders.laid_out):
            layout, run = holder.layout, blocks.pop(holder.id, 0)
            assert layout is not None
            size = layout.block_size
            if places is not None and places.block_size != size:
                continue  # the prompt is cut for other engines
            if not run and layout.full_position is not None and not layout.is_fine:
                continue
            whole = size * len(keys)
            num_tokens, num_hashed = whole + 1, whole
            if places is not None:
                num_tokens, num_hashed = places.num_tokens, places.num_hashed
            holds = self._holder_of_blocks(layout, holder.bit, keys, places, masks)
            reuse = reusable_tokens(layout, num_tokens, num_hashed, run, holds)
            if reuse.tokens or run:
                found[holder.id] = reuse
            if reuse.tokens >= size:
                blocks[holder.id] = reuse.tokens // size
        return found

    def _holder_of_blocks(
        self,
        layout: CacheLayout,
        bit: int,
        keys: Sequence[BlockKey],
        places: Places | None,
        masks: dict[int, dict[BlockKey, int]],
    ) -> Holds:
        """`masks`: by group, who holds the blocks that were looked up for other holders already."""
        states, size, unit = self._states, layout.block_size, layout.unit
        groups = [
            FULL_ATTENTION if i == layout.full_position else group.number + 1
            for i, group in enumerate(layout.groups)
        ]
        of_groups = [(group, masks.setdefault(group, {})) for group in groups]

        def holds(position: int, end: int) -> bool:
            block, within = divmod(end, size)
            if not within:
                key = keys[block - 1] if block <= len(keys) else None
            else:
                key = None if places is None else places.key(end, unit)
            if key is None:
                return False
            group, known = of_groups[position]
            mask = known.get(key)
            if mask is None:
                mask = known[key] = states.group_mask(self._state(key), group)
            return bool(mask & bit)

        return holds

    def _in_lower_tiers(
        self, keys: Sequence[BlockKey], blocks: Mapping[HolderId, int]
    ) -> tuple[dict[HolderId, float], dict[HolderId, dict[Tier, int]]]:
        """`MatchResult.discount` and `MatchResult.lower`."""
        tiered = {
            holder.bit: (holder.id, blocks[holder.id])
            for holder in self._holders.of(self._holders.tiered)
            if holder.id in blocks
        }
        if not tiered:
            return {}, {}
        wanted = sum(tiered)
        discount: dict[HolderId, float] = {}
        places: dict[HolderId, dict[Tier, int]] = {}
        longest = max(count for _, count in tiered.values())
        for tier, mask, start, end in self._runs_in_lower_tiers(keys[:longest]):
            each = self._discounts[min(tier, len(self._discounts) - 1)]
            for holder in self._holders.of(mask & wanted):
                holder_id, count = tiered[holder.bit]
                if count <= start:
                    continue
                places.setdefault(holder_id, {}).setdefault(tier, start)
                if each:
                    lower = each * (min(count, end) - start)
                    discount[holder_id] = discount.get(holder_id, 0.0) + lower
        return discount, places

    def _runs_in_lower_tiers(
        self, keys: Sequence[BlockKey]
    ) -> Iterator[tuple[Tier, int, int, int]]:
        """Yield (tier, who has them there at best, start, end) of stretches of blocks."""
        for state, start, end in runs(keys, self._state):
            for tier, mask in self._states.best_tiers(state):
                yield tier, mask, start, end

    # how it is

    def held(
        self, holder: HolderId, keys: Sequence[BlockKey], tier: Tier, group: int
    ) -> list[BlockKey]:
        known = self._holders.get(holder)
        plane = self._states.known_plane(tier, group)
        if known is None or plane < 0:
            return []
        planes, bit = self._states.planes, known.bit
        at, shift, column = self._shards.at, self._shards.shift, self._column
        found = []
        for key in keys:
            slot = at[key >> shift].get(key)
            if slot is not None:
                masks = planes[column[slot]]
                if plane < len(masks) and masks[plane] & bit:
                    found.append(key)
        return found

    def num_blocks(self, holder: HolderId) -> int:
        found = self._holders.get(holder)
        return found.num_blocks if found is not None else 0

    def num_evicted(self, holder: HolderId) -> int:
        found = self._holders.get(holder)
        return found.num_evicted if found is not None else 0
