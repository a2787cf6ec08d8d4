"""The paged KV cache of one engine: what a prompt reuses, what is evicted for it, and the
events that tell. The truth that an index is measured against.

Rules from vLLM 0.32 (v1/core/kv_cache_manager.py, single_type_kv_cache_manager.py) for a model
with one full-attention group:
* a prompt reuses the longest run of whole blocks from its start, but never its last token: the
  engine has to compute that one, so at most `(num_tokens - 1) // block_size` blocks are reused;
* a block can be reused as soon as the step that fills it is scheduled, filled by prompt or by
  generated tokens alike;
* a prompt is admitted only if all of its blocks can be had;
* a request with `kv_cache_report_mode: full` has the blocks that it finds reported as stored once
  more, from the prompt's start on, whenever it is looked up: also if it is not admitted then;
* a request that asks for log probabilities of its prompt reuses nothing, and its blocks can be
  reused as any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inferway.kv.blocks.dialects import Dialect, HashExtra, LoraAdapter, hash_extras
from inferway_sim.block_contents import BlockContents
from inferway_sim.events import CacheStored, Event
from inferway_sim.kv_groups.run_state import RunState
from inferway_sim.pool import Block, BlockPool


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter; blocks computed with it serve no other."""

    id: int  # from 1 on
    lora: LoraAdapter


@dataclass(slots=True)
class Run:
    """The tokens of one request, prompt and generated, and the blocks that hold them. The scheduler
    appends to `tokens`; the cache writes the rest."""

    tokens: list[int]
    adapter: Adapter | None = None
    cache_salt: str | None = None
    report_all: bool = False  # vllm_xargs: kv_cache_report_mode is "full"
    reads_cache: bool = True  # False: all of its tokens are computed
    blocks: list[Block] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_kept: int = 0  # blocks, from the start, that can be found by their hash
    num_reused: int = 0  # of these, how many were there already when it was admitted
    num_written: int = 0  # tokens, from the start, whose KV its blocks hold
    num_prompt_tokens: int = field(init=False)
    state: RunState | None = None  # in a cache with several groups

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)


