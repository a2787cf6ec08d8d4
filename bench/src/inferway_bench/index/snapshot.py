"""What `--state-dir` costs, and what it brings. Each part in a process of its own:

journal_cost     applying an engine's batches with a journal and without, the same ones by turns
compacting       a journal of which two thirds have cancelled out -> a snapshot
loading          what eight engines hold, from their journals, and then one engine's events come in
                 until its journal has been compacted twice; how long others wait meanwhile

`python -m inferway_bench.index.snapshot` is this part of `inferway bench index` alone.
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

from inferway.config import EngineSettings
from inferway.events.apply import EngineBlocks
from inferway.events.follower import EngineFollower
from inferway.events.stream import Replay
from inferway.fleet.discovery import EventSource
from inferway.fleet.engine import Engine
from inferway.fleet.journal.journal import COMPACT_MIN_BYTES, HolderJournal
from inferway.fleet.journal.state_dir import StateDir
from inferway.index.memory import MemoryIndex
from inferway.model import Endpoint
from inferway.tasks import SLICE_SECONDS
from inferway_bench.index.payloads import payload
from inferway_bench.index.plan import Plan
from inferway_bench.index.workload import VOCABULARY, Stored

BLOCK_SIZE = 32
BLOCKS = 16  # per event
CHAIN = 32  # events to a prompt
ENGINES = 8
_SWITCH_SECONDS = 0.0005  # as the gateway sets it
_TICK_SECONDS = 0.001
_NEVER = 1 << 40  # bytes
_TURN = 32  # batches, after which others have theirs
_SOURCE = EventSource(0, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")


class JournalCost(msgspec.Struct, frozen=True):
    """CPU time of the event loop's thread, medians of rounds."""

    us_without: float  # for a batch
    us_with: float
    ratio: float
    bytes_per_block: float


class Compaction(msgspec.Struct, frozen=True):
    """Of one engine's journal, by a process of its own."""

    blocks: int
    journal_bytes_per_block: float
    snapshot_bytes_per_block: float
    seconds: float
    cpu_seconds: float
    peak_mb: float


class Wait(msgspec.Struct, frozen=True):
    """How late a task was that wanted to run each millisecond. `own`: without the time in which
    the event loop's thread could run and the system let others."""

    ticks: int
    late_p99_ms: float
    late_max_ms: float
    own_p99_ms: float
    own_max_ms: float
    num_over_5_ms: int


class Loading(msgspec.Struct, frozen=True):
    """`idle` is before it, `run` while events come in and a journal is compacted."""

    blocks: int
    seconds: float
    idle: Wait
    load: Wait
    run: Wait
    run_blocks_per_second: float
    compactions: int
    compact_seconds: float

    @property
    def blocks_per_second(self) -> float:
        return self.blocks / self.seconds


class Snapshots(msgspec.Struct, frozen=True):
    """All of it."""

    cost: JournalCost
    compaction: Compaction
    loading: Loading


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
        for step in self.follower.resume():
            assert isinstance(step, Replay)
        assert not list(self.follower.replay_ended(True))

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


# the parts, each a worker's task


