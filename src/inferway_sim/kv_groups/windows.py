"""Groups that read only the tokens near the next one: a sliding window, or a chunk.

Rules from vLLM 0.32 (v1/core/single_type_kv_cache_manager.py), written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from inferway_sim.cache import Run
from inferway_sim.kv_groups.group import LayerGroup, blocks_for
from inferway_sim.kv_groups.run_state import BlockTable
from inferway_sim.pool import Block


class WindowGroup(LayerGroup):
    """Each token reads the `reach` tokens up to itself. Blocks that left the window are free; a
    prompt needs those of the window at its hit's end alone."""

    kind: ClassVar[str] = "sliding_window"

    @property
    def window(self) -> int | None:
        """The window that events of this group tell."""
        return self.reach

    def find(
        self, hashes: Sequence[bytes], limit: int, groups: Sequence[int], *, drops: bool
    ) -> tuple[list[list[Block]], int]:
        """Find blocks as the group with full attention does."""
        size, align = self.block_size, self.alignment
        found = [[self._pool.null] * (limit // size) for _ in groups]
        wanted, run = self._num_wanted(drops=drops), 0
        for number in range(limit // size - 1, -1, -1):
            blocks = self._cached(hashes, (number + 1) * size, groups)
            if blocks is None:
                run = 0
                continue
            if not run and (number + (not drops)) * size % align:
                continue
            for all_blocks, block in zip(found, blocks, strict=True):
                all_blocks[number] = block
            run += 1
            if run >= wanted:
                length = number + run
                break
        else:
            # What is there from the prompt's start on serves, however short it is.
            length = self._aligned(run)
        if drops and length:
            length = self._aligned(length - 1)
        for all_blocks in found:
            del all_blocks[length:]
        return found, length * size

    def kept_blocks(self, first: int, end: int, boundaries: Sequence[int]) -> Sequence[bool] | None:
        """Return which windows a hit can end at: all, or those of the retention interval."""
        size, align, interval = self.block_size, self.alignment, self._config.retention_interval
        if align % size:
            return None
        shift = int(self.drops_last_block)
        wanted = self._num_wanted(drops=self.drops_last_block)
        kept = [False] * (end - first)
        period = (align if interval is None else interval) // size
        if period:
            if wanted >= period:
                return None
            for number in range(max(first, shift), end):
                kept[number - first] = (number - shift) % period >= period - wanted
        if interval is not None:
            for boundary in boundaries:
                last = boundary // align * align // size + shift
                for number in range(max(first, last - wanted), min(end, last)):
                    kept[number - first] = True
        return kept

    def num_skipped_tokens(self, computed: int) -> int:
        """Return the number of tokens before the window."""
        return max(0, computed - self.reach + 1 - self._config.num_retained_tokens)

    def _num_wanted(self, *, drops: bool) -> int:
        """Blocks on end that a hit needs, with the one that it drops."""
        return blocks_for(self.reach - 1, self.block_size) + drops

    def _aligned(self, num_blocks: int) -> int:
        while num_blocks * self.block_size % self.alignment:
            num_blocks -= 1
        return num_blocks

    def _store_tail(self, run: Run, table: BlockTable, num_tokens: int) -> None:
        """vLLM finds no part of such a block."""


class LocalGroup(LayerGroup):
    """Tokens read those of their own chunk of `reach` tokens."""

    kind: ClassVar[str] = "chunked_local_attention"

    def find(
        self, hashes: Sequence[bytes], limit: int, groups: Sequence[int], *, drops: bool
    ) -> tuple[list[list[Block]], int]:
        """Find blocks as with full attention; those before the chunk need not be there."""
        size = self.block_size
        num_skipped = limit // self.reach * self.reach // size
        found = [[self._pool.null] * num_skipped for _ in groups]
        for number in range(num_skipped, limit // size):
            if not self._find_block(found, hashes, (number + 1) * size, groups):
                break
        return found, len(found[0]) * size

    def num_skipped_tokens(self, computed: int) -> int:
        """Return the number of tokens in the chunks before."""
        return computed // self.reach * self.reach

    def _store_tail(self, run: Run, table: BlockTable, num_tokens: int) -> None:
        """vLLM finds no part of such a block."""
