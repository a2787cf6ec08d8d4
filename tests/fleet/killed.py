"""A gateway with a `--state-dir` for somebody to kill: `python -m tests.fleet.killed DIRECTORY`.

It follows an engine whose batches anybody can make again (`batches`), writes snapshots all the
time, and prints a line after each.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
from tests.fleet.lives import FILE, Life, life, removed, stored

from inferway.kv.events.event_applier import Steps
from inferway.kv.events.stream import Replay, StreamState, digest_of

PROMPTS = 40
LENGTH = 60  # blocks
SNAPSHOT_SECONDS = 0.01


def batches() -> Iterator[bytes]:
    """What the engine publishes, from its start: prompts grow and are cut."""
    numbers = Random(11)
    lengths = [0] * PROMPTS
    while True:
        prompt = numbers.randrange(PROMPTS)
        have = lengths[prompt]
        if have and numbers.random() < 0.45:
            lengths[prompt] = numbers.randrange(have)
            events = [removed(block, prompt) for block in range(have - 1, lengths[prompt] - 1, -1)]
        else:
            lengths[prompt] = min(LENGTH, have + numbers.randrange(1, 20))
            events = [stored(have, lengths[prompt], prompt)] if lengths[prompt] > have else []
        yield msgspec.msgpack.encode([1.0, events, 0])


def believed(life: Life) -> list[int]:
    matched = [life.matched(prompt) for prompt in range(PROMPTS)]
    return [*matched, life.index.num_blocks(life.blocks.holder), life.blocks.num_blocks]


def apply(life: Life, seq: int, payload: bytes) -> None:
    do(life, life.follower.live(seq, payload))


def do(life: Life, steps: Steps) -> None:
    """What replays are asked for, `link` knows."""
    for step in steps:
        if not isinstance(step, Replay):
            life.index.apply(step)


def believed_after(num_batches: int) -> list[int]:
    """By a gateway that was never killed."""
    life = Life()
    link(life, num_batches=0)
    for seq, payload in enumerate(islice(batches(), num_batches)):
        apply(life, seq, payload)
    return believed(life)


def link(life: Life, num_batches: int) -> None:
    """The engine's replay has only the last of so many batches."""
    do(life, life.follower.resume())
    for last in islice(batches(), max(0, num_batches - 1), num_batches):
        do(life, life.follower.replayed(num_batches - 1, last))
    do(life, life.follower.replay_ended(True))
    assert life.follower.state is StreamState.EXACT


def num_loaded(life: Life) -> int:
    """Batches."""
    seq = life.follower.stream.last_seq
    if seq is None:
        return 0
    [last] = islice(batches(), seq, seq + 1)
    assert life.follower.stream.digest == digest_of(last)
    return seq + 1


async def follow(path: Path) -> None:
    async with life(path, seconds=SNAPSHOT_SECONDS) as run:
        begin = num_loaded(run)
        link(run, begin)
        written = number_of_file(path / FILE)
        for seq, payload in enumerate(islice(batches(), begin, None), begin):
            apply(run, seq, payload)
            await asyncio.sleep(0.001)
            if written != (written := number_of_file(path / FILE)):
                print(seq, flush=True)


def number_of_file(path: Path) -> int:
    """Another one for each new file; 0: there is none."""
    return path.stat().st_ino if path.exists() else 0


if __name__ == "__main__":
    asyncio.run(follow(Path(sys.argv[1])))
