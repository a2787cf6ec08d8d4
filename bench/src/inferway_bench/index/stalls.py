"""How long everybody else waits while the index grows: one event loop, as in the gateway.

Three tasks share it. One brings an engine's events at their rate and gives others a turn every
2 ms, as `fleet.subscriber` does. One wakes every millisecond and says by how much it was late.
One decides a request every 5 ms with the real director (token ids -> keys -> match -> scores);
its time counts from when it was due, so a stall is in it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import uvloop

from inferway.blocks.keys import BlockHasher
from inferway.director import Director
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Store
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import RequestHead, TokenIds
from inferway.scheduling.load import load_scheduling
from inferway.steps.match import Matcher
from inferway.tasks import SLICE_SECONDS
from inferway_bench.index.eight_engines import EightEngines, GivenTokens
from inferway_bench.index.followed import FollowedEngine
from inferway_bench.index.payloads import endless_payloads
from inferway_bench.index.plan import Plan
from inferway_bench.index.workload import NUM_ENGINES, VOCABULARY

BLOCKS = 16  # per event
CHAIN = 32  # events to a prompt
_PROMPTS = 50
_PROMPT_BLOCKS = 512
_DECISION_SECONDS = 0.005
_TICK_SECONDS = 0.001
_BODY = b'{"model": "m", "prompt": "given"}'
_HEAD = RequestHead("POST", "/v1/completions", "", ())


class Phase(msgspec.Struct, frozen=True):
    """Milliseconds."""

    seconds: float
    decision_p50_ms: float
    decision_p99_ms: float
    decision_max_ms: float
    late_p99_ms: float
    late_max_ms: float


class Stalls(msgspec.Struct, frozen=True):
    """`slice_cpu_ms`: CPU time of the longest time that events held the loop. Unlike the wall
    time that others were late, it does not count what other processes took."""

    blocks: int
    blocks_per_second: float  # reached
    slice_cpu_ms: float
    longest_event_cpu_ms: float
    quiet: Phase
    growing: Phase


def stalls(plan: Plan) -> Stalls:
    return uvloop.run(_Growing(plan).run())


class _Growing:
    """The three tasks and what they have seen."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._index = MemoryIndex()
        self._engine = FollowedEngine(NUM_ENGINES, plan.block_size, self._index)
        self._engine.find_dialect(endless_payloads(BLOCKS, plan.block_size, 1, plan.seed + 1))
        self._tokens = list(_prompts(plan))
        hasher = BlockHasher(plan.block_size)
        for tokens in self._tokens:
            keys = hasher.keys(tokens)
            self._index.apply([Store(engine, keys) for engine in range(NUM_ENGINES)])
        self._prompts = GivenTokens(self._tokens[0])
        fleet = EightEngines(plan.block_size, self._prompts)
        self._director = Director(
            fleet,
            Matcher(self._index, SpeculativeOverlay()),
            load_scheduling(None),
            time.monotonic,
        )
        self._late: list[float] = []
        self._decisions: list[float] = []
        self._slice_cpu = 0.0
        self._event_cpu = 0.0

    async def run(self) -> Stalls:
        gc.collect()
        gc.freeze()  # as the gateway does when it has started
        others = [asyncio.create_task(self._tick()), asyncio.create_task(self._decide())]
        await asyncio.sleep(self._plan.quiet_seconds)
        _raise_from(others)
        quiet = self._phase(self._plan.quiet_seconds)
        start = time.perf_counter()
        await self._feed()
        seconds = time.perf_counter() - start
        _raise_from(others)
        for task in others:
            task.cancel()
        blocks = self._engine.blocks.num_blocks
        return Stalls(
            blocks=blocks,
            blocks_per_second=blocks / seconds,
            slice_cpu_ms=self._slice_cpu * 1000,
            longest_event_cpu_ms=self._event_cpu * 1000,
            quiet=quiet,
            growing=self._phase(seconds),
        )

    def _phase(self, seconds: float) -> Phase:
        """What was seen since the last call."""
        late, decisions = np.array(self._late) * 1000, np.array(self._decisions) * 1000
        self._late, self._decisions = [], []
        return Phase(
            seconds=seconds,
            decision_p50_ms=float(np.percentile(decisions, 50)),
            decision_p99_ms=float(np.percentile(decisions, 99)),
            decision_max_ms=float(decisions.max()),
            late_p99_ms=float(np.percentile(late, 99)),
            late_max_ms=float(late.max()),
        )

    async def _feed(self) -> None:
        payloads = endless_payloads(BLOCKS, self._plan.block_size, CHAIN, self._plan.seed)
        start = time.perf_counter()
        stored = 0
        while stored < self._plan.growth_blocks:
            due = (time.perf_counter() - start) * self._plan.blocks_per_second
            stored += self._slice(payloads, min(due, self._plan.growth_blocks) - stored)
            await asyncio.sleep(0 if stored + BLOCKS < due else _TICK_SECONDS)

    def _slice(self, payloads: Iterator[bytes], blocks: float) -> int:
        """Applies so many blocks' events, or what can be done before others have their turn."""
        stored, end = 0, time.perf_counter() + SLICE_SECONDS
        began = before = time.thread_time()
        while stored < blocks and time.perf_counter() < end:
            self._engine.apply([next(payloads)])
            stored += BLOCKS
            now = time.thread_time()
            self._event_cpu = max(self._event_cpu, now - before)
            before = now
        self._slice_cpu = max(self._slice_cpu, before - began)
        return stored

    async def _tick(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_TICK_SECONDS)
            self._late.append(time.perf_counter() - before - _TICK_SECONDS)

    async def _decide(self) -> None:
        due, number = time.perf_counter(), 0
        while True:
            self._prompts.token_ids = self._tokens[number % _PROMPTS]
            journey = self._director.open(_HEAD, _BODY)
            await journey.decide()
            journey.close("ok")
            self._decisions.append(time.perf_counter() - due)
            number += 1
            due += _DECISION_SECONDS
            await asyncio.sleep(max(0.0, due - time.perf_counter()))


def _raise_from(tasks: Sequence[asyncio.Task[None]]) -> None:
    """What ended one of them before its time."""
    for task in tasks:
        if task.done():
            task.result()


def _prompts(plan: Plan) -> Iterator[TokenIds]:
    numbers = np.random.default_rng(plan.seed)
    for _ in range(_PROMPTS):
        length = _PROMPT_BLOCKS * plan.block_size
        yield numbers.integers(0, VOCABULARY, size=length, dtype=np.uint32)
