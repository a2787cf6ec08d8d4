"""An index that grows by one engine's events: what a block takes in memory, and how long everybody
else on its event loop waits. The process has done nothing else."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import uvloop

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Store
from inferway.model import RequestHead, TokenIds
from inferway.tasks import SLICE_SECONDS
from inferway_bench.cpu import resident_bytes
from inferway_bench.idle_engines import GivenTokens, idle_director
from inferway_bench.index.engine import BLOCKS, CHAIN, FollowedEngine, endless_payloads
from inferway_bench.index.worker import NUM_ENGINES, VOCABULARY

_SAMPLES = 60
_PROMPTS, _PROMPT_BLOCKS = 50, 512
_DECISION_SECONDS = 0.005
_TICK_SECONDS = 0.001
_HEAD = RequestHead("POST", "/v1/completions", "", ())
_BODY = b'{"model": "m", "prompt": "given"}'


def bytes_of_a_block(num_blocks: int, block_size: int, seed: int) -> dict[str, float]:
    """Return the resident bytes of a block, everything included: at the peak (beyond a twentieth of
    the growth) and at the end."""
    index = MemoryIndex()
    engine = FollowedEngine(0, block_size, index)
    engine.find_dialect(endless_payloads(block_size, seed + 1, chain=1))
    stream = endless_payloads(block_size, seed)
    engine.apply(islice(stream, CHAIN))  # what is made once
    index.apply(engine.blocks.forget())
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    before = resident_bytes(os.getpid())
    each, peak, stored = 0.0, 0.0, 0
    step = max(1, num_blocks // _SAMPLES // BLOCKS)
    while stored < num_blocks:
        engine.apply(islice(stream, step))
        stored += step * BLOCKS
        each = (resident_bytes(os.getpid()) - before) / stored
        if stored >= num_blocks / 20:
            peak = max(peak, each)
    assert index.num_blocks(0) == engine.blocks.num_blocks == stored
    return {"peak": peak, "at the end": each}


def stalls(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the milliseconds of decisions and of lateness by phase, before and while an index
    grows, and what the growth was.

    Three tasks share an event loop, as in the gateway. One brings an engine's events at their rate
    and gives others a turn every 2 ms, as `fleet.subscriber` does. One wakes every millisecond and
    says by how much it was late. One decides a request every 5 ms with the real director (token ids
    -> keys -> match -> scores); its time counts from when it was due, so a stall is in it.
    """
    return uvloop.run(_stalls(plan))


async def _stalls(plan: dict[str, Any]) -> dict[str, Any]:
    index, size, seed = MemoryIndex(), plan["block_size"], plan["seed"]
    engine = FollowedEngine(NUM_ENGINES, size, index)
    engine.find_dialect(endless_payloads(size, seed + 1, chain=1))
    prompts = _held_prompts(index, size, seed)
    payloads = endless_payloads(size, seed)  # here: it would be a stall of its own
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    late, decided = list[float](), list[float]()
    tasks = [
        asyncio.create_task(_tick(late)),
        asyncio.create_task(_decide(index, prompts, size, decided)),
    ]
    await asyncio.sleep(plan["quiet_seconds"])
    phases = {"before": _report(late, decided)}
    start = time.perf_counter()
    blocks, slice_cpu, event_cpu = 0, 0.0, 0.0
    while blocks < plan["growth_blocks"]:
        end = time.perf_counter() + SLICE_SECONDS
        due = min((time.perf_counter() - start) * plan["blocks_per_second"], plan["growth_blocks"])
        began = before = time.thread_time()
        while blocks < due and time.perf_counter() < end:
            engine.apply([next(payloads)])
            blocks += BLOCKS
            now = time.thread_time()
            event_cpu = max(event_cpu, now - before)
            before = now
        slice_cpu = max(slice_cpu, before - began)
        await asyncio.sleep(0 if blocks + BLOCKS < due else _TICK_SECONDS)
    seconds = time.perf_counter() - start
    phases["while it grows"] = _report(late, decided)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    cpu = {"slice_ms": slice_cpu * 1000, "event_ms": event_cpu * 1000}
    return {"phases": phases, "blocks": blocks, "seconds": seconds, **cpu}


def _held_prompts(index: MemoryIndex, block_size: int, seed: int) -> list[TokenIds]:
    """Prompts that all engines have stored."""
    numbers = np.random.default_rng(seed)
    hasher, length = BlockHasher(block_size), _PROMPT_BLOCKS * block_size
    made: list[TokenIds] = [
        numbers.integers(0, VOCABULARY, size=length, dtype=np.uint32) for _ in range(_PROMPTS)
    ]
    for tokens in made:
        keys = hasher.keys(tokens)
        index.apply([Store(engine, keys) for engine in range(NUM_ENGINES)])
    return made


async def _tick(late: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(_TICK_SECONDS)
        late.append(max(0.0, time.perf_counter() - before - _TICK_SECONDS))


async def _decide(
    index: MemoryIndex, prompts: Sequence[TokenIds], block_size: int, times: list[float]
) -> None:
    given = GivenTokens(prompts[0])
    director = idle_director(index, given, NUM_ENGINES, block_size)
    due, number = time.perf_counter(), 0
    while True:
        given.token_ids = prompts[number % len(prompts)]
        journey = director.open(_HEAD, _BODY)
        await journey.decide()
        journey.close("ok")
        times.append(time.perf_counter() - due)
        number += 1
        due += _DECISION_SECONDS
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


def _report(late: list[float], decided: list[float]) -> dict[str, float]:
    """Milliseconds since the last call."""
    found = dict[str, float]()
    for name, times in (("decision", decided), ("late", late)):
        p50, p99, most = (float(ms) for ms in np.percentile(np.array(times) * 1e3, (50, 99, 100)))
        found |= {f"{name} p50": p50, f"{name} p99": p99, name: most}
        times.clear()
    return found
