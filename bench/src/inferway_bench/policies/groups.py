"""Engines of hybrid models, whose layers keep their KV cache in several groups, and what a gateway
knows of them: all groups, or full attention alone.

The caches are the simulator's (`simulator.kv_groups`), at the grain of a trace: a block's hash is
the trace's number of it. A gateway that knows all groups looks prompts up by the rule of the index
(`kv.index.reuse`), and counts prompts on their way as `routing.match` does. Two simplifications, as
in `BlockCache`: room for the answer is taken with the prompt's, and all steps of a prompt store
their blocks and states when it is admitted. The steps in which it is computed are those of a model
with one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, repeat, takewhile

import msgspec

from inferway.errors import ConfigError
from inferway.kv.blocks.dialects import Dialect, HashExtra
from inferway.kv.index.reuse import CacheGroup, CacheLayout, reusable_tokens
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway_bench.policies.cache import BlockCache
from inferway_bench.policies.engine import Job
from inferway_bench.policies.gateway import Feed, Holders
from inferway_bench.policies.requests import SimRequest
from inferway_bench.processes import BenchError
from inferway_sim.cache import Run
from inferway_sim.events import CacheCleared, CacheStored
from inferway_sim.kv_groups.cache import GroupedCache
from inferway_sim.kv_groups.spec import KvGroups, SpeculativeDecoding, read_groups

_HASH_BYTES = 8
_KINDS = {
    "full": "full_attention",
    "window": "sliding_window",
    "local": "chunked_local_attention",
    "mamba": "mamba",
}


class HybridSpec(msgspec.Struct, frozen=True):
    """The groups of each engine's cache."""

    groups: str  # as `inferway simulate --kv-groups` takes them
    speculation: str = "none"  # as `--speculation` takes it; one token is drafted

    def kv_groups(self, block_tokens: int, step_tokens: int) -> KvGroups:
        """Return the groups; those without a size have blocks of `block_tokens`, the trace's. A
        step computes `step_tokens` of a prompt at most. Raises BenchError for groups that vLLM does
        not have, or that the trace's blocks cannot show."""
        method = self.speculation
        try:
            drafts = SpeculativeDecoding(method, num_tokens=int(method != "none"))  # type: ignore[arg-type]
            groups = KvGroups(
                read_groups(self.groups, block_tokens),
                speculation=drafts,
                max_num_batched_tokens=step_tokens,
            )
        except ConfigError as e:
            raise BenchError(f"hybrid engines {self.groups!r}, {method}: {e}") from e
        full = [group.block_size for group in groups.groups if group.kind == "full"]
        sizes = [group.block_size for group in groups.groups]
        if full[:1] != [block_tokens] or any(size % block_tokens for size in sizes):
            raise BenchError(
                f"hybrid engines {self.groups!r}: blocks of {sizes} tokens: expected a full group "
                f"of {block_tokens} tokens, the trace's, and multiples of it in the others; leave "
                "the sizes out"
            )
        return groups


def layout_of(groups: KvGroups) -> CacheLayout:
    """Return the groups as the index knows them."""
    return CacheLayout(
        tuple(
            CacheGroup(
                i, _KINDS[group.kind], group.block_size, group.reach, i in groups.draft_groups
            )
            for i, group in enumerate(groups.groups)
        )
    )


class _TraceBlocks(Dialect):
    """The hash of a block is its number in the trace, which is that of its tokens."""

    def block_hash(
        self,
        parent: bytes | None,
        token_ids: Sequence[int],
        extra: tuple[HashExtra, ...] | None = None,
        ahead: tuple[int, ...] = (),
    ) -> bytes:
        return token_ids[-1].to_bytes(_HASH_BYTES, "big", signed=True)


class GroupChange(msgspec.Struct, frozen=True):
    """The keys that a cache has removed, and those that it stored then, each a block in a group."""

    removed: list[int]
    stored: list[int]


