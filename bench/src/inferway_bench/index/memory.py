"""What a held block takes in memory, everything included: while the index of one engine grows, and
by the number of engines. Each task is a process of its own that has done nothing else."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from itertools import islice

from inferway.events.apply import EngineBlocks
from inferway.events.wire import BlockStored
from inferway.index.memory import MemoryIndex
from inferway_bench.index.events import BLOCKS, CHAIN, FollowedEngine, endless_payloads
from inferway_bench.index.plan import IndexPlan
from inferway_bench.index.workload import resident_bytes

_PROMPT, _SYSTEM = 128, 16  # blocks of a prompt, and of the system prompt that some begin with
_SAMPLES = 60
_SWEEP = 1000  # blocks at a time


def growth(plan: IndexPlan) -> dict[str, float]:
    """Return the bytes of a block at the peak (beyond a twentieth of the growth) and at the end;
    then the CPU time to forget the engine, in seconds and in milliseconds for the longest slice,
    and the share of the memory that is still taken afterwards."""
    index = MemoryIndex()
    engine = FollowedEngine(0, plan.block_size, index)
    engine.find_dialect(endless_payloads(plan.block_size, plan.seed + 1, chain=1))
    stream = endless_payloads(plan.block_size, plan.seed)
    engine.apply(islice(stream, CHAIN))  # what is made once
    index.apply(engine.blocks.forget())
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    before = resident_bytes()
    each, peak, stored = 0.0, 0.0, 0
    step = max(1, plan.memory_blocks // _SAMPLES // BLOCKS)
    while stored < plan.memory_blocks:
        engine.apply(islice(stream, step))
        stored += step * BLOCKS
        each = (resident_bytes() - before) / stored
        if stored >= plan.memory_blocks / 20:
            peak = max(peak, each)
    assert index.num_blocks(0) == engine.blocks.num_blocks == stored
    grown = resident_bytes() - before
    slices = _forget(index, engine.blocks)
    return {
        "blocks": stored,
        "peak": peak,
        "at the end": each,
        "forgetting": sum(slices),
        "longest slice": max(slices) * 1000,
        "kept": (resident_bytes() - before) / grown,
    }


def _forget(index: MemoryIndex, engine: EngineBlocks) -> list[float]:
    """CPU seconds of each slice."""
    slices, more, ops = [], True, engine.forget()
    while more:
        start = time.process_time()
        index.apply(ops)
        more = index.sweep(_SWEEP) | engine.sweep(_SWEEP)
        slices.append(time.process_time() - start)
        ops = []
    return slices


def by_engines(plan: IndexPlan, kind: str, num_engines: str) -> dict[str, float]:
    """Return the bytes of a held block, which is held once for each engine that has it."""
    engines = int(num_engines)
    filling = _Filling(plan, engines)
    filling.prompt(range(engines), 0)  # what is made once
    before, filling.held = resident_bytes(), 0
    numbers = random.Random(plan.seed)
    while filling.held < plan.engine_blocks:
        holders: Sequence[int] = range(engines)
        if kind == "own":
            holders = [filling.prompts % engines]
        elif kind == "shared":
            holders = numbers.sample(range(engines), min(engines, numbers.randint(1, 3)))
        filling.prompt(holders, _SYSTEM if kind == "shared" else 0)
    return {"bytes": (resident_bytes() - before) / filling.held}


class _Filling:
    """Prompts, stored event by event in the index of a fleet, which all have a system prompt."""

    def __init__(self, plan: IndexPlan, engines: int) -> None:
        self.held = self.prompts = 0
        self.index = MemoryIndex()
        self._size = plan.block_size
        self._fleet = [EngineBlocks(i, self._size, holdings=self.index) for i in range(engines)]
        self._numbers = random.Random(plan.seed)
        self._system_hashes = [self._numbers.getrandbits(64) for _ in range(_SYSTEM)]
        self._store(range(engines), self._system_hashes, None, 7)

    def prompt(self, holders: Sequence[int], shared: int) -> None:
        """Store a new prompt, behind the system prompt if `shared`."""
        self.prompts += 1
        parent = self._system_hashes[-1] if shared else None
        for first in range(shared, _PROMPT, BLOCKS):
            hashes = [self._numbers.getrandbits(64) for _ in range(BLOCKS)]
            self._store(holders, hashes, parent, self.prompts << 8 | first)
            parent = hashes[-1]

    def _store(
        self, holders: Sequence[int], hashes: list[int], parent: int | None, token: int
    ) -> None:
        tokens = [token] * (len(hashes) * self._size)
        for holder in holders:
            event = BlockStored(
                block_hashes=[int(str(one)) for one in hashes],  # its own, as from the wire
                parent_hash=parent,
                token_ids=tokens,
                block_size=self._size,
            )
            self.index.apply(self._fleet[holder].apply(event))
            self.held += len(hashes)
