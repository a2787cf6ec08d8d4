"""What a block of one engine costs, everything included, while the index grows; and what is left
of it after the engine is cleared."""

from __future__ import annotations

import gc
import time
from itertools import islice

import msgspec

from inferway.events.apply import EngineBlocks
from inferway.index.memory import MemoryIndex
from inferway_bench.index.followed import FollowedEngine
from inferway_bench.index.measuring import resident_bytes
from inferway_bench.index.payloads import endless_payloads
from inferway_bench.index.plan import Plan

BLOCKS = 16  # per event
CHAIN = 32  # events to a prompt: 512 blocks
_SAMPLES = 60
_SWEEP = 1000  # blocks at a time


class Growth(msgspec.Struct, frozen=True):
    """`points`: (blocks, bytes for each of them)."""

    points: list[tuple[int, float]]
    peak: float  # bytes a block: the largest of the points beyond a twentieth of the growth
    cleared_seconds: float  # CPU to give back what the engine had
    cleared_slice_ms: float  # CPU of the longest of the pieces it was done in
    kept_after_clear: float  # share of the bytes still taken from the system afterwards


def memory(plan: Plan) -> Growth:
    """From resident memory; the process has done nothing else."""
    index = MemoryIndex()
    engine = FollowedEngine(0, plan.block_size, index)
    engine.find_dialect(endless_payloads(BLOCKS, plan.block_size, 1, plan.seed + 1))
    stream = endless_payloads(BLOCKS, plan.block_size, CHAIN, plan.seed)
    engine.apply(islice(stream, CHAIN))  # what is made once
    index.apply(engine.blocks.forget())
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    before = resident_bytes()
    points: list[tuple[int, float]] = []
    step = max(BLOCKS, plan.memory_blocks // _SAMPLES)
    stored = 0
    while stored < plan.memory_blocks:
        engine.apply(islice(stream, step // BLOCKS))
        stored += step // BLOCKS * BLOCKS
        points.append((stored, (resident_bytes() - before) / stored))
    assert index.num_blocks(0) == engine.blocks.num_blocks == stored
    grown = resident_bytes() - before
    start = time.process_time()
    slice_ms = _clear(index, engine.blocks)
    return Growth(
        points=points,
        peak=max(each for blocks, each in points if blocks >= plan.memory_blocks / 20),
        cleared_seconds=time.process_time() - start,
        cleared_slice_ms=slice_ms,
        kept_after_clear=(resident_bytes() - before) / grown,
    )


def _clear(index: MemoryIndex, engine: EngineBlocks) -> float:
    longest, more = 0.0, True
    ops = engine.forget()
    while more:
        start = time.process_time()
        index.apply(ops)
        more = index.sweep(_SWEEP) | engine.sweep(_SWEEP)
        longest = max(longest, time.process_time() - start)
        ops = []
    return longest * 1000
