"""A gateway's parts that grow with its engines, measured in a process of their own: the production
index and event path filled by so many engines, and the production director before them.

`python -m inferway_bench.scale_worker ENGINES PLAN` prints a `Grown` as JSON.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import uvloop

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Store
from inferway.model import RequestHead
from inferway_bench.cpu import resident_bytes
from inferway_bench.idle_engines import MODEL, GivenTokens, idle_director
from inferway_bench.index.engine import FollowedEngine, payload, removal
from inferway_bench.index.worker import VOCABULARY, Stored

_HEAD = RequestHead("POST", "/v1/chat/completions", "", ())
_BODY = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
_EVENT_BLOCKS = 8
_CHAIN = 8  # events of a prompt
_TIMED = 4_000  # events


class Filling(msgspec.Struct, frozen=True):
    """What each engine holds, and what is timed."""

    block_size: int
    blocks_held: int
    prompt_tokens: int
    decisions: int  # in a row
    repeats: int
    seed: int


class Grown(msgspec.Struct, frozen=True):
    """The costs with one number of engines. Times are CPU time, with decoding."""

    stored_us: float  # of a block that an engine has stored
    removed_us: float  # of one that it has dropped
    decision_us: list[float]  # each the mean of some
    resident_mib: float
    bytes_per_block: float


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
        """Return batches that store, and batches that remove the same; a prompt is `_CHAIN` events
        long."""
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


def measure(filling: Filling, engines: int) -> Grown:
    """Fill an index by `engines`, and time events and decisions."""
    gc.disable()
    index = MemoryIndex()
    events = Events(filling.seed, filling.block_size)
    start = resident_bytes(os.getpid())
    fleet = [FollowedEngine(holder, filling.block_size, index) for holder in range(engines)]
    each = filling.blocks_held // _EVENT_BLOCKS
    for engine in fleet:
        engine.apply(events.stored(each)[0])
    gc.collect()
    taken = resident_bytes(os.getpid()) - start
    stored, removed = _timed(fleet, events)
    decisions = uvloop.run(_decisions(filling, engines, index))
    return Grown(
        stored_us=round(stored, 3),
        removed_us=round(removed, 3),
        decision_us=[round(us, 2) for us in decisions],
        resident_mib=round(resident_bytes(os.getpid()) / 2**20, 1),
        bytes_per_block=round(taken / (each * _EVENT_BLOCKS * engines), 1),
    )


def _timed(fleet: Sequence[FollowedEngine], events: Events) -> tuple[float, float]:
    """The microseconds a block, of batches that come from one engine after the other."""
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


async def _decisions(filling: Filling, engines: int, index: MemoryIndex) -> list[float]:
    """The CPU microseconds of a decision, from the head to the choice; a few engines hold most of
    the prompt, all of them its beginning."""
    rng = np.random.default_rng(filling.seed)
    tokens = rng.integers(VOCABULARY, size=filling.prompt_tokens, dtype=np.uint32)
    keys = BlockHasher(filling.block_size).keys(tokens)
    index.apply([Store(holder, keys[: len(keys) // 8]) for holder in range(engines)])
    index.apply([Store(holder, keys[: len(keys) * 7 // 8]) for holder in range(min(3, engines))])
    director = idle_director(index, GivenTokens(tokens), engines, filling.block_size)
    found = []
    for repeat in range(filling.repeats + 1):
        began = time.process_time()
        for _ in range(filling.decisions):
            journey = director.open(_HEAD, _BODY)
            await journey.decide()
            journey.close("ok")
        if repeat:  # the first warms up
            found.append((time.process_time() - began) * 1e6 / filling.decisions)
    return found


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.argv[2], type=Filling)
    sys.stdout.buffer.write(msgspec.json.encode(measure(wanted, int(sys.argv[1]))))
