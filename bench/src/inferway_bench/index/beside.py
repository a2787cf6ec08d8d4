"""Our index and Dynamo's RadixTree at the same tasks, timed by the same lines.

`python -m inferway_bench.index.beside PLAN TASK SYSTEM` prints one JSON object. The peer has a
virtual environment of its own, without our dependencies: nothing but the standard library is
imported before a system is made. Its tree has a thread of its own: on one core with its caller
("Dynamo, one core") the tree's own work is slower and handing over faster than on all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from inferway_bench.index.workload import (
    NUM_ENGINES,
    SHAPES,
    VOCABULARY,
    Held,
    Stored,
    events,
    prompts,
    resident_bytes,
    stay_on_one_core,
    times_us,
    typical_us,
)

OURS, PEER, PEER_ON_ONE = "Inferway", "Dynamo", "Dynamo, one core"
Json = dict[str, Any]


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
        """From raw payloads, with everything that the gateway has on."""
        from inferway_bench.index.events import FollowedEngine, payload

        raw = [payload(event, block_size) for event in stored]
        engine = FollowedEngine(0, block_size, self._index)
        engine.find_dialect(raw)
        start = time.perf_counter()
        engine.apply(raw)
        seconds = time.perf_counter() - start
        if self._index.num_blocks(0) != sum(len(event.hashes) for event in stored):
            raise AssertionError(f"{self._index.num_blocks(0)} blocks are in the index")
        return {"all": seconds}

    def keys_us(self, tokens: Sequence[int], block_size: int, repeats: int) -> list[float]:
        """From a token buffer."""
        import numpy as np

        from inferway.kv.blocks.keys import BlockHasher

        buffer = np.array(tokens, dtype=np.uint32)
        return times_us(BlockHasher(block_size).keys, [buffer] * repeats)


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
        """From lists of tokens: hashing, making JSON of it, and applying that."""
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

    def keys_us(self, tokens: Sequence[int], block_size: int, repeats: int) -> list[float]:
        """From a list of tokens, which its API takes."""
        hash_tokens = self._core.compute_block_hash_for_seq
        return times_us(lambda given: hash_tokens(given, block_size), [tokens] * repeats)

    def _stored(self, hashes: Sequence[int], tokens: Sequence[int], parent: int | None) -> bytes:
        blocks = [{"block_hash": h, "tokens_hash": t} for h, t in zip(hashes, tokens, strict=True)]
        return self._encode({"stored": {"parent_hash": parent, "blocks": blocks}})

    def _encode(self, data: Json) -> bytes:
        self._event += 1
        return json.dumps({"event_id": self._event, "data": data}).encode()


Make = Callable[[], Ours | RadixTree]


def match(plan: Json, make: Make) -> Json:
    """Return the microseconds of each length and shape, and whether the answers are right."""
    system = make()
    _fill(system, plan["filler_blocks"])
    cases = {
        f"{length} {shape}": prompts(shape, num_prompts, int(length), plan["seed"])
        for length, num_prompts in plan["prompts"].items()
        for shape in SHAPES
    }
    for prompt in (one for held in cases.values() for one in held):
        _hold(system, prompt)
    return {
        case: {
            "us": typical_us(system.match, [one.blocks for one in held], plan["match_repeats"]),
            "right": all(_answers_right(system, prompt) for prompt in held),
        }
        for case, held in cases.items()
    }


def apply_events(plan: Json, make: Make) -> Json:
    """Return the seconds of each step for all events, by blocks of an event, for each repeat."""
    size, found = plan["block_size"], {}
    for blocks, num_events in plan["events"].items():
        stored = list(events(num_events, int(blocks), size, plan["seed"]))
        found[blocks] = [make().events(stored, size) for _ in range(plan["event_repeats"])]
    return found


def keys(plan: Json, make: Make) -> float:
    """Return the median microseconds for the block keys of a prompt."""
    tokens = [i * 7919 % VOCABULARY for i in range(plan["key_tokens"])]
    return sorted(make().keys_us(tokens, plan["block_size"], 300))[150]


def memory(plan: Json, make: Make) -> float:
    """Return the bytes of a block, of one engine's blocks in the peer."""
    system, blocks = make(), int(plan["peer_blocks"])
    assert isinstance(system, RadixTree)
    system.wait()
    before = resident_bytes()
    _fill(system, blocks)
    system.wait()
    return (resident_bytes() - before) / blocks


def _fill(system: Ours | RadixTree, num_blocks: int) -> None:
    """Other prompts' blocks, 16 to an event, of the first engine."""
    for event in events(num_blocks // 16, 16, 0, seed=0):
        system.store(0, event.hashes, event.parent)


def _hold(system: Ours | RadixTree, prompt: Held) -> None:
    for engine in range(NUM_ENGINES):
        system.store(engine, prompt.blocks[: prompt.lengths[engine]])
        removed = prompt.removed[engine]
        if removed is not None:
            system.remove(engine, prompt.blocks[removed])


def _answers_right(system: Ours | RadixTree, prompt: Held) -> bool:
    found = system.matched(system.match(prompt.blocks))
    return all(found.get(engine, 0) == prompt.matched(engine) for engine in range(NUM_ENGINES))


TASKS: dict[str, Callable[[Json, Make], object]] = {
    "match": match,
    "events": apply_events,
    "keys": keys,
    "memory": memory,
}


def main() -> None:
    """Do a task. Ours is on one core: nobody waits for what else runs on it."""
    plan, task, system = sys.argv[1:]
    if system != PEER:
        stay_on_one_core()
    print(json.dumps(TASKS[task](json.loads(plan), Ours if system == OURS else RadixTree)))


if __name__ == "__main__":
    main()
