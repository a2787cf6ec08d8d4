"""How long everybody else waits while an index grows: one event loop, as in the gateway.

Three tasks share it. One brings an engine's events at their rate and gives others a turn every
2 ms, as `fleet.subscriber` does. One wakes every millisecond and says by how much it was late.
One decides a request every 5 ms with the real director (token ids -> keys -> match -> scores);
its time counts from when it was due, so a stall is in it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Index, Store
from inferway.model import RequestHead, TokenIds
from inferway.routing.director import Director
from inferway.tasks import SLICE_SECONDS
from inferway_bench.idle_engines import GivenTokens, idle_director
from inferway_bench.index.events import BLOCKS, FollowedEngine, endless_payloads
from inferway_bench.index.plan import IndexPlan
from inferway_bench.index.workload import NUM_ENGINES, VOCABULARY

PROMPT_BLOCKS = 512
_PROMPTS = 50
_DECISION_SECONDS = 0.005
_TICK_SECONDS = 0.001
_HEAD = RequestHead("POST", "/v1/completions", "", ())
_BODY = b'{"model": "m", "prompt": "given"}'


class Fed(NamedTuple):
    """What `feed` did; milliseconds of CPU time of the longest time that events held the loop, and
    of the longest event. Unlike wall time they do not count what other processes took."""

    blocks: int
    seconds: float
    slice_ms: float
    event_ms: float


async def feed(
    engine: FollowedEngine,
    payloads: Iterator[bytes],
    blocks_per_second: int,
    is_done: Callable[[int], bool],
) -> Fed:
    """Apply an engine's batches at their rate until `is_done`, which gets the number of blocks."""
    start = time.perf_counter()
    blocks, slice_cpu, event_cpu = 0, 0.0, 0.0
    while not is_done(blocks):
        end = time.perf_counter() + SLICE_SECONDS
        due = (time.perf_counter() - start) * blocks_per_second
        began = before = time.thread_time()
        while blocks < due and time.perf_counter() < end and not is_done(blocks):
            engine.apply([next(payloads)])
            blocks += BLOCKS
            now = time.thread_time()
            event_cpu = max(event_cpu, now - before)
            before = now
        slice_cpu = max(slice_cpu, before - began)
        await asyncio.sleep(0 if blocks + BLOCKS < due else _TICK_SECONDS)
    seconds = time.perf_counter() - start
    return Fed(blocks, seconds, slice_cpu * 1000, event_cpu * 1000)


class Ticks:
    """A task that wants to run each millisecond, and by how much it was late. Must be closed."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._own: list[float] = []
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._task = asyncio.create_task(self._tick())

    def report(self) -> dict[str, float]:
        """Return how late it was since the last call, in ms; `own` is without the time in which
        the thread could run and the system let others."""
        late, own = np.array(self._late) * 1000, np.array(self._own) * 1000
        self._late, self._own = [], []
        return {
            "late p99": float(np.percentile(late, 99)),
            "late": float(late.max()),
            "own p99": float(np.percentile(own, 99)),
            "own": float(own.max()),
        }

    async def close(self) -> None:
        """End the task."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        os.close(self._schedstat)

    async def _tick(self) -> None:
        while True:
            before, waited_before = time.perf_counter(), self._waited()
            await asyncio.sleep(_TICK_SECONDS)
            late = max(0.0, time.perf_counter() - before - _TICK_SECONDS)
            self._late.append(late)
            self._own.append(max(0.0, late - (self._waited() - waited_before)))

    def _waited(self) -> float:
        """Seconds in which this thread has waited for a core."""
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9


async def growing(plan: IndexPlan) -> dict[str, object]:
    """Return the milliseconds of decisions and of lateness by phase, before and while an index
    grows, and what the growth was."""
    index = MemoryIndex()
    engine = FollowedEngine(NUM_ENGINES, plan.block_size, index)
    engine.find_dialect(endless_payloads(plan.block_size, plan.seed + 1, chain=1))
    tokens = held_prompts(plan, [index])
    prompts = GivenTokens(tokens[0])
    director = idle_director(index, prompts, NUM_ENGINES, plan.block_size)
    payloads = endless_payloads(plan.block_size, plan.seed)  # here: it would be a stall of its own
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    ticks, times = Ticks(), list[float]()
    deciding = asyncio.create_task(_decide(director, prompts, tokens, times))
    await asyncio.sleep(plan.quiet_seconds)
    phases = {"before": ticks.report() | _decisions(times)}
    fed = await feed(
        engine, payloads, plan.blocks_per_second, lambda blocks: blocks >= plan.growth_blocks
    )
    phases["while it grows"] = ticks.report() | _decisions(times)
    if deciding.done():
        deciding.result()
    deciding.cancel()
    await ticks.close()
    return {"phases": phases, **fed._asdict()}


def held_prompts(plan: IndexPlan, indexes: Sequence[Index]) -> list[TokenIds]:
    """Return prompts of PROMPT_BLOCKS blocks, after all engines have stored them in `indexes`."""
    numbers = np.random.default_rng(plan.seed)
    hasher, length = BlockHasher(plan.block_size), PROMPT_BLOCKS * plan.block_size
    made: list[TokenIds] = [
        numbers.integers(0, VOCABULARY, size=length, dtype=np.uint32) for _ in range(_PROMPTS)
    ]
    for tokens in made:
        keys = hasher.keys(tokens)
        for index in indexes:
            index.apply([Store(engine, keys) for engine in range(NUM_ENGINES)])
    return made


async def decide(director: Director) -> None:
    """Decide one request, from its prompt's tokens to the ranked engines."""
    journey = director.open(_HEAD, _BODY)
    await journey.decide()
    journey.close("ok")


async def _decide(
    director: Director, prompts: GivenTokens, tokens: Sequence[TokenIds], times: list[float]
) -> None:
    due, number = time.perf_counter(), 0
    while True:
        prompts.token_ids = tokens[number % len(tokens)]
        await decide(director)
        times.append(time.perf_counter() - due)
        number += 1
        due += _DECISION_SECONDS
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


def _decisions(times: list[float]) -> dict[str, float]:
    """Milliseconds of the decisions since the last call."""
    found = np.array(times) * 1000
    times.clear()
    p50, p99 = np.percentile(found, (50, 99))
    return {"decision p50": float(p50), "decision p99": float(p99), "decision": float(found.max())}
