"""Our index and Dynamo's RadixTree at the same tasks, each in a process of its own.

`python -m inferway_bench.index.worker PLAN TASK SYSTEM` prints one JSON value. The peer has a
virtual environment of its own, without our dependencies: nothing but the standard library is
imported before a system is made. Its tree has a thread of its own: on one core with its caller
("Dynamo, one core") the tree's own work is slower and handing over faster than on all.

A prompt's blocks are random numbers, the same for both: our keys are the peer's "token hashes".
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

from inferway_bench.cpu import resident_bytes

OURS, PEER, PEER_ON_ONE = "Inferway", "Dynamo", "Dynamo, one core"
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

Json = dict[str, Any]


# what both systems are given


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
        mean = max(5, num_blocks // 100)
        behind = [mean + step for step in (-4, -3, -2, -1, 1, 2, 3, 4)]
        for prompt in made:
            numbers.shuffle(behind)
            prompt.removed[:] = [num_blocks - 1 - n for n in behind]
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


# the systems


class Ours:
    """The index in memory. What both systems have: `match` is timed, `matched` reads its answer;
    `events` says the seconds of each step from an engine's events to the index."""

    def __init__(self) -> None:
        from inferway.kv.index.memory import MemoryIndex
        from inferway.kv.index.protocol import Remove, Store

        self._index, self._store, self._remove = MemoryIndex(), Store, Remove
        self.match = self._index.match_now

    def store(self, engine: int, hashes: Sequence[int], parent: int | None = None) -> None:
        self._index.apply([self._store(engine, hashes, parent)])

    def remove(self, engine: int, block: int) -> None:
        self._index.apply([self._remove(engine, [block])])

    def matched(self, answer: Any) -> dict[int, int]:
        blocks: dict[int, int] = answer.blocks
        return blocks

    def events(self, stored: Sequence[Stored], block_size: int) -> dict[str, float]:
        """Apply raw payloads, with everything that the gateway has on; return the times."""
        from inferway_bench.index.engine import FollowedEngine, payload

        raw = [payload(event, block_size) for event in stored]
        engine = FollowedEngine(0, block_size, self._index)
        engine.find_dialect(raw)
        start = time.perf_counter()
        engine.apply(raw)
        seconds = time.perf_counter() - start
        if self._index.num_blocks(0) != sum(len(event.hashes) for event in stored):
            raise AssertionError(f"{self._index.num_blocks(0)} blocks are in the index")
        return {"all": seconds}


class RadixTree:
    """The peer through its Python API, and the numbers of its events."""

    def __init__(self) -> None:
        self._core = import_module("dynamo._core")
        self._tree = self._core.RadixTree()
        self._event = 0
        self.match = self._tree.find_matches

    def store(self, engine: int, hashes: Sequence[int], parent: int | None = None) -> None:
        self._tree.apply_event(engine, self._stored(hashes, hashes, parent))

    def remove(self, engine: int, block: int) -> None:
        self._tree.apply_event(engine, self._encode({"removed": {"block_hashes": [block]}}))

    def matched(self, answer: Any) -> dict[int, int]:
        return {engine: num for (engine, _), num in answer.scores.items()}

    def wait(self) -> None:
        """Wait until all events are applied: its thread takes one thing after the other."""
        self.match([1])

    def events(self, stored: Sequence[Stored], block_size: int) -> dict[str, float]:
        """Apply lists of tokens: hash them, make JSON of it, and apply that; return the times."""
        times = [time.perf_counter()]
        hashed = [self._core.compute_block_hash_for_seq(e.tokens, block_size) for e in stored]
        times.append(time.perf_counter())
        payloads = [
            self._stored(event.hashes, tokens, event.parent)
            for event, tokens in zip(stored, hashed, strict=True)
        ]
        times.append(time.perf_counter())
        for payload in payloads:
            self._tree.apply_event(0, payload)
        self.wait()
        times.append(time.perf_counter())
        steps = zip(("hash", "JSON", "apply"), times, times[1:], strict=False)
        return {step: end - start for step, start, end in steps}

    def _stored(self, hashes: Sequence[int], tokens: Sequence[int], parent: int | None) -> bytes:
        blocks = [{"block_hash": h, "tokens_hash": t} for h, t in zip(hashes, tokens, strict=True)]
        return self._encode({"stored": {"parent_hash": parent, "blocks": blocks}})

    def _encode(self, data: Json) -> bytes:
        self._event += 1
        return json.dumps({"event_id": self._event, "data": data}).encode()


