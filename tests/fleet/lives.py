"""An engine that publishes batches, and lives of a gateway that follows it; no sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferway.fleet.state_dir import StateDir
from inferway.fleet.stream_figures import StreamSnapshot
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event_applier import EventApplier, Steps
from inferway.kv.events.holder_snapshot import HolderSnapshot, SavedHolder
from inferway.kv.events.stream import Replay
from inferway.kv.index.memory import MemoryIndex

HOLDER = 0
SIZE = 2
NAME = "10.0.0.1:8000"
FILE = "10.0.0.1%3A8000.snapshot"
MODEL = "/models/one"


class Publisher:
    """What an engine has published, as its replay socket has it."""

    def __init__(self, life: float = 1.0) -> None:
        self.life = life
        self.batches: dict[int, bytes] = {}
        self._next = 0

    def publish(self, *events: dict[str, Any]) -> tuple[int, bytes]:
        seq = self._next
        self._next += 1
        self.batches[seq] = msgspec.msgpack.encode([self.life + seq, list(events), 0])
        return seq, self.batches[seq]

    def lose(self, below: int) -> None:
        """Its buffer has room for newer ones only."""
        self.batches = {seq: batch for seq, batch in self.batches.items() if seq >= below}


def stored(first: int, last: int, prompt: int = 0) -> dict[str, Any]:
    """Blocks first..last-1 of a prompt."""
    hashes = [1000 * (prompt + 1) + i for i in range(-1, last)]
    return {
        "type": "BlockStored",
        "block_hashes": hashes[first + 1 :],
        "parent_block_hash": hashes[first] if first else None,
        "token_ids": [1000 * prompt + i for i in range(first * SIZE, last * SIZE)],
        "block_size": SIZE,
        "medium": "GPU",
    }


def removed(block: int, prompt: int = 0) -> dict[str, Any]:
    return {
        "type": "BlockRemoved",
        "block_hashes": [1000 * (prompt + 1) + block],
        "medium": "GPU",
    }


class Life:
    """One run of a gateway, as far as it concerns one engine (`stream_figures.Stream`)."""

    def __init__(self, snapshot: StreamSnapshot | None = None) -> None:
        self.snapshot = snapshot
        self.index = MemoryIndex()
        self.blocks = EngineBlocks(HOLDER, SIZE, holdings=self.index)
        self.follower = EventApplier(self.blocks, holdings=self.index)
        self.replays: list[int] = []  # from which number on

    @property
    def num_changes(self) -> int:
        return self.follower.stats.batches + self.follower.stats.forgotten

    @property
    def losses(self) -> tuple[int, int]:
        return self.follower.stats.forgotten, self.index.num_evicted(HOLDER)

    async def take_snapshot(self) -> HolderSnapshot | None:
        taken: list[HolderSnapshot] = []
        await asyncio.sleep(0)
        for step in self.follower.take(taken.append):
            assert step == []
        return taken[0] if taken else None

    async def restore(self, saved: SavedHolder) -> int:
        self._take(self.follower.restore(saved))
        return self.blocks.num_blocks

    def count_no_copies(self) -> None:
        assert self.snapshot is not None
        self.snapshot.count_no_copies()
        self.blocks.count_no_copies()

    async def load(self) -> None:
        assert self.snapshot is not None
        await self.snapshot.load(self)

    def link(self, publisher: Publisher) -> None:
        """The engine is there."""
        self._do(self.follower.resume(), publisher)

    def live(self, seq: int, payload: bytes, publisher: Publisher) -> None:
        self._do(self.follower.live(seq, payload), publisher)

    def _do(self, steps: Steps, publisher: Publisher) -> None:
        asked = self._take(steps)
        while asked is not None:
            self.replays.append(asked)
            assert len(self.replays) < 20
            answers = [item for item in publisher.batches.items() if item[0] >= asked]
            asked = None
            for seq, payload in answers:
                asked = self._take(self.follower.replayed(seq, payload))
                if asked is not None:
                    break  # another replay takes the place of this one
            else:
                asked = self._take(self.follower.replay_ended(True))

    def _take(self, steps: Steps) -> int | None:
        """Does them; where the replay begins that is asked for, if one is."""
        asked = None
        for step in steps:
            if isinstance(step, Replay):
                asked = step.from_seq
            else:
                self.index.apply(step)
        return asked

    def matched(self, prompt: int = 0) -> int:
        tokens = np.arange(1000 * prompt, 1000 * prompt + 400, dtype=np.uint32)
        return self.index.match_now(BlockHasher(SIZE).keys(tokens)).blocks.get(HOLDER, 0)


@asynccontextmanager
async def opened(
    path: Path, index: MemoryIndex | None = None, seconds: float = 3600.0, later: float = 0.0
) -> AsyncIterator[StateDir]:
    """A directory in which snapshots are taken at its end, or every so many seconds; so much
    `later` than now."""
    links = (index or MemoryIndex()).links
    state_dir = StateDir(path, links, seconds=seconds, clock=lambda: time.time() + later)
    state_dir.open()
    try:
        yield state_dir
    finally:
        await state_dir.close()


@asynccontextmanager
async def life(
    path: Path,
    model: str = MODEL,
    *,
    name: str = NAME,
    heal: bool = False,
    seconds: float = 3600.0,
    later: float = 0.0,
) -> AsyncIterator[Life]:
    """A gateway that has loaded what was kept, and is not killed."""
    run = Life()
    async with opened(path, run.index, seconds, later) as state_dir:
        run.snapshot = state_dir.stream(name, model)
        if heal:
            run.count_no_copies()
        await run.load()
        yield run
