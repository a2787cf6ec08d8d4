"""What `--state-dir` costs, and what it brings. Each task is a process of its own."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from statistics import median

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EventSource
from inferway.fleet.journal.journal import COMPACT_MIN_BYTES
from inferway.fleet.journal.state_dir import StateDir
from inferway.kv.index.memory import MemoryIndex
from inferway.model import Endpoint
from inferway_bench.index.events import BLOCKS, FollowedEngine, endless_payloads
from inferway_bench.index.plan import IndexPlan
from inferway_bench.index.stalls import Ticks, feed
from inferway_bench.index.workload import NUM_ENGINES

_SWITCH_SECONDS = 0.0005  # as the gateway sets it
_NEVER = 1 << 40  # bytes
_TURN = 32  # batches, after which others have theirs
_COMPACTIONS = 2
_MAX_HELD = 50_000  # blocks of the engine whose journal is compacted, beside those loaded
_SOURCE = EventSource(0, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")


async def journal_cost(plan: IndexPlan, folder: Path) -> dict[str, object]:
    """Return the microseconds of CPU time of a batch, for each round, with a journal and without:
    the same batches by turns; and the bytes of a block in the journal."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    num_batches = plan.events[BLOCKS] // 4
    gc.collect()
    gc.freeze()
    async with _opened(folder, _NEVER) as state_dir:
        kept = _engine(0, MemoryIndex(), state_dir, plan)
        await kept.load()
        kept.begin()
        plain = FollowedEngine(0, plan.block_size, MemoryIndex())
        cpu: dict[FollowedEngine, list[float]] = {kept: [], plain: []}
        made = endless_payloads(plan.block_size, 1)
        for number in range(4 * plan.rounds):
            events = list(islice(made, num_batches))
            for each in (kept, plain) if number % 2 else (plain, kept):
                cpu[each].append(await _applied(each, events) / num_batches * 1e6)
                await asyncio.sleep(0.1)  # for the writer
        assert kept.journal is not None
        ratios = [a / b for a, b in zip(cpu[kept], cpu[plain], strict=True)]
        return {
            "with": cpu[kept],
            "without": cpu[plain],
            "ratio": median(ratios),
            "bytes": kept.journal.stats.bytes / kept.blocks.num_blocks,
        }


async def _applied(engine: FollowedEngine, events: Sequence[bytes]) -> float:
    """The seconds of CPU time."""
    before = time.thread_time()
    for first in range(0, len(events), _TURN):
        engine.apply(events[first : first + _TURN])
        await asyncio.sleep(0)
    return time.thread_time() - before


async def fill(plan: IndexPlan, folder: Path) -> None:
    """Write the journals of eight engines. What is allocated for it must not be there when they are
    loaded: that is another process."""
    async with _opened(folder, _NEVER) as state_dir:
        index = MemoryIndex()
        for number in range(NUM_ENGINES):
            engine = _engine(number, index, state_dir, plan)
            await engine.load()
            engine.begin()
            made = endless_payloads(plan.block_size, number)
            for _ in range(plan.snapshot_blocks // NUM_ENGINES // BLOCKS):
                engine.apply([next(made)])
                await asyncio.sleep(0)
            assert engine.journal is not None
            assert not engine.journal.stats.given_up


async def loading(plan: IndexPlan, folder: Path) -> dict[str, object]:
    """Return how late others are, by phase: before and while the journals are loaded, and then
    while events come in until one journal has been compacted twice."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    payloads = endless_payloads(plan.block_size, 99, max_held=_MAX_HELD)  # would be a stall later
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    ticks = Ticks()
    await asyncio.sleep(plan.quiet_seconds)
    phases = {"before": ticks.report()}
    async with _opened(folder, min(COMPACT_MIN_BYTES, 4 * plan.snapshot_blocks)) as state_dir:
        index = MemoryIndex()
        began = time.perf_counter()
        engines = [_engine(number, index, state_dir, plan) for number in range(NUM_ENGINES)]
        await asyncio.gather(*(engine.load() for engine in engines))
        seconds = time.perf_counter() - began
        phases["while they are loaded"] = ticks.report()
        blocks = sum(engine.blocks.num_blocks for engine in engines)
        engines[0].begin()
        assert engines[0].journal is not None
        stats = engines[0].journal.stats
        fed = await feed(
            engines[0],
            payloads,
            plan.blocks_per_second,
            lambda _: stats.compactions >= _COMPACTIONS,
        )
        phases["afterwards, while a journal is compacted twice"] = ticks.report()
        await ticks.close()
    return {
        "phases": phases,
        "blocks": blocks,
        "seconds": seconds,
        "blocks per second": fed.blocks / fed.seconds,
        "compaction": stats.compact_seconds / stats.compactions,
    }


def _engine(
    number: int, index: MemoryIndex, state_dir: StateDir, plan: IndexPlan
) -> FollowedEngine:
    engine = Engine(EngineSettings(url=f"http://engine-{number}:8000"), ())
    journal = state_dir.journal(engine, _SOURCE, Endpoint(engine.name, engine.url, number))
    return FollowedEngine(number, plan.block_size, index, journal)


@asynccontextmanager
async def _opened(folder: Path, compact_min_bytes: int) -> AsyncIterator[StateDir]:
    state_dir = StateDir(folder, compact_min_bytes=compact_min_bytes)
    state_dir.open()
    try:
        yield state_dir
    finally:
        await state_dir.close()
