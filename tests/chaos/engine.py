"""The truth: what one engine really holds, and the batches in which it tells.

Its KV cache is the simulator's, which shares no code with the index, and its events are written
by the simulator's encoder. What vLLM can do and the simulator does not is added here: blocks
offloaded to the CPU, blocks reported again, another order of eviction, events that nobody can read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import msgspec

from inferway.kv.blocks.dialects import Dialect, LoraAdapter, wire_hash
from inferway_sim.cache import Adapter, KvCache, Run
from inferway_sim.config import EventFormat
from inferway_sim.events import BlockRemoved, BlockStored, CacheStored, Event, WireEvent
from inferway_sim.events import _flat as flat
from inferway_sim.events import _to_wire as to_wire
from inferway_sim.kv_groups.cache import GroupedCache
from inferway_sim.kv_groups.spec import KvGroups, read_groups

ADAPTER = Adapter(1, LoraAdapter("adapter", "/adapters/one"))
VOCABULARY = 3  # so small that prompts meet by chance
MAX_PROMPT_BLOCKS = 7


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    adapter: bool = False
    salt: str | None = None

    @property
    def lora(self) -> LoraAdapter | None:
        return ADAPTER.lora if self.adapter else None

    def run(self, *more: int) -> Run:
        return Run([*self.tokens, *more], ADAPTER if self.adapter else None, self.salt)


@dataclass(frozen=True, slots=True)
class Features:
    """What kind of engine it is."""

    num_blocks: int = 24
    block_size: int = 2
    algorithm: str = "xxhash"
    format: EventFormat = "map"
    mixed: bool = False  # adapters and salts
    cpu_blocks: int = 0  # room for offloaded blocks
    cpu_tokens: bool = True  # events of offloaded blocks carry tokens; else only a hash
    cpu_extras: bool = False  # and extra keys, which vLLM's OffloadingConnector keeps to itself
    cpu_chunk: int = 1  # blocks offloaded together
    groups: str = ""  # of KV cache, with the same blocks, the first of full attention; "": that one
    keeps_all: bool = True  # windows and states; else those where prompts end
    odd_eviction: bool = False  # inner blocks go before outer ones
    twins: bool = False  # the same prompt twice at once


class TrueEngine:
    """One life of one rank of an engine. `step` lets it work."""

    def __init__(self, features: Features, rng: Random, life: int) -> None:
        self.features = features
        self.life = life
        self.dialect = Dialect(features.algorithm, "chaos")
        self._cache = _cache(features, self.dialect)
        self._rng = rng
        self._running: list[tuple[Prompt, Run]] = []
        self._cpu: OrderedDict[int, None] = OrderedDict()
        self._offloading: list[BlockStored] = []  # on their way to the CPU
        self._more: list[WireEvent] = []  # of the batch being made

    # the truth

    def blocks_of(self, prompt: Prompt) -> list[int]:
        """The hashes of its full blocks, as events say them."""
        hashes = self.dialect.block_hashes(
            prompt.tokens, self.features.block_size, lora=prompt.lora, cache_salt=prompt.salt
        )
        return [wire_hash(block_hash) for block_hash in hashes]

    def on_gpu(self) -> set[int]:
        return self._hashes(0)

    def on_cpu(self) -> set[int]:
        return set(self._cpu)

    def in_second_group(self) -> set[int]:
        return self._hashes(1)

    def _hashes(self, group: int) -> set[int]:
        cache = self._cache
        if isinstance(cache, GroupedCache):
            return {wire_hash(block_hash) for block_hash in cache.cached_in(group)}
        return set() if group else {wire_hash(block_hash) for block_hash in cache.cached()}

    def reusable(self, prompt: Prompt) -> int:
        """How many of its blocks a prompt that begins like this would not have to compute."""
        if not self.features.cpu_blocks:
            tokens = self._cache.num_reusable_tokens(prompt.run(0))
            return tokens // self.features.block_size
        return self._run_of(self.blocks_of(prompt), self.on_gpu() | self.on_cpu())

    def _run_of(self, hashes: Sequence[int], here: set[int]) -> int:
        found = next((i for i, h in enumerate(hashes) if h not in here), len(hashes))
        return self._cut_to_window(hashes[:found]) if self.features.groups else found

    def _cut_to_window(self, hashes: Sequence[int]) -> int:
        """With blocks on the CPU the second group has a window, if there is one."""
        _, second = read_groups(self.features.groups, self.features.block_size)
        wanted = -(-(second.reach - 1) // self.features.block_size)
        window = self.in_second_group()
        for found in range(len(hashes), 0, -1):
            if window.issuperset(hashes[max(0, found - wanted) : found]):
                return found
        return 0

    def under_way(self) -> list[Prompt]:
        """What it computes now, with the tokens generated so far."""
        return [replace(prompt, tokens=tuple(run.tokens)) for prompt, run in self._running]

    # its work

    def step(self, prompts: list[Prompt], now: float, rank: int) -> bytes | None:
        """One turn of its scheduler: the batch it would publish. Adds to `prompts` what others
        may ask again."""
        for _ in range(self._rng.choice((1, 1, 1, 2, 4))):
            self._work(prompts)
        return self._batch(now, rank)

    def clear(self, now: float, rank: int, cpu_too: bool) -> bytes | None:
        """As an administrator's reset, which first ends what runs."""
        while self._running:
            self._end(0, [])
        self._cache.clear()
        if cpu_too:
            self._cpu.clear()
            self._offloading.clear()
        return self._batch(now, rank)

    def report(self, prompt: Prompt, now: float, rank: int) -> bytes | None:
        """The blocks found for a request that asked to hear of them."""
        num_hits = self._run_of(self.blocks_of(prompt), self.on_gpu())
        if not num_hits:
            return None
        run = prompt.run()
        self._cache.num_reusable_tokens(run)  # hashes it
        self._more += [to_wire(event) for event in self._reported(run, num_hits)]
        return self._batch(now, rank)

    def _reported(self, run: Run, num_hits: int) -> list[Event]:
        if isinstance(self._cache, KvCache):
            return [self._cache._stored(run, 0, num_hits)]
        before = self._cache.take_events()
        self._cache.look_up(replace(run, report_all=True))
        reported = self._cache.take_events()
        self._more += [to_wire(event) for event in before]
        return reported

    def _work(self, prompts: list[Prompt]) -> None:
        choice = self._rng.random()
        if choice < 0.45 or not self._running:
            prompt = self._draw(prompts)
            prompts.append(prompt)
            for _ in range(2 if self.features.twins and self._rng.random() < 0.5 else 1):
                self._admit(prompt, prompts)
        elif choice < 0.75:
            self._extend(self._rng.randrange(len(self._running)), prompts)
        else:
            self._end(self._rng.randrange(len(self._running)), prompts)

    def _draw(self, prompts: Sequence[Prompt]) -> Prompt:
        rng, size = self._rng, self.features.block_size
        mixed = self.features.mixed
        old = rng.choice(prompts[-30:]) if prompts and rng.random() < 0.8 else None
        tokens = list(old.tokens[: rng.randint(0, len(old.tokens))]) if old else []
        room = MAX_PROMPT_BLOCKS * size - len(tokens)
        if room > 0 and rng.random() < 0.8:
            tokens += [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, room))]
        if rng.random() < 0.3:
            tokens = tokens[: len(tokens) // size * size]  # such a prompt doubles its last block
        adapter = old.adapter if old else mixed and rng.random() < 0.4
        salt = old.salt if old else rng.choice((None, "tenant")) if mixed else None
        return Prompt(tuple(tokens) or (0,), adapter, salt)

    def _admit(self, prompt: Prompt, prompts: list[Prompt]) -> None:
        if self.features.odd_eviction:
            self._shuffle_free()
        run = prompt.run()
        while self._cache.admit(run) is None:
            if not self._running:
                return
            self._end(0, prompts)
        self._running.append((prompt, run))

    def _extend(self, which: int, prompts: list[Prompt]) -> None:
        _, run = self._running[which]
        room = self.features.num_blocks * self.features.block_size - len(run.tokens)
        count = min(room, self._rng.randint(1, 2 * self.features.block_size))
        tokens = [self._rng.randrange(VOCABULARY) for _ in range(count)]
        for said in [[token] for token in tokens] if self.features.groups else [tokens]:
            run.tokens += said
            if not self._cache.reserve(run):
                self._end(which, prompts)
                return

    def _end(self, which: int, prompts: list[Prompt]) -> None:
        prompt, run = self._running.pop(which)
        prompts.append(replace(prompt, tokens=tuple(run.tokens)))
        self._cache.release(run)

    def _shuffle_free(self) -> None:
        free = self._cache._pool._free
        for block_id in self._rng.sample(sorted(free), min(len(free), 3)):
            free.move_to_end(block_id, last=False)

    # what it tells

    def _batch(self, now: float, rank: int) -> bytes | None:
        wire: list[WireEvent] = []
        for event in self._cache.take_events():
            told = to_wire(event)
            wire.append(told)
            if isinstance(told, BlockStored):
                self._store_elsewhere(event, told)
        self._arrive()
        wire += self._more
        self._more = []
        self._evict_elsewhere(wire)
        if not wire:
            return None
        flatten = self.features.format == "array"
        events: list[object] = [flat(event) if flatten else event for event in wire]
        return msgspec.msgpack.encode([now, events, rank])

    def _store_elsewhere(self, event: Event, told: BlockStored) -> None:
        assert isinstance(event, CacheStored)
        if self.features.cpu_blocks and told.group_idx == 0:
            self._offload(told)

    def _offload(self, told: BlockStored) -> None:
        """Some of the blocks, each chunk as an event that is published when it has arrived."""
        size, chunk = told.block_size, self.features.cpu_chunk
        for first in range(0, len(told.block_hashes), chunk):
            if self._rng.random() < 0.4:
                continue
            last = first + chunk
            copy = msgspec.structs.replace(
                told,
                block_hashes=told.block_hashes[first:last],
                parent_block_hash=told.block_hashes[first - 1] if first else told.parent_block_hash,
                token_ids=told.token_ids[first * size : last * size],
                extra_keys=told.extra_keys[first:last]
                if told.extra_keys and self.features.cpu_extras
                else None,
                medium="CPU",
            )
            self._offloading.append(copy if self.features.cpu_tokens else _placeholder(copy))

    def _arrive(self) -> None:
        """In any order, maybe after the GPU's blocks are gone."""
        self._rng.shuffle(self._offloading)
        waiting = []
        for copy in self._offloading:
            if self._rng.random() < 0.3:
                waiting.append(copy)
            elif not self._cpu.keys() & set(copy.block_hashes):
                self._cpu.update(dict.fromkeys(copy.block_hashes))
                self._more.append(copy)
        self._offloading = waiting

    def _evict_elsewhere(self, wire: list[WireEvent]) -> None:
        while len(self._cpu) > self.features.cpu_blocks:
            block_hash, _ = self._cpu.popitem(last=self._rng.random() < 0.3)
            wire.append(BlockRemoved([block_hash], "CPU", 0))


def _cache(features: Features, dialect: Dialect) -> KvCache | GroupedCache:
    num_blocks, size = features.num_blocks, features.block_size
    if not features.groups:
        return KvCache(num_blocks + 1, size, dialect)
    groups = read_groups(features.groups, size)
    config = KvGroups(groups, retention_interval=None if features.keeps_all else 0)
    return GroupedCache(len(groups) * num_blocks + 1, config, dialect, max_model_len=1000)


def _placeholder(copy: BlockStored) -> BlockStored:
    """Without `self_describing_kv_events`: the hash of a chunk's last block, and nothing else."""
    return BlockStored(
        block_hashes=copy.block_hashes[-1:],
        parent_block_hash=None,
        token_ids=[],
        block_size=0,
        lora_id=None,
        medium="CPU",
        lora_name=None,
        group_idx=0,
    )
