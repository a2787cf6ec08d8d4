"""`python -m inferway.bench.index.snapshot`: what `--state-dir` costs, and what it brings.

hot path   applying an engine's batches with a journal and without, the same ones by turns
compact    a journal of which two thirds have cancelled out -> a snapshot
load       what eight engines hold, from their journals; and how long others wait meanwhile
run        the same, while one engine's events come in and its journal is compacted
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvloop

from inferway.bench.index.payloads import payload
from inferway.bench.index.workload import VOCABULARY, Stored
from inferway.config import EngineSettings
from inferway.events.apply import EngineBlocks
from inferway.events.follower import EngineFollower
from inferway.events.stream import Replay
from inferway.fleet.discovery import EventSource
from inferway.fleet.engine import Engine
from inferway.fleet.journal.journal import HolderJournal
from inferway.fleet.journal.state_dir import StateDir
from inferway.fleet.subscriber import SLICE_SECONDS
from inferway.index.memory import MemoryIndex
from inferway.model import Endpoint

BLOCK_SIZE = 32
BLOCKS = 16  # per event
CHAIN = 32  # events to a prompt
ENGINES = 8
BLOCKS_PER_SECOND = 100_000
_TICK_SECONDS = 0.001
_SOURCE = EventSource(0, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")


class Holder:
    """One engine's events, and who follows them."""

    def __init__(self, number: int, index: MemoryIndex, journal: HolderJournal | None) -> None:
        self.journal = journal
        self.index = index
        self.blocks = EngineBlocks(
            number,
            BLOCK_SIZE,
            holdings=index,
            on_record=journal.record if journal is not None else None,
        )
        self.follower = EngineFollower(
            self.blocks,
            holdings=index,
            on_batch_done=journal.batch_done if journal is not None else None,
        )
        self._seq = 0

    async def load(self) -> None:
        assert self.journal is not None
        await self.journal.load(self.follower, self.index)

    def begin(self) -> None:
        """Nothing to compare with: the link is up, and the engine's replay is empty."""
        for steps in (self.follower.resume(), self.follower.replay_ended(True)):
            for step in steps:
                assert isinstance(step, list | Replay)

    def apply(self, batch: bytes) -> None:
        for step in self.follower.live(self._seq, batch):
            assert isinstance(step, list)
            self.index.apply(step)
        self._seq += 1


def batches(seed: int, max_held: int | None = None) -> Iterator[bytes]:
    """New blocks without end; beyond `max_held` as many old ones are removed."""
    numbers = random.Random(seed)
    tokens = [numbers.randrange(VOCABULARY) for _ in range(BLOCKS * BLOCK_SIZE)]
    held: deque[list[int]] = deque()
    parent: int | None = None
    for count in range(sys.maxsize):
        hashes = [numbers.getrandbits(64) for _ in range(BLOCKS)]
        tokens[0] = numbers.getrandbits(32)
        yield payload(Stored(hashes, parent if count % CHAIN else None, tokens), BLOCK_SIZE)
        parent = hashes[-1]
        if max_held is not None:
            held.append(hashes)
            if len(held) * BLOCKS > max_held:
                event = {"type": "BlockRemoved", "block_hashes": held.popleft(), "medium": "GPU"}
                yield msgspec.msgpack.encode([1700000000.5, [event], 0])


def holder(number: int, index: MemoryIndex, state_dir: StateDir) -> Holder:
    engine = Engine(EngineSettings(url=f"http://engine-{number}:8000"), ())
    endpoint = Endpoint(engine.name, engine.url, number)
    return Holder(number, index, state_dir.journal(engine, _SOURCE, endpoint))


@asynccontextmanager
async def opened(path: Path, compact_min_bytes: int) -> AsyncIterator[StateDir]:
    state_dir = StateDir(path, compact_min_bytes=compact_min_bytes)
    state_dir.open()
    try:
        yield state_dir
    finally:
        await state_dir.close()


# what is measured


async def hot_path(path: Path, num_batches: int = 1500, rounds: int = 20) -> dict[str, float]:
    """CPU time of the event loop's thread; medians of rounds."""
    async with opened(path, 1 << 40) as state_dir:
        with_journal, without = holder(0, MemoryIndex(), state_dir), Holder(0, MemoryIndex(), None)
        await with_journal.load()
        cpu: dict[Holder, list[float]] = {with_journal: [], without: []}
        for each in cpu:
            each.begin()
        made = batches(seed=1)
        for number in range(rounds):
            events = [next(made) for _ in range(num_batches)]
            for each in (with_journal, without) if number % 2 else (without, with_journal):
                before = time.thread_time()
                for event in events:
                    each.apply(event)
                cpu[each].append(time.thread_time() - before)
                await asyncio.sleep(0.1)  # for the writer
        journal = with_journal.journal
        assert journal is not None
        blocks = num_batches * rounds * BLOCKS
        added = [a / b for a, b in zip(cpu[with_journal], cpu[without], strict=True)]
        return {
            "us_per_batch_without": statistics.median(cpu[without]) / num_batches * 1e6,
            "us_per_batch_with": statistics.median(cpu[with_journal]) / num_batches * 1e6,
            "ratio": statistics.median(added),
            "bytes_per_block": journal.stats.bytes / blocks,
        }


