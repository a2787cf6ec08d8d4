"""Dynamo's RadixTree through its Python API. Runs in a venv with ai-dynamo-runtime and without
our dependencies: standard library only, besides.

`python -m inferway_bench.index.peer_worker PLAN TASK CORES` prints one JSON object. Its tree has a
thread of its own: with CORES `one` it shares a core with its caller, which makes the tree's own
work slower and handing over faster than with `all`.
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
    VOCABULARY,
    Held,
    cases,
    events,
    resident_bytes,
    stay_on_one_core,
    times_us,
    typical_us,
)

Json = dict[str, Any]


def main() -> None:
    """Do a task, as our worker does."""
    plan, task, cores = json.loads(sys.argv[1]), *sys.argv[2:]
    if cores == "one":
        stay_on_one_core()
    print(json.dumps(TASKS[task](plan)))


def match(plan: Json) -> Json:
    """Return the microseconds of each length and shape, and whether the answers are right."""
    tree = _Tree()
    tree.fill(plan["filler_blocks"])
    made = cases(plan)
    for held in made.values():
        tree.hold(held)
    return {
        case: {
            "us": typical_us(
                tree.find_matches, [prompt.blocks for prompt in held], plan["match_repeats"]
            ),
            "right": all(tree.answers_right(prompt) for prompt in held),
        }
        for case, held in made.items()
    }


def apply_events(plan: Json) -> Json:
    """Return the seconds for hashing, for making JSON of it, and for applying that."""
    hash_tokens = _core().compute_block_hash_for_seq
    size = plan["block_size"]
    found: Json = {}
    for blocks, num_events in plan["events"].items():
        stored = list(events(num_events, int(blocks), size, plan["seed"]))
        found[blocks] = []
        for _ in range(plan["event_repeats"]):
            tree = _Tree()
            times = [time.perf_counter()]
            hashed = [hash_tokens(event.tokens, size) for event in stored]
            times.append(time.perf_counter())
            payloads = [
                tree.stored(event.hashes, tokens, event.parent)
                for event, tokens in zip(stored, hashed, strict=True)
            ]
            times.append(time.perf_counter())
            for payload in payloads:
                tree.apply(0, payload)
            tree.wait()
            times.append(time.perf_counter())
            steps = zip(("hash", "JSON", "apply"), times, times[1:], strict=False)
            found[blocks].append({step: end - start for step, start, end in steps})
    return found


def keys(plan: Json) -> float:
    """Return the microseconds to hash a prompt's tokens, which its API takes as a list."""
    hash_tokens = _core().compute_block_hash_for_seq
    tokens = [i * 7919 % VOCABULARY for i in range(plan["key_tokens"])]
    return sorted(times_us(lambda t: hash_tokens(t, plan["block_size"]), [tokens] * 300))[150]


def memory(plan: Json) -> float:
    """Return the bytes of a block, of one engine's blocks."""
    tree = _Tree()
    tree.wait()
    before = resident_bytes()
    blocks: int = plan["peer_blocks"]
    tree.fill(blocks)
    tree.wait()
    return (resident_bytes() - before) / blocks


class _Tree:
    """A RadixTree and the numbers of its events."""

    def __init__(self) -> None:
        self._tree = _core().RadixTree()
        self._event = 0
        self.find_matches = self._tree.find_matches

    def stored(self, hashes: Sequence[int], tokens: Sequence[int], parent: int | None) -> bytes:
        blocks = [{"block_hash": h, "tokens_hash": t} for h, t in zip(hashes, tokens, strict=True)]
        return self._encode({"stored": {"parent_hash": parent, "blocks": blocks}})

    def apply(self, engine: int, payload: bytes) -> None:
        self._tree.apply_event(engine, payload)

    def wait(self) -> None:
        """Until all events are applied: its thread takes one thing after the other."""
        self.find_matches([1])

    def hold(self, held: Sequence[Held]) -> None:
        for prompt in held:
            for engine in range(NUM_ENGINES):
                blocks = prompt.blocks[: prompt.lengths[engine]]
                self.apply(engine, self.stored(blocks, blocks, None))
                removed = prompt.removed[engine]
                if removed is not None:
                    gone = {"removed": {"block_hashes": [prompt.blocks[removed]]}}
                    self.apply(engine, self._encode(gone))

    def fill(self, num_blocks: int) -> None:
        """Other prompts' blocks, 16 to an event, of the first engine."""
        for event in events(num_blocks // 16, 16, 0, seed=0):
            self.apply(0, self.stored(event.hashes, event.hashes, event.parent))

    def answers_right(self, prompt: Held) -> bool:
        scores = {engine: n for (engine, _), n in self.find_matches(prompt.blocks).scores.items()}
        return all(scores.get(e, 0) == prompt.matched(e) for e in range(NUM_ENGINES))

    def _encode(self, data: Json) -> bytes:
        self._event += 1
        return json.dumps({"event_id": self._event, "data": data}).encode()


def _core() -> Any:
    return import_module("dynamo._core")


TASKS: dict[str, Callable[[Json], object]] = {
    "match": match,
    "events": apply_events,
    "keys": keys,
    "memory": memory,
}

if __name__ == "__main__":
    main()