def journal_cost(plan: Plan) -> JournalCost:
    with tempfile.TemporaryDirectory() as path:
        return uvloop.run(_cost(Path(path), plan.events[BLOCKS] // 4, 4 * plan.rounds))


def compacting(plan: Plan) -> Compaction:
    with tempfile.TemporaryDirectory() as path:
        uvloop.run(_churn(Path(path), plan.snapshot_engine_blocks))
        [directory] = [each for each in Path(path).iterdir() if each.is_dir()]
        return _compact(directory, plan.snapshot_engine_blocks)


def loading(plan: Plan) -> Loading:
    sys.setswitchinterval(_SWITCH_SECONDS)
    with tempfile.TemporaryDirectory() as path:
        _fill_elsewhere(Path(path), plan.snapshot_blocks)
        return uvloop.run(_loading(Path(path), plan))


# what applying costs


async def _cost(path: Path, num_batches: int, rounds: int) -> JournalCost:
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    async with opened(path, _NEVER) as state_dir:
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
                for count, event in enumerate(events):
                    each.apply(event)
                    if count % _TURN == 0:
                        await asyncio.sleep(0)
                cpu[each].append(time.thread_time() - before)
                await asyncio.sleep(0.1)  # for the writer
        journal = with_journal.journal
        assert journal is not None
        ratios = [a / b for a, b in zip(cpu[with_journal], cpu[without], strict=True)]
        return JournalCost(
            us_without=statistics.median(cpu[without]) / num_batches * 1e6,
            us_with=statistics.median(cpu[with_journal]) / num_batches * 1e6,
            ratio=statistics.median(ratios),
            bytes_per_block=journal.stats.bytes / with_journal.blocks.num_blocks,
        )


# what compacting takes


async def _churn(path: Path, blocks: int) -> None:
    """A journal that stores three times `blocks` and removes two thirds of them."""
    async with opened(path, _NEVER) as state_dir:
        engine = holder(0, MemoryIndex(), state_dir)
        await engine.load()
        engine.begin()
        made = batches(seed=2, max_held=blocks)
        for _ in range(5 * blocks // BLOCKS):
            engine.apply(next(made))
            await asyncio.sleep(0)
        assert engine.journal is not None
        assert not engine.journal.stats.given_up


def _compact(directory: Path, blocks: int) -> Compaction:
    """The child tells its own peak: what the system says of it begins with that of its parent."""
    out = directory / "out.tmp"
    code = (
        "import re, sys; from inferway.fleet.journal.compaction import main;"
        "status = main(sys.argv[1:]);"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]);"
        "sys.exit(status)"
    )
    began = time.perf_counter()
    command = [sys.executable, "-c", code, str(directory), "1", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    peak = int(child.stdout.read())
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    assert status == 0
    return Compaction(
        blocks=blocks,
        journal_bytes_per_block=(directory / "00000001.journal").stat().st_size / blocks,
        snapshot_bytes_per_block=out.stat().st_size / blocks,
        seconds=time.perf_counter() - began,
        cpu_seconds=used.ru_utime + used.ru_stime,
        peak_mb=peak / 1024,
    )


# how long others wait


class _Clock:
    """Of this thread: seconds, and those of them in which it waited for a core."""

    def __init__(self) -> None:
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def read(self) -> tuple[float, float]:
        waited = int(os.pread(self._file, 100, 0).split()[1]) / 1e9
        return time.perf_counter(), waited

    def close(self) -> None:
        os.close(self._file)


class _Waiting:
    def __init__(self) -> None:
        self._late: list[float] = []
        self._own: list[float] = []
        self._clock = _Clock()
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            before, waited_before = self._clock.read()
            await asyncio.sleep(_TICK_SECONDS)
            now, waited = self._clock.read()
            late = max(0.0, now - before - _TICK_SECONDS)
            self._late.append(late)
            self._own.append(max(0.0, late - (waited - waited_before)))

    def report(self) -> Wait:
        """Since the last call."""
        late, own = sorted(self._late), sorted(self._own)
        self._late, self._own = [], []
        return Wait(
            ticks=len(late),
            late_p99_ms=late[len(late) * 99 // 100] * 1000,
            late_max_ms=late[-1] * 1000,
            own_p99_ms=own[len(own) * 99 // 100] * 1000,
            own_max_ms=own[-1] * 1000,
            num_over_5_ms=sum(each > 0.005 for each in late),
        )

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._clock.close()


def _fill_elsewhere(path: Path, blocks: int) -> None:
    """What was allocated to fill the directory must not be there when it is loaded."""
    code = (
        "import sys, uvloop; from pathlib import Path;"
        "from inferway_bench.index.snapshot import fill;"
        "uvloop.run(fill(Path(sys.argv[1]), int(sys.argv[2])))"
    )
    subprocess.run([sys.executable, "-c", code, str(path), str(blocks)], check=True)


async def fill(path: Path, blocks: int) -> None:
    """`blocks` of all engines together."""
    async with opened(path, _NEVER) as state_dir:
        index = MemoryIndex()
        for number in range(ENGINES):
            engine = holder(number, index, state_dir)
            await engine.load()
            engine.begin()
            made = batches(seed=number)
            for _ in range(blocks // ENGINES // BLOCKS):
                engine.apply(next(made))
                await asyncio.sleep(0)
            assert engine.journal is not None
            assert not engine.journal.stats.given_up


async def _loading(path: Path, plan: Plan) -> Loading:
    compact_min_bytes = min(COMPACT_MIN_BYTES, 4 * plan.snapshot_blocks)
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    waiting = _Waiting()
    await asyncio.sleep(plan.quiet_seconds)
    idle = waiting.report()
    async with opened(path, compact_min_bytes) as state_dir:
        index = MemoryIndex()
        began = time.perf_counter()
        engines = [holder(number, index, state_dir) for number in range(ENGINES)]
        await asyncio.gather(*(engine.load() for engine in engines))
        seconds, load = time.perf_counter() - began, waiting.report()
        blocks = sum(engine.blocks.num_blocks for engine in engines)
        rate = await _run(engines[0], plan.blocks_per_second)
        run = waiting.report()
        await waiting.close()
        assert engines[0].journal is not None
        stats = engines[0].journal.stats
    return Loading(
        blocks=blocks,
        seconds=seconds,
        idle=idle,
        load=load,
        run=run,
        run_blocks_per_second=rate,
        compactions=stats.compactions,
        compact_seconds=stats.compact_seconds,
    )


async def _run(engine: Holder, blocks_per_second: int, num_compactions: int = 2) -> float:
    """Until its journal has been compacted so often; the rate reached."""
    journal = engine.journal
    assert journal is not None
    # a new life of the link: all that was loaded counts as proven
    engine.follower = EngineFollower(engine.blocks, on_batch_done=journal.batch_done)
    engine.begin()
    made = batches(seed=99, max_held=50_000)
    began, done = time.perf_counter(), 0
    while journal.stats.compactions < num_compactions:
        end = time.perf_counter() + SLICE_SECONDS
        due = (time.perf_counter() - began) * blocks_per_second
        while done < due and time.perf_counter() < end:
            engine.apply(next(made))
            done += BLOCKS
        await asyncio.sleep(0 if done + BLOCKS < due else _TICK_SECONDS)
    return done / (time.perf_counter() - began)


PARTS = ("journal_cost", "compacting", "loading")


def main() -> None:
    plan = Plan()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=plan.snapshot_blocks, help="to load")
    given = parser.parse_args()
    plan = msgspec.structs.replace(
        plan, snapshot_blocks=given.blocks, snapshot_engine_blocks=given.blocks // ENGINES
    )
    for part in PARTS:
        worker = [sys.executable, "-m", "inferway_bench.index.worker", part]
        command = [*worker, msgspec.json.encode(plan).decode()]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        sys.stdout.write(f"{part}: {msgspec.json.format(found.decode(), indent=2)}\n")


if __name__ == "__main__":
    main()
