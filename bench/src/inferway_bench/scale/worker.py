"""A gateway's parts that grow with its engines, measured in a process of their own: the production
index and event path filled by so many engines, and the production director before them."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import uvloop

from inferway.blocks.keys import BlockHasher
from inferway.director import Director
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Store
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import Endpoint, RequestHead
from inferway.prompts.served import ServedModel
from inferway.scheduling.load import load_scheduling
from inferway.steps.match import Matcher
from inferway_bench.idle_engines import GivenTokens, IdleEngines
from inferway_bench.index.events import FollowedEngine, payload, removal
from inferway_bench.index.workload import VOCABULARY, Stored, resident_bytes
from inferway_bench.scale.plan import Grown, Plan

_MODEL = "m"
_HEAD = RequestHead("POST", "/v1/chat/completions", "", ())
_BODY = msgspec.json.encode({"model": _MODEL, "messages": [{"role": "user", "content": "hi"}]})
_EVENT_BLOCKS = 8
_CHAIN = 8  # events of a prompt
_TIMED = 4_000  # events


class Events:
    """An engine's batches as bytes, and the same blocks dropped again."""

    def __init__(self, seed: int, block_size: int) -> None:
        self._random = random.Random(seed)
        self._size = block_size
        self._tokens = [
            [self._random.randrange(VOCABULARY) for _ in range(_EVENT_BLOCKS * block_size)]
            for _ in range(16)
        ]

    def stored(self, events: int) -> tuple[list[bytes], list[bytes]]:
        """(batches that store, batches that remove the same): a prompt is `_CHAIN` events long."""
        stored, removed, parent = [], [], None
        for number in range(events):
            if number % _CHAIN == 0:
                parent = None
            hashes = [self._random.getrandbits(64) for _ in range(_EVENT_BLOCKS)]
            tokens = [self._random.randrange(VOCABULARY), *self._tokens[number % 16][1:]]
            stored.append(payload(Stored(hashes, parent, tokens), self._size))
            removed.append(removal(hashes))
            parent = hashes[-1]
        return stored, removed[::-1]


def measure(plan: Plan, engines: int) -> Grown:
    gc.disable()
    index = MemoryIndex()
    events = Events(plan.seed, plan.block_size)
    start = resident_bytes()
    fleet = [FollowedEngine(holder, plan.block_size, index) for holder in range(engines)]
    each = plan.blocks_held // _EVENT_BLOCKS
    for engine in fleet:
        engine.apply(events.stored(each)[0])
    gc.collect()
    taken = resident_bytes() - start
    stored, removed = _timed(fleet, events)
    decisions = uvloop.run(_decisions(plan, engines, index))
    held = each * _EVENT_BLOCKS
    return Grown(
        engines=engines,
        blocks=held,
        stored_us=round(stored, 3),
        removed_us=round(removed, 3),
        decision_us=[round(us, 2) for us in decisions],
        resident_mib=round(resident_bytes() / 2**20, 1),
        bytes_per_block=round(taken / (held * engines), 1),
    )


def _timed(fleet: Sequence[FollowedEngine], events: Events) -> tuple[float, float]:
    """Microseconds a block, of batches that come from one engine after the other."""
    each = max(_CHAIN, _TIMED // len(fleet) // _CHAIN * _CHAIN)
    made = [events.stored(each) for _ in range(min(len(fleet), _TIMED // _CHAIN))]
    blocks = len(made) * each * _EVENT_BLOCKS
    took = []
    for which in (0, 1):
        began = time.process_time()
        for engine, batches in zip(fleet, made, strict=False):
            engine.apply(batches[which])
        took.append((time.process_time() - began) * 1e6 / blocks)
    return took[0], took[1]


class _Engines(IdleEngines):
    """What is in flight is counted."""

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        self.columns.in_flight[endpoint.holder] += 1
        self.columns.recent_tokens[endpoint.holder] += new_tokens

    def release(self, endpoint: Endpoint) -> None:
        self.columns.in_flight[endpoint.holder] -= 1


async def _decisions(plan: Plan, engines: int, index: MemoryIndex) -> list[float]:
    """CPU microseconds of a decision, from the head to the choice; a few engines hold most of the
    prompt, all of them its beginning."""
    rng = np.random.default_rng(plan.seed)
    tokens = rng.integers(VOCABULARY, size=plan.prompt_tokens, dtype=np.uint32)
    keys = BlockHasher(plan.block_size).keys(tokens)
    index.apply([Store(holder, keys[: len(keys) // 8]) for holder in range(engines)])
    index.apply([Store(holder, keys[: len(keys) * 7 // 8]) for holder in range(min(3, engines))])
    model = ServedModel(_MODEL, GivenTokens(tokens), (plan.block_size,))
    director = Director(
        _Engines(model, engines, plan.block_size),
        Matcher(index, SpeculativeOverlay()),
        load_scheduling(None),
        time.monotonic,
    )
    found = []
    for repeat in range(plan.repeats + 1):
        began = time.process_time()
        for _ in range(plan.decisions):
            journey = director.open(_HEAD, _BODY)
            await journey.decide()
            journey.close("ok")
        if repeat:  # the first warms up
            found.append((time.process_time() - began) * 1e6 / plan.decisions)
    return found


def main() -> None:
    engines, plan = sys.argv[1:]
    grown = measure(msgspec.json.decode(plan, type=Plan), int(engines))
    sys.stdout.write(msgspec.json.encode(grown).decode())


if __name__ == "__main__":
    main()
