"""One KV cache group: which of its blocks serve a prompt, which a request needs, which are stored.
This is a group with full attention, and what the other kinds have in common with it.

Rules from vLLM 0.32 (v1/core/single_type_kv_cache_manager.py), written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from inferway_sim.cache import Run
from inferway_sim.kv_groups.pool import GroupedPool
from inferway_sim.kv_groups.run_state import BlockTable
from inferway_sim.kv_groups.spec import KvGroups
from inferway_sim.pool import Block


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """The blocks from token `start` to `end` of a request, of which a group has stored those that
    end at `block_ends`."""

    group: int
    start: int
    end: int
    block_size: int
    block_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepRoom:
    """The room that a step of a request takes, in tokens from the request's start."""

    num_tokens: int  # that are there after the step, drafts among them
    num_slots: int  # with those that the drafter writes


TellStored = Callable[[Run, StoredSpan], None]


class LayerGroup:
    """A group whose layers attend to every token. It writes the block tables that it is given."""

    kind: ClassVar[str] = "full_attention"

    def __init__(
        self, index: int, config: KvGroups, pool: GroupedPool, tell_stored: TellStored
    ) -> None:
        group = config.groups[index]
        self.index = index
        self._spec = group
        self.block_size = group.block_size
        self.reach = group.reach
        self.alignment = config.alignment
        self.unit = config.hash_unit
        # Equal groups are looked up together, so they drop together.
        self.drops_last_block = any(config.groups[i] == group for i in config.draft_groups)
        self._tell_stored = tell_stored
        self._config = config
        self._pool = pool

    @property
    def window(self) -> int | None:
        """The window that events of this group tell."""
        return None

    # What a prompt finds

    def find(
        self, hashes: Sequence[bytes], limit: int, groups: Sequence[int], *, drops: bool
    ) -> tuple[list[list[Block]], int]:
        """Return the blocks that serve a prompt in each of `groups`, which are equal to this one,
        and the tokens they cover, at most `limit`. With `drops` the last block is left out."""
        size, align = self.block_size, self.alignment
        found: list[list[Block]] = [[] for _ in groups]
        for number in range(limit // size):
            if not self._find_block(found, hashes, (number + 1) * size, groups):
                break
        length = len(found[0]) * size
        if align < size:
            length = self._find_within(found, hashes, length, limit, groups)
        if drops and length:
            length -= min(align, size)
        length -= length % align
        for blocks in found:
            del blocks[blocks_for(length, size) :]
        return found, length

    def _find_within(
        self,
        found: list[list[Block]],
        hashes: Sequence[bytes],
        length: int,
        limit: int,
        groups: Sequence[int],
    ) -> int:
        """Look into the first block that is not there as a whole, from its end on."""
        unit = self.unit
        last = min(length + self.block_size - unit, limit // unit * unit)
        for end in range(last, length, -unit):
            if self._find_block(found, hashes, end, groups):
                return end
        return length

    def _find_block(
        self, found: list[list[Block]], hashes: Sequence[bytes], end: int, groups: Sequence[int]
    ) -> bool:
        blocks = self._cached(hashes, end, groups)
        if blocks is None:
            return False
        for all_blocks, block in zip(found, blocks, strict=True):
            all_blocks.append(block)
        return True

    def _cached(
        self, hashes: Sequence[bytes], end: int, groups: Sequence[int]
    ) -> list[Block] | None:
        """Return the blocks that end at token `end`; None if a group has none."""
        number = end // self.unit
        return self._pool.find_in(hashes[number - 1], groups) if number <= len(hashes) else None

    # What a request needs

    def num_missing(
        self,
        table: BlockTable,
        room: StepRoom,
        hits: Sequence[Block],
        computed: int,
        *,
        most: int | None = None,
    ) -> int:
        """Return how many free blocks a step of a request needs that has `computed` tokens, with
        what was found for it. `most` caps what it holds at a time."""
        wanted = blocks_for(room.num_slots, self.block_size)
        if most is not None:
            wanted = min(wanted, most)
        if table.num_kept is not None:
            return max(0, wanted - len(table.blocks))
        num_skipped = self.num_skipped_tokens(computed) // self.block_size
        missing = max(0, wanted - max(num_skipped, len(hits) + len(table.blocks)))
        used = hits[max(0, num_skipped - len(table.blocks)) :]
        return missing + self._num_idle(used) + self._is_partial(hits, computed)

    def num_at_most(self, max_model_len: int) -> int | None:
        """Return how many blocks a request has at a time, where that is not one for all tokens."""
        if self._spec.kind in ("window", "local"):
            return self._config.held_at_most(self._spec, max_model_len)
        return None

    def take_hits(self, table: BlockTable, hits: Sequence[Block], computed: int) -> None:
        """Give a new request what was found for it."""
        num_skipped = max(0, self.num_skipped_tokens(computed)) // self.block_size
        used = hits[num_skipped:]
        self._pool.share(used)
        table.blocks += [self._pool.null] * num_skipped
        table.blocks += used
        table.num_kept = len(table.blocks)
        if self._is_partial(used, computed):
            table.num_kept = computed // self.block_size
            table.partial = table.num_kept, used[-1]

    def take_blocks(self, table: BlockTable, room: StepRoom) -> list[tuple[Block, Block]]:
        """Give a request room for a step. Returns the copies to be made first: each from one block
        to another, which both stay in use until the step is over."""
        copies = []
        if table.partial is not None:
            copies.append(self._own_copy(table, self._pool.take(1)[0]))
        missing = blocks_for(room.num_slots, self.block_size) - len(table.blocks)
        table.blocks += self._pool.take(max(0, missing))
        return copies

    def drop_skipped(self, table: BlockTable, computed: int) -> None:
        """Free the blocks that no token after `computed` reads."""
        num_skipped = self.num_skipped_tokens(computed) // self.block_size
        first = last = min(max(0, num_skipped), len(table.blocks))
        while first and table.blocks[first - 1] is not self._pool.null:
            first -= 1
        if first < last:
            self._drop(table, first, last)

    def release(self, table: BlockTable) -> None:
        """The request ended, or lost its place."""
        self._pool.release(table.blocks)

    def num_skipped_tokens(self, computed: int) -> int:
        """Return how many tokens from the start the one after `computed` does not read."""
        return 0

    def _drop(self, table: BlockTable, first: int, end: int) -> None:
        self._pool.release(table.blocks[first:end])
        table.blocks[first:end] = [self._pool.null] * (end - first)

    def _own_copy(self, table: BlockTable, copy: Block) -> tuple[Block, Block]:
        """The request writes on in a copy of the block whose beginning it shares."""
        assert table.partial is not None
        number, source = table.partial
        table.partial = None
        table.blocks[number] = copy
        self._pool.share([copy])
        return source, copy

    def _is_partial(self, hits: Sequence[Block], computed: int) -> bool:
        return bool(hits) and computed % self.block_size != 0

    def _num_idle(self, blocks: Sequence[Block]) -> int:
        return sum(block.num_users == 0 and block is not self._pool.null for block in blocks)

    # What is stored

    def store(
        self, run: Run, table: BlockTable, num_tokens: int, boundaries: Sequence[int]
    ) -> None:
        """Store what of the first `num_tokens` tokens of a request can be found from now on;
        `boundaries` are where others will go on."""
        self._store_whole_blocks(run, table, num_tokens, boundaries)
        if self.block_size != self.unit:
            self._store_tail(run, table, num_tokens)

    def kept_blocks(self, first: int, end: int, boundaries: Sequence[int]) -> Sequence[bool] | None:
        """Return which of these blocks are worth storing; None: all."""
        return None

    def end_step(self) -> None:
        """End a step: what was stored in it is there."""

    def is_computed_now(self, hits: Sequence[Block]) -> bool:
        """Return whether this very step computes the hits, so that it cannot read them."""
        return False

    def _store_whole_blocks(
        self, run: Run, table: BlockTable, num_tokens: int, boundaries: Sequence[int]
    ) -> None:
        size, first = self.block_size, table.num_kept or 0
        last = min(num_tokens, len(run.hashes) * self.unit) // size
        if first >= last:
            return
        kept = self.kept_blocks(first, last, boundaries)
        ends = []
        for number in range(first, last):
            block = table.blocks[number]
            if block is self._pool.null or (kept is not None and not kept[number - first]):
                continue
            end = (number + 1) * size
            self._pool.forget(block)  # its beginning, if that could be found until now
            self._pool.store(block, run.hashes[end // self.unit - 1], self.index, end)
            ends.append(end)
        table.num_kept = last
        span = StoredSpan(self.index, first * size, last * size, size, tuple(ends))
        self._tell_stored(run, span)

    def _store_tail(self, run: Run, table: BlockTable, num_tokens: int) -> None:
        """Store the block in which the prompt ends up to the last hash in it."""
        unit = self.unit
        limit = run.num_prompt_tokens - (not self.drops_last_block)
        end = min(limit // unit, len(run.hashes)) * unit
        number = end // self.block_size
        if 0 < end <= num_tokens and end % self.block_size and number < len(table.blocks):
            self._store_up_to(run, table.blocks[number], end)

    def _store_up_to(self, run: Run, block: Block, end: int) -> None:
        """Store a block up to a hash within it."""
        block_hash = run.hashes[end // self.unit - 1]
        if block is self._pool.null or self._pool.holds(block, block_hash, self.index):
            return
        if self._pool.end_of(block) < end:
            self._pool.forget(block)
        self._pool.store(block, block_hash, self.index, end)
        self._tell_stored(run, StoredSpan(self.index, end - self.unit, end, self.unit, (end,)))


def blocks_for(tokens: int, size: int) -> int:
    """Return how many blocks of that size hold so many tokens."""
    return -(-tokens // size)
