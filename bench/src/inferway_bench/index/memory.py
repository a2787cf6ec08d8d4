"""What a held block takes in memory, everything included, while the index of one engine grows. The
process has done nothing else."""

from __future__ import annotations

import gc
import time
from itertools import islice

from inferway.kv.events.apply import EngineBlocks
from inferway.kv.index.memory import MemoryIndex
from inferway_bench.index.events import BLOCKS, CHAIN, FollowedEngine, endless_payloads
from inferway_bench.index.plan import IndexPlan
from inferway_bench.index.workload import resident_bytes

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
