"""The paged KV cache of an engine whose model has several KV cache groups, or is speculated: what
`KvCache` is for one group with full attention.

Rules from vLLM 0.32 and 0.33 (v1/core/kv_cache_manager.py, kv_cache_coordinator.py), written anew:
* all groups take blocks from one pool, and a prompt reuses what all of them have;
* a prompt is computed in steps, each of which takes blocks and stores what can be found from then
  on. Here the steps of a prompt follow each other at once when it is admitted;
* a prompt is admitted only if all of its blocks can be had, as far as they are held at a time.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from collections.abc import Sequence

from inferway.kv.blocks.dialects import Dialect, HashExtra
from inferway_sim.cache import Run, extra_keys
from inferway_sim.events import CacheStored, Event
from inferway_sim.kv_groups.group import LayerGroup, StepRoom, StoredSpan
from inferway_sim.kv_groups.lookup import CacheHit, HitFinder
from inferway_sim.kv_groups.mamba import AlignedMambaGroup, MambaGroup
from inferway_sim.kv_groups.pool import GroupedPool
from inferway_sim.kv_groups.run_state import BlockTable, RunState
from inferway_sim.kv_groups.spec import KvGroup, KvGroups
from inferway_sim.kv_groups.windows import LocalGroup, WindowGroup
from inferway_sim.pool import Block


class LookaheadHasher:
    """Hashes blocks of `unit` tokens in the engine's dialect. With `lookahead` each hash covers
    that number of tokens after its block, as vLLM 0.33's (v1/core/kv_cache_utils.py), and is there
    only once these tokens are; vLLM's own algorithm, sha256, is the only one then."""

    def __init__(self, dialect: Dialect, unit: int, lookahead: int) -> None:
        self._dialect = dialect
        self.unit = unit
        self.lookahead = lookahead

    def block_hash(
        self,
        parent: bytes | None,
        tokens: Sequence[int],
        end: int,
        extra: tuple[HashExtra, ...] | None,
    ) -> bytes:
        """Return the hash of the block of a request's `tokens` that ends at token `end`."""
        block = tokens[end - self.unit : end]
        if not self.lookahead:
            return self._dialect.block_hash(parent, block, extra)
        keys = (extra, *tokens[end : end + self.lookahead])
        hashed = (parent or self._dialect.none_hash, tuple(block), keys)
        return hashlib.sha256(pickle.dumps(hashed, protocol=5)).digest()