# the tasks


def match(plan: Json, make: type[Ours | RadixTree]) -> Json:
    """Return for each length and shape the microseconds of a match, the mean over prompts of each
    one's median, and whether the answers are right."""
    system = make()
    _fill(system, plan["filler_blocks"])
    cases = {
        f"{length} {shape}": prompts(shape, num_prompts, int(length), plan["seed"])
        for length, num_prompts in plan["prompts"].items()
        for shape in SHAPES
    }
    for prompt in (one for held in cases.values() for one in held):
        for engine in range(NUM_ENGINES):
            system.store(engine, prompt.blocks[: prompt.lengths[engine]])
            removed = prompt.removed[engine]
            if removed is not None:
                system.remove(engine, prompt.blocks[removed])
    return {
        case: {
            "us": _typical_us(system, [one.blocks for one in held], plan["match_repeats"]),
            "right": all(_is_right(system, prompt) for prompt in held),
        }
        for case, held in cases.items()
    }


def _typical_us(system: Ours | RadixTree, asked: Sequence[list[int]], repeats: int) -> float:
    times: list[list[int]] = [[] for _ in asked]
    for _ in range(repeats):
        for blocks, mine in zip(asked, times, strict=True):
            start = time.perf_counter_ns()
            system.match(blocks)
            mine.append(time.perf_counter_ns() - start)
    return sum(median(mine) for mine in times) / 1000 / len(asked)


def _is_right(system: Ours | RadixTree, prompt: Held) -> bool:
    found = system.matched(system.match(prompt.blocks))
    return all(found.get(engine, 0) == prompt.matched(engine) for engine in range(NUM_ENGINES))


def apply_events(plan: Json, make: type[Ours | RadixTree]) -> Json:
    """Return the seconds of each step for all events, by blocks of an event, for each repeat."""
    size, found = plan["block_size"], {}
    for blocks, num_events in plan["events"].items():
        stored = list(events(num_events, int(blocks), size, plan["seed"]))
        found[blocks] = [make().events(stored, size) for _ in range(plan["event_repeats"])]
    return found


def memory(plan: Json, make: type[Ours | RadixTree]) -> Json:
    """Return the resident bytes of a block of one engine, everything included."""
    if make is Ours:
        from inferway_bench.index.engine import bytes_of_a_block

        return {"bytes": bytes_of_a_block(plan["memory_blocks"], plan["block_size"], plan["seed"])}
    system, pid = RadixTree(), os.getpid()
    system.wait()
    before = resident_bytes(pid)
    _fill(system, plan["peer_blocks"])
    system.wait()
    return {"bytes": (resident_bytes(pid) - before) / plan["peer_blocks"]}


def _fill(system: Ours | RadixTree, num_blocks: int) -> None:
    """Other prompts' blocks, 16 to an event, of the first engine."""
    for event in events(num_blocks // 16, 16, 0, seed=0):
        system.store(0, event.hashes, event.parent)


TASKS = {"match": match, "events": apply_events, "memory": memory}


def main() -> None:
    """Do a task. Ours is on one core where nobody waits for what else runs on it."""
    plan, task, system = sys.argv[1:]
    if system != PEER:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(TASKS[task](json.loads(plan), Ours if system == OURS else RadixTree)))


if __name__ == "__main__":
    main()