class GroupCache(BlockCache):
    """A cache of `num_blocks` that all groups share."""

    __slots__ = ("_cache", "_changes", "_running", "_size", "groups")

    def __init__(self, groups: KvGroups, num_blocks: int, block_tokens: int) -> None:
        super().__init__(num_blocks)
        self.groups = groups
        self._size = block_tokens
        null_block, longest = 1, 2 * num_blocks * block_tokens  # longer than what fits
        self._cache = GroupedCache(num_blocks + null_block, groups, _TraceBlocks(), longest)
        # By prompt and room for its answer: those that are equal stand for each other.
        self._running: dict[tuple[tuple[int, ...], int], list[Run]] = {}
        self._changes: list[GroupChange] = []

    @property
    def num_free(self) -> int:
        return self._cache.num_free_blocks

    @property
    def usage(self) -> float:
        return self._cache.usage

    def held(self) -> set[int]:
        """Return all blocks that full attention holds."""
        full = next(i for i, group in enumerate(self.groups.groups) if group.kind == "full")
        return {_number(block_hash) for block_hash in self._cache.cached_in(full)}

    def match(self, blocks: Sequence[int], most: int) -> int:
        """Return how many of the first `most` blocks would be reused now."""
        return self._cache.num_reusable_tokens(self._run(blocks, most)) // self._size

    def used(self, blocks: Sequence[int], least: int = 1) -> int:
        """Return how many of `blocks`, from the start, at least so many prompts have that run."""
        common = [
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(blocks, other)))  # noqa: B905
            for (other, _), runs in self._running.items()
            for _ in runs
        ]
        return sorted(common, reverse=True)[least - 1] if len(common) >= least else 0

    def admit(self, blocks: Sequence[int], most: int, extra: int) -> int | None:
        """Admit as BlockCache does; `extra` blocks are those of each group with full attention."""
        run, size = self._run(blocks, most), self._size
        reused = self._cache.admit(run)
        if reused is not None and not self._cache.take_step(run, (len(blocks) + extra) * size):
            self._cache.release(run)
            reused = None
        self._cache.end_step()
        self._note()
        if reused is None:
            return None
        self._running.setdefault((tuple(blocks), extra), []).append(run)
        return reused // size

    def release(self, blocks: Sequence[int], extra: int, answer: Sequence[int] = ()) -> None:
        """End the request that was admitted with `blocks` and `extra`. `answer` is what some of the
        extra blocks hold now, behind `blocks`."""
        key = tuple(blocks), extra
        run = self._running[key].pop()
        if not self._running[key]:
            del self._running[key]
        if answer:
            run.tokens[len(blocks) * self._size :] = self._tokens(answer)
            self._cache.take_step(run, len(run.tokens))  # there is room for it since `admit`
            self._cache.end_step()
        self._cache.release(run)
        self._note()

    def take_changes(self) -> list[GroupChange]:
        """Return what has changed since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _run(self, blocks: Sequence[int], most: int) -> Run:
        """A prompt of which `most` blocks may be reused: if these are all, there is a tail."""
        has_tail = most == len(blocks)
        return Run([*self._tokens(blocks), *[0] * has_tail])

    def _tokens(self, blocks: Sequence[int]) -> list[int]:
        return list(chain.from_iterable(repeat(block, self._size) for block in blocks))

    def _note(self) -> None:
        number = len(self.groups.groups)
        for event in self._cache.take_events():
            assert not isinstance(event, CacheCleared)  # nobody clears it
            if isinstance(event, CacheStored):
                if not self._changes:
                    self._changes.append(GroupChange([], []))
                keys = [_number(block_hash) * number + event.group for block_hash in event.hashes]
                self._changes[-1].stored.extend(keys)
                continue
            if not self._changes or self._changes[-1].stored:
                self._changes.append(GroupChange([], []))
            key = _number(event.hash) * number + event.group
            self._changes[-1].removed.append(key)
            self.evicted.append(key)


def _number(block_hash: bytes) -> int:
    return int.from_bytes(block_hash, "big", signed=True)


class GroupHolders(Holders):
    """The copies that each engine holds of each block, in each group."""

    __slots__ = ("_copies", "_full", "_layout", "_size")

    def __init__(self, num_engines: int, layout: CacheLayout, block_tokens: int) -> None:
        super().__init__()
        self._copies: list[Counter[int]] = [Counter() for _ in range(num_engines)]
        self._layout = layout
        self._full = layout.full_position or 0
        self._size = block_tokens

    def add(self, engine: int, blocks: Sequence[int]) -> None:  # type: ignore[override]
        """`blocks` are keys of a `GroupChange`."""
        self._copies[engine].update(blocks)

    def remove(self, engine: int, blocks: Sequence[int]) -> None:  # type: ignore[override]
        copies = self._copies[engine]
        for key in blocks:
            copies[key] -= 1
            if not copies[key]:
                del copies[key]

    def match(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return the blocks of full attention that each engine holds from the start on."""
        number, full = len(self._layout.groups), self._full
        keys = [block * number + full for block in blocks]
        held = {
            engine: sum(1 for _ in takewhile(copies.__contains__, keys))
            for engine, copies in enumerate(self._copies)
        }
        return {engine: count for engine, count in held.items() if count}

    def reusable(self, request: SimRequest) -> dict[int, int]:
        """Return the blocks of a prompt that each engine reuses by the rule of the index."""
        blocks, size, number = request.blocks, self._size, len(self._layout.groups)
        found: dict[int, int] = {}
        for engine, run in self.match(blocks).items():
            copies = self._copies[engine]

            def holds(group: int, end: int, copies: Counter[int] = copies) -> bool:
                return blocks[end // size - 1] * number + group in copies

            hashed = len(blocks) * size
            reuse = reusable_tokens(self._layout, request.prompt_tokens, hashed, run, holds)
            if reuse.tokens:
                found[engine] = reuse.tokens // size
        return found


class GroupFeed(Feed):
    """The events of engines with such caches."""

    def __init__(
        self, delay: float, caches: Sequence[GroupCache], block_tokens: int, *,
        knows_groups: bool, is_heard: bool = True,
    ) -> None:  # fmt: skip
        layout = layout_of(caches[0].groups)
        holders = GroupHolders(len(caches), layout, block_tokens)
        super().__init__(delay, is_heard=is_heard, holders=holders)
        self._caches = caches
        self._layout = layout
        self._groups = holders
        self._knows_groups = knows_groups

    def send(
        self, now: float, engine: int, stored: Sequence[int], removed: Sequence[int],
        job: Job | None = None,
    ) -> None:  # fmt: skip
        """Send what the engine's cache has changed, instead of what is given."""
        for change in self._caches[engine].take_changes():
            super().send(now, engine, change.stored, change.removed)
        if job is not None:
            super().send(now, engine, (), (), job)

    def match(self, request: SimRequest) -> Mapping[int, int]:
        if not self._knows_groups:
            return super().match(request)
        return self._groups.reusable(request)

    def with_coming(
        self, overlay: SpeculativeOverlay, blocks: Sequence[int], found: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Add coming blocks as `routing.match` does; sparse groups' serve the same prompt alone."""
        if not self._knows_groups:
            return super().with_coming(overlay, blocks, found)
        soon = dict(found)
        for engine, count in overlay.longer(blocks, found).items():
            is_same = count == len(blocks) and overlay.ends(engine, blocks[-1])
            if is_same or not self._layout.has_sparse_groups:
                soon[engine] = count - self._layout.drops_last_block
        return soon