async def compaction(path: Path, blocks: int) -> dict[str, float]:
    """A journal that stores three times `blocks` and removes two thirds of them."""
    async with opened(path, 1 << 40) as state_dir:
        engine = holder(0, MemoryIndex(), state_dir)
        await engine.load()
        engine.begin()
        made = batches(seed=2, max_held=blocks)
        for _ in range(5 * blocks // BLOCKS):
            engine.apply(next(made))
            await asyncio.sleep(0)
        assert engine.journal is not None
        await engine.journal.flush()
    [directory] = [each for each in path.iterdir() if each.is_dir()]
    out = directory / "out.tmp"
    module = "inferway.fleet.journal.compact"
    command = [sys.executable, "-m", module, str(directory), "1", str(out)]
    began = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    assert status == 0
    return {
        "blocks": engine.blocks.num_blocks,
        "journal_mb": (directory / "00000001.journal").stat().st_size / 1e6,
        "snapshot_bytes_per_block": out.stat().st_size / engine.blocks.num_blocks,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
    }


class Waiting:
    """How long others waited for the event loop, and what CPU time its thread spent meanwhile:
    the latter leaves out what other processes took."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.cpu: list[float] = []

    async def tick(self) -> None:
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(_TICK_SECONDS)
            self.late.append(time.perf_counter() - before - _TICK_SECONDS)
            self.cpu.append(time.thread_time() - cpu)

    def report(self) -> dict[str, float]:
        late, cpu = sorted(self.late), sorted(self.cpu)
        self.late, self.cpu = [], []
        return {
            "late_p99_ms": late[len(late) * 99 // 100] * 1000,
            "late_max_ms": late[-1] * 1000,
            "late_over_5_ms": sum(each > 0.005 for each in late),
            "cpu_max_ms": cpu[-1] * 1000,
            "ticks": len(late),
        }


async def fill(path: Path, blocks: int) -> None:
    async with opened(path, 1 << 40) as state_dir:
        index = MemoryIndex()
        for number in range(ENGINES):
            engine = holder(number, index, state_dir)
            await engine.load()
            engine.begin()
            made = batches(seed=number)
            for _ in range(blocks // ENGINES // BLOCKS):
                engine.apply(next(made))
                await asyncio.sleep(0)


async def loading(path: Path, min_bytes: int) -> dict[str, dict[str, float]]:
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    waiting = Waiting()
    ticking = asyncio.create_task(waiting.tick())
    await asyncio.sleep(2)
    found = {"idle": waiting.report()}
    async with opened(path, min_bytes) as state_dir:
        index = MemoryIndex()
        began = time.perf_counter()
        engines = [holder(number, index, state_dir) for number in range(ENGINES)]
        await asyncio.gather(*(engine.load() for engine in engines))
        seconds, blocks = time.perf_counter() - began, sum(e.blocks.num_blocks for e in engines)
        rates = {"blocks": blocks, "seconds": seconds, "blocks_per_second": blocks / seconds}
        found["load"] = rates | waiting.report()
        found["run"] = await running(engines[0], waiting)
    ticking.cancel()
    return found


async def running(engine: Holder, waiting: Waiting) -> dict[str, float]:
    """Until its journal has been compacted twice."""
    journal = engine.journal
    assert journal is not None
    follower = EngineFollower(engine.blocks, on_batch_done=journal.batch_done)
    engine.follower = follower  # a new life of the link: all that was loaded counts as proven
    engine.begin()
    made = batches(seed=99, max_held=50_000)
    began, done = time.perf_counter(), 0
    while journal.stats.compactions < 2:
        end = time.perf_counter() + SLICE_SECONDS
        due = (time.perf_counter() - began) * BLOCKS_PER_SECOND
        while done < due and time.perf_counter() < end:
            engine.apply(next(made))
            done += BLOCKS
        await asyncio.sleep(0 if done + BLOCKS < due else _TICK_SECONDS)
    return {
        "seconds": time.perf_counter() - began,
        "blocks_per_second": done / (time.perf_counter() - began),
        "compactions": journal.stats.compactions,
        "compact_seconds": journal.stats.compact_seconds,
    } | waiting.report()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=5_000_000, help="to load, all engines'")
    parser.add_argument("--compact-blocks", type=int, default=1_000_000, help="of one engine")
    parser.add_argument("--directory", type=Path, help="on the disk that is to be measured")
    given = parser.parse_args()
    sys.setswitchinterval(0.0005)  # as the gateway does
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        path = Path(name)
        found: dict[str, object] = {"hot_path": uvloop.run(hot_path(path / "hot"))}
        found["compact"] = uvloop.run(compaction(path / "compact", given.compact_blocks))
        _in_a_process_of_its_own(path, given.blocks)
        found |= uvloop.run(loading(path / "load", 8 << 20))
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


def _in_a_process_of_its_own(path: Path, blocks: int) -> None:
    """What was allocated to fill the directory must not be there when it is loaded."""
    code = (
        "import sys, uvloop; from pathlib import Path;"
        "from inferway.bench.index.snapshot import fill;"
        "uvloop.run(fill(Path(sys.argv[1]), int(sys.argv[2])))"
    )
    subprocess.run([sys.executable, "-c", code, str(path / "load"), str(blocks)], check=True)


if __name__ == "__main__":
    main()
