"""Our index, measured as the peer is. `python -m inferway_bench.index.worker PLAN TASK …` does one
task in a process of its own, and prints one JSON object."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from inferway.blocks.keys import BlockHasher
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Remove, Store
from inferway_bench.index.events import FollowedEngine, payload
from inferway_bench.index.memory import by_engines, growth
from inferway_bench.index.plan import IndexPlan
from inferway_bench.index.redis import redis_cost
from inferway_bench.index.snapshots import fill, journal_cost, loading
from inferway_bench.index.stalls import growing
from inferway_bench.index.workload import (
    NUM_ENGINES,
    VOCABULARY,
    Held,
    cases,
    events,
    stay_on_one_core,
    times_us,
    typical_us,
)


def main() -> None:
    """Do a task. Where nobody is to wait for what else runs on the core, it has all of them."""
    plan, (task, *arguments) = msgspec.json.decode(sys.argv[1], type=IndexPlan), sys.argv[2:]
    if task in _ON_AN_EVENT_LOOP:
        found = uvloop.run(_ON_AN_EVENT_LOOP[task](plan, *map(Path, arguments)))
    else:
        stay_on_one_core()
        found = _ON_ONE_CORE[task](plan, *arguments)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


def match(plan: IndexPlan) -> object:
    """Return the microseconds of each length and shape, and whether the answers are right."""
    index = MemoryIndex()
    for event in events(plan.filler_blocks // 16, 16, 0, seed=0):
        index.apply([Store(0, event.hashes, event.parent)])
    made = cases(msgspec.to_builtins(plan))
    for held in made.values():
        for prompt in held:
            _hold(index, prompt)
    return {
        case: {
            "us": typical_us(index.match_now, [one.blocks for one in held], plan.match_repeats),
            "right": all(_answers_right(index, prompt) for prompt in held),
        }
        for case, held in made.items()
    }


def apply_events(plan: IndexPlan) -> object:
    """Return the seconds from raw payloads to the index, with all that the gateway has on."""
    found: dict[int, list[dict[str, float]]] = {}
    for blocks, num_events in plan.events.items():
        stored = events(num_events, blocks, plan.block_size, plan.seed)
        raw = [payload(event, plan.block_size) for event in stored]
        found[blocks] = []
        for _ in range(plan.event_repeats):
            index = MemoryIndex()
            engine = FollowedEngine(0, plan.block_size, index)
            engine.find_dialect(raw)
            start = time.perf_counter()
            engine.apply(raw)
            found[blocks].append({"all": time.perf_counter() - start})
            if index.num_blocks(0) != blocks * num_events:
                raise AssertionError(f"{index.num_blocks(0)} blocks are in the index")
    return found


def keys(plan: IndexPlan) -> object:
    """Return the microseconds for a prompt's block keys, from a token buffer."""
    tokens = np.array([i * 7919 % VOCABULARY for i in range(plan.key_tokens)], dtype=np.uint32)
    return sorted(times_us(BlockHasher(plan.block_size).keys, [tokens] * 300))[150]


def _hold(index: MemoryIndex, prompt: Held) -> None:
    for engine in range(NUM_ENGINES):
        index.apply([Store(engine, prompt.blocks[: prompt.lengths[engine]])])
        removed = prompt.removed[engine]
        if removed is not None:
            index.apply([Remove(engine, [prompt.blocks[removed]])])


def _answers_right(index: MemoryIndex, prompt: Held) -> bool:
    found = index.match_now(prompt.blocks).blocks
    return all(found.get(e, 0) == prompt.matched(e) for e in range(NUM_ENGINES))


_ON_ONE_CORE: dict[str, Callable[..., object]] = {
    "match": match,
    "events": apply_events,
    "keys": keys,
    "growth": growth,
    "by_engines": by_engines,
}
_ON_AN_EVENT_LOOP: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
    "growing": growing,
    "redis": redis_cost,
    "journal_cost": journal_cost,
    "fill": fill,
    "loading": loading,
}

if __name__ == "__main__":
    main()
