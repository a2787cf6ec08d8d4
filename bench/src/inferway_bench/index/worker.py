"""Our index, measured as the peer is. `python -m inferway_bench.index.worker TASK PLAN` prints
one JSON object."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from inferway.blocks.keys import BlockHasher
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Remove, Store
from inferway_bench.index.followed import FollowedEngine
from inferway_bench.index.holdings import memory_by_engines
from inferway_bench.index.measuring import median, stay_on_one_core, times_us, typical_us
from inferway_bench.index.memory import memory
from inferway_bench.index.payloads import payloads
from inferway_bench.index.plan import Plan
from inferway_bench.index.shared import shared
from inferway_bench.index.snapshot import compacting, journal_cost, loading
from inferway_bench.index.stalls import stalls
from inferway_bench.index.workload import (
    NUM_ENGINES,
    SHAPES,
    VOCABULARY,
    Held,
    events,
    prompts,
)


def main() -> None:
    task, plan = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Plan)
    if task not in _ON_ALL_CORES:
        stay_on_one_core()
    sys.stdout.write(msgspec.json.encode(TASKS[task](plan)).decode() + "\n")


def match(plan: Plan) -> object:
    """µs of each length and shape, and whether the answers are right."""
    index = MemoryIndex()
    for event in events(plan.filler_blocks // 16, 16, 0, seed=0):
        index.apply([Store(0, event.hashes, event.parent)])
    cases = {
        f"{length} {shape}": prompts(shape, num_prompts, length, plan.seed)
        for length, num_prompts in plan.prompts.items()
        for shape in SHAPES
    }
    for held in cases.values():
        _hold(index, held)
    return {
        case: {
            "us": typical_us(
                index.match_now, [prompt.blocks for prompt in held], plan.match_repeats
            ),
            "right": all(_answers_right(index, prompt) for prompt in held),
        }
        for case, held in cases.items()
    }


def apply_events(plan: Plan) -> object:
    """Seconds from raw payloads to the index, with everything that the gateway has on."""
    found = {}
    for blocks, num_events in plan.events.items():
        stored = events(num_events, blocks, plan.block_size, plan.seed)
        raw = payloads(stored, plan.block_size)
        runs = []
        for _ in range(plan.event_repeats):
            index = MemoryIndex()
            engine = FollowedEngine(0, plan.block_size, index)
            engine.find_dialect(raw)
            start = time.perf_counter()
            engine.apply(raw)
            runs.append(time.perf_counter() - start)
            if index.num_blocks(0) != blocks * num_events:
                raise AssertionError(f"{index.num_blocks(0)} blocks are in the index")
        found[str(blocks)] = runs
    return found


def keys(plan: Plan) -> object:
    """µs for a prompt's block keys, from a token buffer."""
    tokens = np.array([i * 7919 % VOCABULARY for i in range(plan.key_tokens)], dtype=np.uint32)
    hasher = BlockHasher(plan.block_size)
    return {"us": median(times_us(hasher.keys, [tokens] * 300))}


def _hold(index: MemoryIndex, held: Sequence[Held]) -> None:
    for prompt in held:
        for engine in range(NUM_ENGINES):
            index.apply([Store(engine, prompt.blocks[: prompt.lengths[engine]])])
            removed = prompt.removed[engine]
            if removed is not None:
                index.apply([Remove(engine, [prompt.blocks[removed]])])


def _answers_right(index: MemoryIndex, prompt: Held) -> bool:
    found = index.match_now(prompt.blocks).blocks
    return all(found.get(e, 0) == prompt.matched(e) for e in range(NUM_ENGINES))


TASKS: dict[str, Callable[[Plan], object]] = {
    "match": match,
    "events": apply_events,
    "keys": keys,
    "memory": memory,
    "engines": memory_by_engines,
    "stalls": stalls,
    "shared": shared,
    "journal_cost": journal_cost,
    "compacting": compacting,
    "loading": loading,
}
# where nobody is to wait for what else runs on the core
_ON_ALL_CORES = ("stalls", "shared", "journal_cost", "compacting", "loading")

if __name__ == "__main__":
    main()
