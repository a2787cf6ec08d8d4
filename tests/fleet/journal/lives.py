"""An engine that publishes batches, and lives of a gateway that follows it; no sockets."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.event_source import EventSource
from inferway.fleet.full_reports import FullReporter
from inferway.fleet.journal.journal import HolderJournal
from inferway.fleet.journal.state_dir import StateDir
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event_applier import EventApplier, Steps
from inferway.kv.events.stream import Replay
from inferway.kv.index.memory import MemoryIndex
from inferway.model import Endpoint

HOLDER = 0
SIZE = 2
SOURCE = EventSource(0, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
ENDPOINT = Endpoint("10.0.0.1:8000", "http://10.0.0.1:8000", HOLDER)


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
    """One run of a gateway, as far as it concerns one engine."""

    def __init__(self, journal: HolderJournal | None, index: MemoryIndex | None = None) -> None:
        self.journal = journal
        self.index = index or MemoryIndex()
        self.blocks = EngineBlocks(
            HOLDER,
            SIZE,
            holdings=self.index,
            on_record=journal.record if journal is not None else None,
        )
        self.follower = EventApplier(
            self.blocks,
            holdings=self.index,
            on_batch_done=journal.batch_done if journal is not None else None,
        )
        self.replays: list[int] = []  # from which number on

    async def load(self) -> None:
        assert self.journal is not None
        await self.journal.load(self.follower, self.index)

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


def engine(model: str = "/models/one") -> Engine:
    facts = EngineFacts((ModelCard("m", model, None, 4096),), (SOURCE,), SIZE, ())
    return Engine(EngineSettings(url=ENDPOINT.url), (), facts)


@asynccontextmanager
async def not_loaded(
    path: Path,
    model: str = "/models/one",
    heal: float = 0.0,
    index: MemoryIndex | None = None,
    **options: Any,
) -> AsyncIterator[Life]:
    """Closed in the end."""
    state_dir = StateDir(path, **options)
    state_dir.open()
    run = Life(state_dir.journal(engine(model), SOURCE, ENDPOINT), index)
    FullReporter(heal).attend(run.blocks)
    try:
        yield run
    finally:
        await state_dir.close()


@asynccontextmanager
async def life(path: Path, model: str = "/models/one", **options: Any) -> AsyncIterator[Life]:
    """Loaded; closed in the end."""
    async with not_loaded(path, model, **options) as run:
        await run.load()
        yield run


async def written(run: Life, path: Path, copy: Path) -> Path:
    """What a SIGKILL would leave now of the directory, as a copy."""
    assert run.journal is not None
    await run.journal.flush()
    shutil.copytree(path, copy)
    return copy


def files(path: Path) -> list[Path]:
    """Of the one holder, oldest first."""
    [directory] = [each for each in path.iterdir() if each.is_dir()]
    return sorted(directory.iterdir())
