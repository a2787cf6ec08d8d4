"""How long the event loop is held while 5 million blocks are kept, loaded and dropped.

python scripts/loop_stalls.py [BLOCKS] [DIRECTORY]

One process follows eight simulated engines' events, as fast as slices of a millisecond let it, and
takes snapshots, as with `state_dir`. Another one loads the last snapshot, and drops the engines one
by one, as when they are removed. Meanwhile a task wakes each millisecond. Shown are, in
milliseconds, by how much it was late, which on a busy machine has the time of others in it; how
much CPU time the loop's thread used between two wakes, which has not; and the longest garbage
collection.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import uvloop

from inferway.app import SWITCH_INTERVAL_SECONDS
from inferway.fleet.state_dir import StateDir
from inferway.fleet.subscriber import give_back
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event_applier import EventApplier, Steps
from inferway.kv.events.holder_snapshot import HolderSnapshot, SavedHolder
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Clear
from inferway.prompts.freed_memory import give_back_large
from inferway.tasks import TimeSlice
from inferway_bench.index.engine import BLOCKS, endless_payloads

ENGINES = 8
BLOCK_SIZE = 16
SNAPSHOT_SECONDS = 5.0  # more often than the gateway
TICK_SECONDS = 0.001


class Ticker:
    """A task that wakes each millisecond, and what it found."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.used: list[float] = []
        self.reported = False
        self.collected = [(0.0, 0)]  # seconds of CPU time, generation
        self._collecting_since = 0.0
        gc.callbacks.append(self._collects)

    async def run(self) -> None:
        while True:
            due, used = time.perf_counter() + TICK_SECONDS, time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            late, used = time.perf_counter() - due, time.thread_time() - used
            if self.reported:  # that took its time
                self.reported = False
                continue
            self.late.append(late)
            self.used.append(used)

    def report(self, phase: str) -> None:
        figures = []
        for name, times in (("late", self.late), ("CPU", self.used)):
            ms = np.array(times) * 1000
            p50, p99, most = np.percentile(ms, (50, 99, 100))
            over = int((ms > 5).sum())
            figures.append(f"{name} {p50:.2f} {p99:.2f} {most:.2f}, {over} of {len(ms)} above 5")
        seconds, generation = max(self.collected)
        longest = f"gc {seconds * 1000:.2f}, generation {generation}"
        print(f"{phase:10} {' | '.join(figures)} | {longest}", flush=True)
        self.late, self.used, self.collected = [], [], [(0.0, 0)]
        self.reported = True

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._collecting_since = now
        else:
            self.collected.append((now - self._collecting_since, info["generation"]))


class Followed:
    """One engine, and the gateway's way from its events to the index (`state_dir.Stream`)."""

    def __init__(self, number: int, state_dir: StateDir, index: MemoryIndex) -> None:
        snapshot = state_dir.stream(f"10.0.0.{number}:8000", "/models/one")
        assert snapshot is not None
        self.snapshot = snapshot
        self.index = index
        self.blocks = EngineBlocks(number, BLOCK_SIZE, holdings=index)
        self.applier = EventApplier(self.blocks, holdings=index)
        self.payloads = endless_payloads(BLOCK_SIZE, number)
        self.seq = 0
        self.turn = asyncio.Lock()  # no event while a snapshot is taken

    @property
    def num_changes(self) -> int:
        return self.seq

    @property
    def losses(self) -> tuple[int, int]:
        return self.applier.stats.forgotten, 0

    async def take_snapshot(self) -> HolderSnapshot | None:
        taken: list[HolderSnapshot] = []
        async with self.turn:
            await self._in_slices(self.applier.take(taken.append))
        return taken[0] if taken else None

    async def restore(self, saved: SavedHolder) -> int:
        await self._in_slices(self.applier.restore(saved))
        return self.blocks.num_blocks

    def count_no_copies(self) -> None:
        self.blocks.count_no_copies()

    async def _in_slices(self, steps: Steps) -> None:
        slice_ = TimeSlice()
        for step in steps:
            if isinstance(step, list):
                self.index.apply(step)
            if slice_.is_over:
                await slice_.rest()

    async def load(self) -> None:
        await self.snapshot.load(self)

    def link(self) -> None:
        """As if the engine had proven what was loaded, or had stored nothing yet."""
        self._do(self.applier.resume())
        self._do(self.applier.replay_ended(True))

    async def drop(self) -> None:
        """As when the engine is removed."""
        self.index.apply([Clear(self.blocks.holder)])
        await give_back(self.blocks)

    def next(self) -> None:
        self._do(self.applier.live(self.seq, next(self.payloads)))
        self.seq += 1

    def _do(self, steps: Steps) -> None:
        for step in steps:
            if isinstance(step, list):
                self.index.apply(step)


@asynccontextmanager
async def followed(directory: Path) -> AsyncIterator[tuple[Ticker, list[Followed]]]:
    """Engines that were followed before, if the directory has a snapshot of them."""
    index, ticker = MemoryIndex(), Ticker()
    state_dir = StateDir(directory, index.links, seconds=SNAPSHOT_SECONDS)
    state_dir.open()
    engines = [Followed(number, state_dir, index) for number in range(ENGINES)]
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    ticker.collected = [(0.0, 0)]
    ticking = asyncio.create_task(ticker.run())
    try:
        yield ticker, engines
    finally:
        ticking.cancel()
        await state_dir.close()


async def keep(directory: Path, blocks: int) -> None:
    async with followed(directory) as (ticker, engines):
        for engine in engines:
            await engine.load()
            engine.link()
        await asyncio.sleep(1)
        ticker.report("idle")
        slice_ = TimeSlice()
        for _ in range(blocks // BLOCKS // ENGINES):
            for engine in engines:
                async with engine.turn:
                    engine.next()
                if slice_.is_over:
                    await slice_.rest()
        ticker.report("kept")


async def load(directory: Path, _: int) -> None:
    async with followed(directory) as (ticker, engines):
        await asyncio.gather(*[engine.load() for engine in engines])
        ticker.report("loaded")
        index = engines[0].index
        print(
            f"           {index.num_keys} blocks, {index.num_bytes() // 1_000_000} MB", flush=True
        )
        while engines:
            engine = engines.pop()
            engine.snapshot.close(engine)
            await engine.drop()
            del engine
            await asyncio.sleep(0)
        ticker.report("dropped")


def main(phase: str, directory: Path, blocks: int) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    give_back_large()
    uvloop.run({"keep": keep, "load": load}[phase](directory, blocks))


if __name__ == "__main__":
    if sys.argv[1:2] in (["keep"], ["load"]):
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
        sys.exit()
    num_blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
    print("phase      ms: p50, p99, longest")
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as place:
        for each in ("keep", "load"):
            subprocess.run([sys.executable, __file__, each, place, str(num_blocks)], check=True)
