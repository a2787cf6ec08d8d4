"""What a block of one engine costs, everything included, while the index grows; and what is left
of it after the engine is cleared."""

from __future__ import annotations

import gc
import time

import msgspec

from inferway.bench.index.measuring import resident_bytes
from inferway.bench.index.payloads import endless_payloads
from inferway.bench.index.plan import Plan
from inferway.events.apply import EngineBlocks
from inferway.events.wire import BlockStored, RawBatch, decode_event, open_batch
from inferway.index.memory import MemoryIndex

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
    engine = EngineBlocks(0, plan.block_size, holdings=index)
    stream = endless_payloads(BLOCKS, plan.block_size, CHAIN, plan.seed)
    decoded = _event(next(stream))
    index.apply(engine.apply(decoded))
    index.apply(engine.forget())
    for _ in range(CHAIN - 1):
        next(stream)  # the rest of the prompt
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    before = resident_bytes()
    points: list[tuple[int, float]] = []
    step = max(BLOCKS, plan.memory_blocks // _SAMPLES)
    stored = 0
    while stored < plan.memory_blocks:
        for _ in range(step // BLOCKS):
            index.apply(engine.apply(_event(next(stream))))
        stored += step // BLOCKS * BLOCKS
        points.append((stored, (resident_bytes() - before) / stored))
    assert index.num_blocks(0) == engine.num_blocks == stored
    grown = resident_bytes() - before
    start = time.process_time()
    slice_ms = _clear(index, engine)
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


def _event(payload: bytes) -> BlockStored:
    batch = open_batch(payload)
    assert isinstance(batch, RawBatch)
    event = decode_event(batch.events[0])
    assert isinstance(event, BlockStored)
    return event