def step_end(
    config: KvGroups, *, start: int, num_tokens: int, num_prompt_tokens: int, junction: int
) -> int:
    """Return where the step ends that computes a request's tokens from `start` on. It has
    `num_tokens` tokens, the prompt's and those that it had said when it lost its place; `junction`
    is as in `RunState`. Rules from vLLM 0.32 (v1/core/sched/scheduler.py), written anew."""
    end = min(num_tokens, start + config.max_num_batched_tokens)
    size = config.aligned_size
    prefill_end = max(num_prompt_tokens, num_tokens - 1)
    if size is not None and start < prefill_end:
        if end < prefill_end:
            end = end // size * size
        stops = [config.last_state(num_tokens, size)]
        if start % size:
            stops.append((start // size + 1) * size)
        if config.has_fine_hits:
            tail = config.last_state(num_prompt_tokens, config.hash_unit)
            if stops[0] < tail < num_prompt_tokens:
                stops.append(tail)
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        end = min((stop for stop in stops if start < stop < end), default=end)
    return end - _num_held_back(config, num_tokens - end)


def _num_held_back(config: KvGroups, remaining: int) -> int:
    """Return how many tokens a step leaves to the next one, so that the drafter can read ahead."""
    ahead = config.speculation.prefill_lookahead
    return ahead - remaining if 0 < remaining < ahead else 0


class GroupedCache:
    """`num_blocks` that all groups share, hashed in the engine's dialect, given to requests."""

    def __init__(
        self, num_blocks: int, config: KvGroups, dialect: Dialect, max_model_len: int
    ) -> None:
        self.config = config
        speculation = config.speculation
        self._pool = GroupedPool(num_blocks)
        self._max_model_len = max_model_len
        self._hasher = LookaheadHasher(dialect, config.hash_unit, speculation.hash_lookahead)
        self._groups = [
            _group_class(group)(index, config, self._pool, self._tell_stored)
            for index, group in enumerate(config.groups)
        ]
        self._finder = HitFinder(config, self._groups)
        # By group, the blocks from and to which this step copies.
        self._copied: list[list[Block]] = [[] for _ in self._groups]

    @property
    def usage(self) -> float:
        """Share of the blocks that requests use, 0..1, as `vllm:kv_cache_usage_perc`."""
        return 1 - self._pool.num_free / self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request uses."""
        return self._pool.num_free

    @property
    def num_blocks(self) -> int:
        """Blocks that can hold tokens."""
        return self._pool.num_blocks

    def cached(self) -> dict[bytes, int]:
        """Block hash -> physical copies of it, in all groups."""
        copies: Counter[bytes] = Counter()
        for key, number in self._pool.cached().items():
            copies[key[:-4]] += number
        return copies

    def cached_in(self, group: int) -> set[bytes]:
        """Return the hashes of all blocks that can be found in that group."""
        return {key[:-4] for key in self._pool.cached() if int.from_bytes(key[-4:], "big") == group}

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        events, self._pool.events = self._pool.events, []
        return events

    def num_reusable_tokens(self, run: Run) -> int:
        """Return how many tokens of `run` would not be computed if it were admitted now."""
        self._hash(run)
        return self._find(run).num_tokens

    def num_kept_tokens(self, run: Run) -> int:
        """Return how many tokens of the run, from its start, others can find."""
        if run.state is None:
            return 0
        ends = (map(self._pool.end_of, table.blocks) for table in run.state.tables)
        return min(max(each, default=0) for each in ends)

    def admit(self, run: Run) -> int | None:
        """Give `run` blocks for all its tokens, reusing what is there.

        Returns how many tokens need not be computed, or None if there is no room now.
        """
        hit = self.look_up(run)
        touched = {id(block): block for blocks in hit.blocks for block in blocks}
        touched.pop(id(self._pool.null), None)
        run.num_reused = len(touched)
        start = hit.num_tokens
        first: CacheHit | None = hit
        while start < len(run.tokens):
            end = self.step_end(run, start)
            if not self.take_step(run, end, first):
                self.release(run)
                return None
            self.end_step()
            start, first = end, None
            touched.update((id(block), block) for block in self._held(run))
        run.blocks = list(touched.values())
        run.num_kept = self.num_kept_tokens(run) // self.config.block_size
        return hit.num_tokens

    def reserve(self, run: Run) -> bool:
        """Give `run` blocks for the tokens appended since, and for what is drafted after them;
        False if there is no room now."""
        state = self._state(run)
        state.num_computed = len(run.tokens) - 1
        end = min(len(run.tokens) + self.config.speculation.num_tokens, self._max_model_len - 1)
        has_room = self.take_step(run, max(end, len(run.tokens)))
        self.end_step()
        return has_room

    def finish(self, run: Run, last_token: int) -> None:
        """`run` ended with a token that is not computed. vLLM 0.33 stores what accepted drafts
        completed; 0.32 does so in the next step alone, which such a run does not have."""
        run.tokens.append(last_token)
        is_drafted = self.config.speculation.method != "none"
        if self.config.version == "0.33" and is_drafted and run.state is not None:
            self._hash(run)
            self._store(run, run.state, len(run.tokens) - 1)
        self.release(run)

    def release(self, run: Run) -> None:
        """`run` ended, or lost its place: its blocks are free, their content reusable."""
        state, run.state = run.state, None
        run.blocks = []
        run.num_kept = run.num_reused = 0
        if state is not None:
            for group, table in zip(self._groups, state.tables, strict=True):
                group.release(table)

    def clear(self) -> bool:
        """Forget everything; False, and nothing done, while a request holds blocks."""
        return self._pool.clear()

    # What the steps of a request are made of; the tests drive vLLM's manager in the same steps.

    def look_up(self, run: Run) -> CacheHit:
        """Return what serves a request that has no blocks yet."""
        self._hash(run)
        hit = self._find(run)
        self._state(run).junction = hit.junction
        if run.report_all and hit.num_tokens:
            for group, blocks in zip(self._groups, hit.blocks, strict=True):
                self._report(run, group, len(blocks))
        return hit

    def step_end(self, run: Run, start: int) -> int:
        """Return where the step of a prompt ends that begins at token `start`."""
        return step_end(
            self.config,
            start=start,
            num_tokens=len(run.tokens),
            num_prompt_tokens=run.num_prompt_tokens,
            junction=self._state(run).junction,
        )

    def take_step(self, run: Run, end: int, hit: CacheHit | None = None) -> bool:
        """Give `run` blocks for its tokens and drafts up to `end`, and store what they complete.
        `hit` is what serves it, in its first step. False if there is no room now."""
        self._hash(run)
        state = self._state(run)
        computed = state.num_computed if hit is None else hit.num_tokens
        hits = [] if hit is None else hit.blocks
        slots = min(end + self.config.speculation.num_lookahead_slots, self._max_model_len)
        room = StepRoom(end, slots)
        if hit is not None and not self._has_room_for_all(run, state, hit):
            return False
        for group, table in zip(self._groups, state.tables, strict=True):
            group.drop_skipped(table, computed)
        if self._num_missing(state, room, hits, computed) > self._pool.num_free:
            return False
        if any(hits):
            for group, table, found in zip(self._groups, state.tables, hits, strict=True):
                group.take_hits(table, found, computed)
        for group, table in zip(self._groups, state.tables, strict=True):
            for copy in group.take_blocks(table, room):
                self._copied[group.index] += copy
        self._store(run, state, min(end, len(run.tokens)))
        state.num_computed = min(end, len(run.tokens))
        return True

    def end_step(self) -> None:
        """A step is over: what it copies and stores is there."""
        self._pool.release([block for copies in self._copied for block in copies][::-1])
        for group in self._groups:
            self._copied[group.index].clear()
            group.end_step()

    def _has_room_for_all(self, run: Run, state: RunState, hit: CacheHit) -> bool:
        room = StepRoom(len(run.tokens), len(run.tokens))
        missing = self._num_missing(state, room, hit.blocks, hit.num_tokens, is_capped=True)
        return missing <= self._pool.num_free

    def _num_missing(
        self,
        state: RunState,
        room: StepRoom,
        hits: Sequence[Sequence[Block]],
        computed: int,
        *,
        is_capped: bool = False,
    ) -> int:
        """Return how many free blocks a step needs: more than there are if it cannot begin."""
        missing = 0
        for group, table in zip(self._groups, state.tables, strict=True):
            found = hits[group.index] if hits else ()
            if group.is_computed_now(found):
                return self._pool.num_blocks + 1
            most = group.num_at_most(self._max_model_len) if is_capped else None
            missing += group.num_missing(table, room, found, computed, most=most)
        return missing

    def _store(self, run: Run, state: RunState, num_tokens: int) -> None:
        boundaries = self._boundaries(run)
        for group, table in zip(self._groups, state.tables, strict=True):
            more = self._junctions(state, group)
            group.store(run, table, self._num_storable(group, num_tokens), boundaries + more)

    def _junctions(self, state: RunState, group: LayerGroup) -> tuple[int, ...]:
        """Return where a prompt will go on that parts from this one where another did."""
        if not state.junction:
            return ()
        if self.config.version == "0.33" and group.drops_last_block:
            return (state.junction, state.junction - group.block_size)
        return (state.junction,)

    def _boundaries(self, run: Run) -> tuple[int, ...]:
        """Return where prompts will go on that are this one, or begin with it."""
        num_tokens, size = run.num_prompt_tokens, self.config.block_size
        if not self.config.draft_groups:
            return (num_tokens - 1,)
        again = (num_tokens - 1) // size * size - size
        longer = num_tokens // size * size - size
        return (max(0, again), max(0, longer))

    def _num_storable(self, group: LayerGroup, num_tokens: int) -> int:
        """Return how many of a request's tokens others can find in that group. The drafter may
        compute the last ones again."""
        settled = max(0, num_tokens - self.config.num_retained_tokens)
        if len(self._groups) == 1:
            return settled
        whole = self._whole(num_tokens)
        if group.drops_last_block and whole:
            return min(settled, self._whole(settled) + group.block_size)
        return whole

    def _whole(self, num_tokens: int) -> int:
        """Return up to where a hit could come in so many tokens."""
        if self.config.has_fine_hits:
            return num_tokens
        return num_tokens // self.config.block_size * self.config.block_size

    def _state(self, run: Run) -> RunState:
        if run.state is None:
            run.state = RunState([BlockTable() for _ in self._groups])
        return run.state

    def _held(self, run: Run) -> list[Block]:
        tables = self._state(run).tables
        null = self._pool.null
        return [block for table in tables for block in table.blocks if block is not null]

    def _find(self, run: Run) -> CacheHit:
        if not run.reads_cache:
            return CacheHit([[] for _ in self._groups])
        return self._finder.find(run.hashes, len(run.tokens) - 1)

    def _hash(self, run: Run) -> None:
        unit, ahead = self._hasher.unit, self._hasher.lookahead
        for end in range((len(run.hashes) + 1) * unit, len(run.tokens) - ahead + 1, unit):
            parent = run.hashes[-1] if run.hashes else None
            extra = extra_keys(run, end - unit)
            run.hashes.append(self._hasher.block_hash(parent, run.tokens, end, extra))

    # What is told

    def _report(self, run: Run, group: LayerGroup, num_blocks: int) -> None:
        size = group.block_size
        num_blocks = min(num_blocks, len(run.hashes) * self._hasher.unit // size)
        if num_blocks:
            ends = tuple(range(size, num_blocks * size + 1, size))
            self._tell_stored(run, StoredSpan(group.index, 0, ends[-1], size, ends))

    def _tell_stored(self, run: Run, span: StoredSpan) -> None:
        adapter, unit, ahead = run.adapter, self._hasher.unit, self._hasher.lookahead
        group = self._groups[span.group]
        self._pool.events.append(
            CacheStored(
                hashes=tuple(run.hashes[end // unit - 1] for end in span.block_ends),
                parent=run.hashes[span.start // unit - 1] if span.start else None,
                token_ids=tuple(run.tokens[span.start : span.end]),
                block_size=span.block_size,
                extra_keys=tuple(extra_keys(run, end - span.block_size) for end in span.block_ends),
                lora_id=adapter.id if adapter else None,
                lora_name=adapter.lora.name if adapter else None,
                group=span.group,
                spec_kind=group.kind,
                window=group.window,
                lookahead=tuple(tuple(run.tokens[end : end + ahead]) for end in span.block_ends)
                if ahead
                else None,
            )
        )


def _group_class(group: KvGroup) -> type[LayerGroup]:
    if group.kind == "mamba":
        return AlignedMambaGroup if group.aligns else MambaGroup
    return {"full": LayerGroup, "window": WindowGroup, "local": LocalGroup}[group.kind]
