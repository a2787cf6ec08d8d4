"""The blocks that both systems are given, and what both are timed with.

Standard library only: the peer has a virtual environment of its own. A prompt's blocks are random
numbers, the same for both: our keys are the peer's "token hashes". What makes a shape is how far
each of the eight engines holds the prompt.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

NUM_ENGINES = 8
VOCABULARY = 128_000
SHAPES = {
    "whole": "all eight engines hold the whole prompt",
    "detached": "as *whole*, but the engines have lost single blocks at random places, so that 1 % "
    "of all their blocks come after a lost one",
    "frayed": "the same 1 %, but in every prompt each engine has lost a different block near its "
    "end",
    "session": "one engine holds the whole conversation, all hold its first sixteenth",
    "random": "each engine holds a random share of the prompt: the worst case",
}

_In = TypeVar("_In")


@dataclass(frozen=True)
class Held:
    """One prompt: engine i has stored `lengths[i]` of its blocks, and then perhaps removed one."""

    blocks: list[int]
    lengths: list[int]
    removed: list[int | None]

    def matched(self, engine: int) -> int:
        """Return the number of blocks that a right answer says for `engine`."""
        removed = self.removed[engine]
        return self.lengths[engine] if removed is None else removed


@dataclass(frozen=True)
class Stored:
    """A BlockStored event of one engine."""

    hashes: list[int]
    parent: int | None
    tokens: Any  # a list of token ids, or one that is encoded


def prompts(shape: str, num_prompts: int, num_blocks: int, seed: int) -> list[Held]:
    """Return prompts of `num_blocks` that the engines hold as SHAPES says."""
    numbers = random.Random(f"{shape} {num_blocks} {seed}")
    made = [
        Held(
            [numbers.getrandbits(64) for _ in range(num_blocks)],
            _lengths(shape, numbers, num_blocks),
            [None] * NUM_ENGINES,
        )
        for _ in range(num_prompts)
    ]
    if shape == "detached":
        _lose_anywhere(made, num_blocks, numbers)
    if shape == "frayed":
        _lose_near_the_end(made, num_blocks, numbers)
    return made


def _lengths(shape: str, numbers: random.Random, blocks: int) -> list[int]:
    if shape == "random":
        return [numbers.randint(1, blocks) for _ in range(NUM_ENGINES)]
    if shape == "session":
        lengths = [blocks // 16] * NUM_ENGINES
        lengths[numbers.randrange(NUM_ENGINES)] = blocks - 1
        return lengths
    return [blocks] * NUM_ENGINES


def _lose_anywhere(made: list[Held], num_blocks: int, numbers: random.Random) -> None:
    detached, total = 0, len(made) * NUM_ENGINES * num_blocks
    while detached * 100 < total:
        prompt, engine = numbers.choice(made), numbers.randrange(NUM_ENGINES)
        if prompt.removed[engine] is None:
            lost = prompt.removed[engine] = numbers.randrange(num_blocks - 1)
            detached += num_blocks - 1 - lost


def _lose_near_the_end(made: list[Held], num_blocks: int, numbers: random.Random) -> None:
    mean = max(5, num_blocks // 100)
    behind = [mean + step for step in (-4, -3, -2, -1, 1, 2, 3, 4)]
    for prompt in made:
        numbers.shuffle(behind)
        prompt.removed[:] = [num_blocks - 1 - n for n in behind]


def events(num_events: int, num_blocks: int, block_size: int, seed: int) -> Iterator[Stored]:
    """Yield the events of prompts of 128 blocks, which are stored `num_blocks` at a time."""
    numbers = random.Random(f"events {num_blocks} {seed}")
    parent: int | None = None
    for i in range(num_events):
        if i % (128 // num_blocks) == 0:
            parent = None
        hashes = [numbers.getrandbits(64) for _ in range(num_blocks)]
        tokens = [numbers.randrange(VOCABULARY) for _ in range(num_blocks * block_size)]
        yield Stored(hashes, parent, tokens)
        parent = hashes[-1]


def stay_on_one_core() -> None:
    """Pin this process to the last of the cores that it may use."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def times_us(step: Callable[[_In], object], inputs: Sequence[_In]) -> list[float]:
    """Return the microseconds of each call."""
    times = []
    for value in inputs:
        start = time.perf_counter_ns()
        step(value)
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def typical_us(step: Callable[[_In], object], inputs: Sequence[_In], repeats: int) -> float:
    """Return the mean over inputs of each one's median, in microseconds."""
    rounds = [times_us(step, inputs) for _ in range(repeats)]
    total: float = sum(median(times) for times in zip(*rounds, strict=True))
    return total / len(inputs)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