class EngineCache(Protocol):
    """The cache of an engine, as its scheduler uses it."""

    @property
    def usage(self) -> float:
        """Share of the blocks that requests use, 0..1."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request uses."""

    @property
    def num_blocks(self) -> int:
        """Blocks that can hold tokens."""

    def cached(self) -> dict[bytes, int]:
        """Block hash -> physical copies of it: all that a prompt could reuse now."""

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in order."""

    def num_reusable_tokens(self, run: Run) -> int:
        """Return how many tokens of `run` would not be computed if it were admitted now."""

    def num_kept_tokens(self, run: Run) -> int:
        """Return how many tokens of the run, from its start, others can find."""

    def admit(self, run: Run) -> int | None:
        """Give `run` blocks for all its tokens, and return how many need not be computed; None if
        there is no room now."""

    def reserve(self, run: Run) -> bool:
        """Give `run` blocks for the tokens appended since; False if there is no room now."""

    def finish(self, run: Run, last_token: int) -> None:
        """`run` ended with a token that is not computed: its blocks are free."""

    def release(self, run: Run) -> None:
        """`run` ended, or lost its place: its blocks are free, their content reusable."""

    def clear(self) -> bool:
        """Forget everything; False, and nothing done, while a request holds blocks."""


class KvCache:
    """`num_blocks` of `block_size` tokens, hashed in the engine's dialect, given to requests. With
    `contents` it knows what each block really holds, where blocks come from other engines."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        dialect: Dialect,
        contents: BlockContents | None = None,
    ) -> None:
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._dialect = dialect
        self._contents = contents

    @property
    def usage(self) -> float:
        """Share of the blocks that requests use, 0..1, as `vllm:kv_cache_usage_perc`."""
        return 1 - self._pool.num_free / self._pool.num_blocks

    def num_kept_tokens(self, run: Run) -> int:
        """Return how many tokens of the run, from its start, others can find."""
        return run.num_kept * self._block_size

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_blocks(self) -> int:
        """Blocks that can hold tokens."""
        return self._pool.num_blocks

    def cached(self) -> dict[bytes, int]:
        """Block hash -> physical copies of it: all that a prompt could reuse now."""
        return self._pool.cached()

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        events, self._pool.events = self._pool.events, []
        return events

    def num_reusable_tokens(self, run: Run) -> int:
        """Return how many tokens of `run` would not be computed if it were admitted now."""
        self._hash(run)
        return len(self._longest_hit(run)) * self._block_size

    def admit(self, run: Run) -> int | None:
        """Give `run` blocks for all its tokens, reusing what is there.

        Returns how many tokens need not be computed, or None if there is no room now.
        """
        if not self._share_hits(run):
            return None
        self.reserve(run)
        return run.num_reused * self._block_size

    def await_content(self, run: Run) -> bool:
        """Give `run` blocks for all its tokens, reusing what is there; what the others hold comes
        from elsewhere, and cannot be found until it is there. False if there is no room now."""
        if not self._share_hits(run):
            return False
        run.blocks.extend(self._pool.take(self._num_blocks_for(run) - len(run.blocks)))
        return True

    def fill(self, run: Run, contents: Sequence[Sequence[int]]) -> None:
        """The content has come that `run` was given blocks for. The engine believes it to be that
        of the run's tokens, whatever it is; the last token it computes itself."""
        if self._contents is not None:
            self._contents.put(run.blocks[run.num_reused :], contents)
        run.num_written = len(run.tokens) - 1
        self._write(run)
        self._keep_full_blocks(run)

    def held_tokens(self, run: Run) -> list[int]:
        """Return the tokens whose KV the blocks of `run` hold: not its own where the content of a
        block is another than the engine believes."""
        if self._contents is None:
            return run.tokens
        return self._contents.read(run.blocks, len(run.tokens))

    def contents_of(self, block_ids: Sequence[int]) -> list[list[int]] | None:
        """Return the tokens whose KV these blocks hold now, or None if there is no such block."""
        if self._contents is None or not all(0 < id <= self.num_blocks for id in block_ids):
            return None
        return [self._contents.of(id) for id in block_ids]

    def _share_hits(self, run: Run) -> bool:
        self._hash(run)
        hits = self._longest_hit(run)
        if run.report_all and hits:
            self._pool.events.append(self._stored(run, 0, len(hits)))
        idle_hits = sum(block.num_users == 0 for block in hits)
        if self._num_blocks_for(run) - len(hits) + idle_hits > self._pool.num_free:
            return False
        self._pool.share(hits)
        run.blocks = hits
        run.num_kept = run.num_reused = len(hits)
        run.num_written = len(hits) * self._block_size
        return True

    def reserve(self, run: Run) -> bool:
        """Give `run` blocks for the tokens appended since; False if there is no room now."""
        self._hash(run)
        missing = self._num_blocks_for(run) - len(run.blocks)
        if missing > self._pool.num_free:
            return False
        run.blocks.extend(self._pool.take(missing))
        self._write(run)
        self._keep_full_blocks(run)
        return True

    def finish(self, run: Run, last_token: int) -> None:
        """`run` ended with a token that is not computed: its blocks are free."""
        del last_token  # no block is completed by it
        self.release(run)

    def release(self, run: Run) -> None:
        """`run` ended, or lost its place: its blocks are free, their content reusable."""
        self.free(self.detach(run))

    def detach(self, run: Run) -> list[Block]:
        """`run` ended, and its blocks stay in use until they are freed. Returns them."""
        blocks, run.blocks = run.blocks, []
        run.num_kept = run.num_reused = run.num_written = 0
        return blocks

    def free(self, blocks: Sequence[Block]) -> None:
        """Free these blocks of an ended request, in the order of its tokens."""
        self._pool.release(blocks)

    def clear(self) -> bool:
        """Forget everything; False, and nothing done, while a request holds blocks."""
        return self._pool.clear()

    def _write(self, run: Run) -> None:
        if self._contents is not None:
            self._contents.write(run.blocks, run.tokens, run.num_written)
            run.num_written = len(run.tokens)

    def _num_blocks_for(self, run: Run) -> int:
        return -(-len(run.tokens) // self._block_size)

    def _longest_hit(self, run: Run) -> list[Block]:
        hits: list[Block] = []
        if not run.reads_cache:
            return hits
        for block_hash in run.hashes[: (len(run.tokens) - 1) // self._block_size]:
            block = self._pool.find(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def _hash(self, run: Run) -> None:
        size = self._block_size
        for start in range(len(run.hashes) * size, len(run.tokens) - size + 1, size):
            parent = run.hashes[-1] if run.hashes else None
            tokens = run.tokens[start : start + size]
            run.hashes.append(self._dialect.block_hash(parent, tokens, extra_keys(run, start)))

    def _keep_full_blocks(self, run: Run) -> None:
        first, end = run.num_kept, len(run.tokens) // self._block_size
        if first >= end:
            return
        for block, block_hash in zip(run.blocks[first:end], run.hashes[first:end], strict=True):
            self._pool.keep(block, block_hash)
        run.num_kept = end
        self._pool.events.append(self._stored(run, first, end))

    def _stored(self, run: Run, first: int, end: int) -> CacheStored:
        size = self._block_size
        adapter = run.adapter
        return CacheStored(
            hashes=tuple(run.hashes[first:end]),
            parent=run.hashes[first - 1] if first else None,
            token_ids=tuple(run.tokens[first * size : end * size]),
            block_size=size,
            extra_keys=tuple(extra_keys(run, i * size) for i in range(first, end)),
            lora_id=adapter.id if adapter else None,
            lora_name=adapter.lora.name if adapter else None,
        )


def extra_keys(run: Run, start: int) -> tuple[HashExtra, ...] | None:
    """Return the values that are hashed beside the tokens of the block at token `start`."""
    lora = run.adapter.lora if run.adapter else None
    return hash_extras(lora, run.cache_salt if start == 0 else None)
