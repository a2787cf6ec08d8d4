"""The number of tokens of a prompt that an engine reuses: not a prefix of one group of KV caches,
but the fixed point over all of them.

vLLM keeps layers of one kind in a *group*, and each group has blocks of its own. Full attention
needs all blocks from the start; a sliding window its last blocks; local attention those of its
chunk; a state-space (Mamba) group one block that ends exactly there, because that is a checkpoint
of its state. A group shortens what the groups before it allow, until all agree. EAGLE and MTP drop
the last block, whose hidden states the draft needs. The last token is always computed.

After vLLM 0.32 and 0.33, v1/core: `HybridKVCacheCoordinator.find_longest_cache_hit`,
`UnitaryKVCacheCoordinator` and `find_longest_cache_hit` of each manager in
single_type_kv_cache_manager.py. `tests/engines/cache_oracle` holds it against them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import gcd, lcm

import msgspec

# vLLM's words (KVCacheSpecKind), by what a group needs.
FULL = ("full_attention", "mla_attention", "sink_full_attention")
WINDOW = ("sliding_window", "sliding_window_mla")
LOCAL = "chunked_local_attention"
MAMBA = "mamba"

# From a prompt's end on, for a checkpoint or a window: a millisecond. What lies before counts as
# computed anew.
MOST_LOOKED_AT = 2048  # blocks

# Whether a group of the layout (its position) has the prompt's block that ends at a token.
Holds = Callable[[int, int], bool]


class CacheGroup(msgspec.Struct, frozen=True, array_like=True):
    """One group of KV caches."""

    number: int  # the engine's
    kind: str
    block_size: int  # tokens
    span: int = 0  # tokens of the window or the chunk; 0: there is none, or it is not known
    eagle: bool = False  # the last block that it matches is dropped

    @property
    def is_full(self) -> bool:
        """True if every block from the start on is needed. So are those of kinds that are not
        known: what is believed then is not too much."""
        return self.kind not in (*WINDOW, LOCAL, MAMBA) or (self.kind != MAMBA and not self.span)


class CacheLayout(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The groups of an engine, and how it looks them up. `hash_size`: the tokens of a hash; 0: as
    vLLM chooses it. `lookahead`: the tokens behind a block that its hash covers as well."""

    groups: tuple[CacheGroup, ...]
    hash_size: int = 0
    lookahead: int = 0

    @cached_property
    def unit(self) -> int:
        """The tokens between two places at which a block may end."""
        most = gcd(*[group.block_size for group in self.groups])
        return self.hash_size if self.hash_size and most % self.hash_size == 0 else most

    @cached_property
    def block_size(self) -> int:
        """The tokens that prompts are cut into: a block of full attention, or the smallest of an
        engine that has none."""
        full = [group.block_size for group in self.groups if group.is_full]
        return full[0] if full else min(group.block_size for group in self.groups)

    @cached_property
    def is_fine(self) -> bool:
        """True if hits may end within a block: state-space checkpoints are kept at ends of hashes
        then, and the last part of a prompt has an entry of its own."""
        fine = (MAMBA, *FULL)
        return any(g.kind == MAMBA and g.block_size > self.unit for g in self.groups) and all(
            g.kind in fine or g.block_size == self.unit for g in self.groups
        )

    @cached_property
    def alignment(self) -> int:
        """The tokens that a hit is a multiple of."""
        return self.unit if self.is_fine else lcm(*[group.block_size for group in self.groups])

    @cached_property
    def has_hidden_places(self) -> bool:
        """True if blocks may be stored of which events do not say where they end: parts of blocks,
        and blocks of an engine that has no full attention, whose blocks have their hashes."""
        are_parts = any(group.block_size % self.block_size for group in self.groups)
        return self.is_fine or are_parts or self.full_position is None

    @cached_property
    def has_sparse_groups(self) -> bool:
        """True if there are state-space layers or sliding windows: of a prompt, vLLM keeps for them
        what a hit at its end needs, and what one before needs only under some of its flags."""
        return any(group.kind in (MAMBA, *WINDOW) for group in self.groups)

    @cached_property
    def drops_last_block(self) -> bool:
        """True if the last block that is matched is computed again, for a draft model."""
        return any(group.eagle for group in self.groups)

    @cached_property
    def is_plain(self) -> bool:
        """True if a hit is simply the prefix of full attention."""
        return len(self.groups) == 1 and self.groups[0].is_full and not self.groups[0].eagle

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the groups, if there is more than full attention."""
        return () if self.is_plain else tuple(group.kind for group in self.groups)

    @cached_property
    def full_position(self) -> int | None:
        """The position in `groups` of the full attention whose prefix the index keeps; None if
        there is none."""
        return next((i for i, group in enumerate(self.groups) if group.is_full), None)

    @cached_property
    def lookups(self) -> tuple[tuple[CacheGroup, tuple[int, ...]], ...]:
        """Groups that are looked up together, with their positions: those of one kind, size and
        span; full attention first."""
        alike: dict[tuple[str, int, int], list[int]] = {}
        for i, group in enumerate(self.groups):
            alike.setdefault((group.kind, group.block_size, group.span), []).append(i)
        found = []
        for positions in alike.values():
            first = self.groups[positions[0]]
            eagle = any(self.groups[i].eagle for i in positions)
            found.append((msgspec.structs.replace(first, eagle=eagle), tuple(positions)))
        found.sort(key=lambda item: not item[0].is_full)
        return tuple(found)


class Reuse(msgspec.Struct, frozen=True):
    """The tokens that an engine reuses of a prompt, and the group that allows no more."""

    tokens: int
    held_blocks: int  # of full attention, from the start on
    limit: CacheGroup | None = None  # None: full attention itself, or the prompt's length

    @property
    def why(self) -> str:
        """The reason why no more is reused, as the end of a sentence."""
        limit, tokens = self.limit, self.tokens
        if limit is None:
            return "the last block is computed again for its draft model, or for alignment"
        if limit.kind == MAMBA:
            return (
                f"the last state checkpoint is at {tokens} tokens"
                if tokens
                else "there is no state checkpoint"
            )
        if limit.kind == LOCAL:
            return f"its chunk of {limit.span} tokens is there up to token {tokens}"
        return f"its window of {limit.span} tokens is there up to token {tokens}"


def reusable_tokens(
    layout: CacheLayout, num_tokens: int, num_hashed: int, run: int, holds: Holds
) -> Reuse:
    """Return what is reused of a prompt of `num_tokens` tokens, whose first `num_hashed` are in
    hashed blocks. `run`: so many blocks of `layout.full_position` are there from the start on."""
    search = _Search(layout, num_hashed, run, holds)
    most = max(num_tokens - 1, 0)
    if len(layout.groups) == 1:
        group, positions = layout.lookups[0]
        tokens = search.hit(group, positions, most, group.eagle)
        return Reuse(tokens, run, None if group.is_full else group)
    return search.agreed(most)


class _Search:
    """A look-up in all groups."""

    def __init__(self, layout: CacheLayout, num_hashed: int, run: int, holds: Holds) -> None:
        self._layout = layout
        self._hashed = num_hashed // layout.unit * layout.unit
        self._run = run
        self._holds = holds
        self._align = layout.alignment

    def agreed(self, hit: int) -> Reuse:
        """Return the reuse that all groups agree on, as HybridKVCacheCoordinator finds it."""
        layout, lookups = self._layout, self._layout.lookups
        once = len(lookups) == 2 and lookups[0][0].is_full
        full_hits: dict[int, int] = {}
        dropped: set[int] = set()
        limit: CacheGroup | None = None
        while True:
            current = hit
            for i, (group, positions) in enumerate(lookups):
                if group.is_full and i in full_hits:
                    current = min(current, full_hits[i])
                    continue
                drops = group.eagle and i not in dropped
                most = current
                if drops and group.kind != MAMBA:
                    fine = layout.is_fine and group.is_full and group.block_size > layout.unit
                    most += layout.unit if fine else group.block_size
                    most = min(most, self._hashed)
                found = self.hit(group, positions, most, drops)
                if drops:
                    dropped.add(i)
                elif found < current:
                    dropped.clear()
                if found < current:
                    limit = None if group.is_full else group
                current = found
                if group.is_full:
                    full_hits[i] = found
            if current >= hit:
                break
            hit = current
            if once:
                break
        return Reuse(hit, self._run, limit)

    def hit(self, group: CacheGroup, positions: Sequence[int], most: int, drops: bool) -> int:
        """The longest prefix of at most `most` tokens that the groups at these positions allow."""
        if group.is_full:
            return self._full(group, positions, most, drops)
        if group.kind == MAMBA:
            return self._state(group, positions, most)
        if group.kind == LOCAL:
            return self._local(group, positions, most)
        return self._window(group, positions, most, drops)

    def _has(self, positions: Sequence[int], end: int) -> bool:
        return end <= self._hashed and all(self._holds(i, end) for i in positions)

    def _full(self, group: CacheGroup, positions: Sequence[int], most: int, drops: bool) -> int:
        size, align = group.block_size, self._align
        blocks = min(most, self._hashed) // size
        rest = [i for i in positions if i != self._layout.full_position]
        if len(rest) < len(positions):
            blocks = min(blocks, self._run)
        if rest:
            blocks = next((i for i in range(blocks) if not self._has(rest, (i + 1) * size)), blocks)
        hit = blocks * size
        if align < size and size % align == 0:
            last = min(hit + size - align, most // align * align, self._hashed)
            for end in range(last, hit, -align):
                if self._has(positions, end):
                    hit = end
                    break
        if drops and hit > 0:
            hit -= min(align, size)
        return hit - hit % align

    def _window(self, group: CacheGroup, positions: Sequence[int], most: int, drops: bool) -> int:
        size = group.block_size
        needed = -(-(group.span - 1) // size) + drops
        blocks = there = 0
        last = most // size - 1
        first = max(last - MOST_LOOKED_AT, -1)
        for i in range(last, first, -1):
            if not self._has(positions, (i + 1) * size):
                there = 0
            elif there or (i + (not drops)) * size % self._align == 0:
                there += 1
                if there >= needed:
                    blocks = i + there
                    break
        else:  # a prompt that is shorter than the window
            blocks = self._aligned(there, size) if first < 0 else 0
        return self._aligned(blocks - drops, size) * size if blocks else 0

    def _aligned(self, blocks: int, size: int) -> int:
        return blocks * size // self._align * self._align // size

    def _state(self, group: CacheGroup, positions: Sequence[int], most: int) -> int:
        align = self._align
        step = min(align, group.block_size)
        last = min(most, self._hashed) // step * step
        for end in range(last, max(last - step * MOST_LOOKED_AT, 0), -step):
            if end % align == 0 and self._has(positions, end):
                return end
        return 0

    def _local(self, group: CacheGroup, positions: Sequence[int], most: int) -> int:
        size = group.block_size
        blocks = most // group.span * group.span // size
        while (blocks + 1) * size <= most and self._has(positions, (blocks + 1) * size):
            blocks += 1
        return blocks * size
