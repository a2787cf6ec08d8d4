"""Groups that keep a state after some tokens instead of the KV of each.

Rules from vLLM 0.32 (v1/core/single_type_kv_cache_manager.py), written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from inferway_sim.cache import Run
from inferway_sim.kv_groups.group import (
    LayerGroup,
    StepRoom,
    TellStored,
    blocks_for,
)
from inferway_sim.kv_groups.pool import GroupedPool
from inferway_sim.kv_groups.run_state import BlockTable
from inferway_sim.kv_groups.spec import KvGroups
from inferway_sim.pool import Block


class MambaGroup(LayerGroup):
    """Mode "all": each block has the state after its last token. A prompt needs one state."""

    kind: ClassVar[str] = "mamba"

    def __init__(
        self, index: int, config: KvGroups, pool: GroupedPool, tell_stored: TellStored
    ) -> None:
        super().__init__(index, config, pool, tell_stored)
        self._num_drafts = config.speculation.num_tokens  # states that a step writes beside its own
        self._stored_now: set[bytes] = set()  # keys of states that this step computes

    def find(
        self, hashes: Sequence[bytes], limit: int, groups: Sequence[int], *, drops: bool
    ) -> tuple[list[list[Block]], int]:
        """Find blocks as with full attention. No state is dropped: drafters have none."""
        step = self.unit if self.alignment < self.block_size else self.block_size
        for end in range(limit // step * step, 0, -step):
            if end % self.alignment:
                continue
            blocks = self._cached(hashes, end, groups)
            if blocks is not None:
                before = [self._pool.null] * (blocks_for(end, self.block_size) - 1)
                return [[*before, block] for block in blocks], end
        return [[] for _ in groups], 0

    def kept_blocks(self, first: int, end: int, boundaries: Sequence[int]) -> Sequence[bool] | None:
        """Return which states a hit can end at: all, or those of the retention interval."""
        interval = self._config.retention_interval
        if interval is None or 0 < interval <= self.block_size:
            return None
        ends = {boundary // self.alignment * self.alignment for boundary in boundaries}
        numbers = {boundary // self.block_size - 1 for boundary in ends}
        period = interval // self.block_size
        return [
            number in numbers or (period > 0 and (number + 1) % period == 0)
            for number in range(first, end)
        ]

    def num_missing(
        self,
        table: BlockTable,
        room: StepRoom,
        hits: Sequence[Block],
        computed: int,
        *,
        most: int | None = None,
    ) -> int:
        """Count blocks as the group with full attention does, and a state for each draft."""
        slots = room.num_slots + self._num_drafts * self.block_size
        return super().num_missing(table, StepRoom(slots, slots), hits, computed, most=most)

    def take_blocks(self, table: BlockTable, room: StepRoom) -> list[tuple[Block, Block]]:
        """Take blocks as the group with full attention does, and a state for each draft."""
        slots = room.num_slots + self._num_drafts * self.block_size
        return super().take_blocks(table, StepRoom(slots, slots))

    def num_skipped_tokens(self, computed: int) -> int:
        """Return the number of all tokens but the last, whose state is read."""
        return computed - 1

    def store(
        self, run: Run, table: BlockTable, num_tokens: int, boundaries: Sequence[int]
    ) -> None:
        """Store the states up to `num_tokens` that can be found from now on."""
        first = table.num_kept or 0
        self._store_whole_blocks(run, table, num_tokens, boundaries)
        last = table.num_kept or 0
        self._store_tail(run, table, num_tokens)
        keys = (block.hash for block in table.blocks[first:last])
        self._stored_now.update(key for key in keys if key is not None)

    def end_step(self) -> None:
        """End a step: what was stored in it is there."""
        self._stored_now.clear()

    def is_computed_now(self, hits: Sequence[Block]) -> bool:
        """Return whether this very step computes the hits, so that it cannot read them."""
        return bool(hits) and hits[-1].hash in self._stored_now

    def _store_tail(self, run: Run, table: BlockTable, num_tokens: int) -> None:
        """There is a state at each block's end alone."""


class AlignedMambaGroup(MambaGroup):
    """Mode "align": the state after the last token of a step, and room for one step's states.
    Steps of a prompt end at blocks' ends (`steps`), and where the prompt's last hash ends."""

    def num_missing(
        self,
        table: BlockTable,
        room: StepRoom,
        hits: Sequence[Block],
        computed: int,
        *,
        most: int | None = None,
    ) -> int:
        """Count the state of this step, those of its drafts, and a copy of one that others read."""
        is_partial = table.partial is not None or self._is_partial(hits, computed)
        missing = self._num_wanted(room) - len(hits) - len(table.blocks)
        missing = max(0, missing) + is_partial
        at_most = 1 + is_partial + (0 if table.is_begun else self._num_drafts)
        return min(missing, at_most) + self._num_idle(hits)

    def take_blocks(self, table: BlockTable, room: StepRoom) -> list[tuple[Block, Block]]:
        """Take blocks as with full attention; those of the step before last are moved here."""
        wanted, blocks, had = self._num_wanted(room), table.blocks, len(table.blocks)
        if wanted <= had and table.partial is None:
            table.is_begun = True
            return []
        if table.is_begun:
            table.last_state = had - 1 - self._num_drafts
        elif had:
            table.last_state = had - 1
        num_skipped = wanted - self._num_drafts - 1
        blocks += [self._pool.null] * (num_skipped - had)
        if table.is_begun:
            for number in range(had - self._num_drafts, min(had, num_skipped)):
                blocks.append(blocks[number])
                blocks[number] = self._pool.null
        missing = max(0, wanted - len(blocks))
        taken = self._pool.take(missing + (table.partial is not None))
        copies = [] if table.partial is None else [self._copy(table, taken.pop(0))]
        blocks += taken
        table.is_begun = True
        return copies

    def drop_skipped(self, table: BlockTable, computed: int) -> None:
        """Free the states before the last, and the one that the step before the last one wrote."""
        last = min((computed - 1) // self.block_size, len(table.blocks))
        if last > table.num_retired:
            self._drop(table, table.num_retired, last)
            table.num_retired = last
        state = table.last_state
        if state is not None and state < blocks_for(computed, self.block_size) - 1:
            self._drop(table, state, state + 1)

    def _num_wanted(self, room: StepRoom) -> int:
        return blocks_for(room.num_tokens, self.block_size) + self._num_drafts

    def _copy(self, table: BlockTable, copy: Block) -> tuple[Block, Block]:
        """A request that was under way writes on where it is, and others find the copy."""
        if not table.is_begun:
            return self._own_copy(table, copy)
        assert table.partial is not None
        _, source = table.partial
        table.partial = None
        self._pool.hand_over(source, copy)
        self._pool.share([source])
        if copy.hash is not None:
            self._stored_now.add(copy.hash)
        return source, copy

    def _store_tail(self, run: Run, table: BlockTable, num_tokens: int) -> None:
        """Store the state at the last hash of the prompt, if this step ends there."""
        end = self._config.last_state(run.num_prompt_tokens, self.unit)
        number = blocks_for(num_tokens, self.block_size) - 1
        if not 0 < num_tokens == end or number >= len(table.blocks):
            return
        block = table.blocks[number]
        if block is self._pool.null:
            return
        if self._config.version == "0.33" and self._pool.end_of(block) == end:
            return  # others that find it need not wait
        self._store_up_to(run, block, end)
        if block.hash is not None:
            self._stored_now.add(block.hash)
        if end % self.block_size:
            table.partial = number, block
            table.num_kept = number
