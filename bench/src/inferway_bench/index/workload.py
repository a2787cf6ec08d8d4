"""The blocks both systems are given. Standard library only: the peer has a venv of its own.

A prompt's blocks are random numbers, the same for both: our keys are the peer's "token hashes".
What makes a shape is how far each of the eight engines holds the prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

NUM_ENGINES = 8
VOCABULARY = 128_000


@dataclass(frozen=True)
class Held:
    """One prompt: `lengths[i]` of its blocks were stored by engine i, and then perhaps one of
    them removed again."""

    blocks: list[int]
    lengths: list[int]
    removed: list[int | None]

    def matched(self, engine: int) -> int:
        removed = self.removed[engine]
        return self.lengths[engine] if removed is None else removed


Lengths = Callable[[random.Random, int], list[int]]


def _all(_: random.Random, blocks: int) -> list[int]:
    return [blocks] * NUM_ENGINES


def _sessions(numbers: random.Random, blocks: int) -> list[int]:
    """A conversation: one engine has it, the others the first sixteenth (a system prompt)."""
    lengths = [blocks // 16] * NUM_ENGINES
    lengths[numbers.randrange(NUM_ENGINES)] = blocks - 1
    return lengths


def _random(numbers: random.Random, blocks: int) -> list[int]:
    return [numbers.randint(1, blocks) for _ in range(NUM_ENGINES)]


# shape -> (what it is, how far each engine stored the prompt)
SHAPES: dict[str, tuple[str, Lengths]] = {
    "whole": ("all eight engines hold the whole prompt", _all),
    "detached": (
        "as *whole*, but the engines have lost single blocks at random places, so that 1 % of all "
        "their blocks come after a lost one",
        _all,
    ),
    "frayed": (
        "the same 1 %, but in every prompt each engine has lost a different block near its end",
        _all,
    ),
    "session": ("one engine holds the whole conversation, all hold its first sixteenth", _sessions),
    "random": ("each engine holds a random share of the prompt: the worst case", _random),
}


def prompts(shape: str, num_prompts: int, num_blocks: int, seed: int) -> list[Held]:
    numbers = random.Random(f"{shape} {num_blocks} {seed}")
    _, lengths = SHAPES[shape]
    made = [
        Held(
            [numbers.getrandbits(64) for _ in range(num_blocks)],
            lengths(numbers, num_blocks),
            [None] * NUM_ENGINES,
        )
        for _ in range(num_prompts)
    ]
    if shape == "detached":
        _lose_anywhere(made, num_blocks, numbers)
    if shape == "frayed":
        _lose_near_the_end(made, num_blocks, numbers)
    return made


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


@dataclass(frozen=True)
class Stored:
    """A BlockStored event of one engine."""

    hashes: list[int]
    parent: int | None
    tokens: list[int]


def events(num_events: int, num_blocks: int, block_size: int, seed: int) -> Iterator[Stored]:
    """Prompts of 128 blocks, stored `num_blocks` at a time."""
    numbers = random.Random(f"events {num_blocks} {seed}")
    parent: int | None = None
    for i in range(num_events):
        if i % (128 // num_blocks) == 0:
            parent = None
        hashes = [numbers.getrandbits(64) for _ in range(num_blocks)]
        tokens = [numbers.randrange(VOCABULARY) for _ in range(num_blocks * block_size)]
        yield Stored(hashes, parent, tokens)
        parent = hashes[-1]
