"""A gateway's parts that grow with its engines, measured in a process of their own: the production
index and event path filled by so many engines, and the production director before them.

`python -m inferway_bench.scale_worker ENGINES PLAN` prints a `Grown` as JSON.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np
import uvloop

from inferway.fleet.subscriber import IndexElsewhere
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.changes import IndexChanges
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Op, Store
from inferway.model import RequestHead
from inferway.workers.follower import HeardIndex
from inferway.workers.follower_messages import FollowerMessage, Heard
from inferway.workers.messages import IndexChanged, Message
from inferway.workers.teller import ToldIndex
from inferway_bench.cpu import resident_bytes
from inferway_bench.idle_engines import MODEL, GivenTokens, idle_director
from inferway_bench.index.engine import FollowedEngine, endless_events, payload, removal
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


class _TimedToldIndex(ToldIndex):
    """It says how long it took to note what has changed."""

    noted_seconds = 0.0  # of CPU time

    def _tell(self, ops: Sequence[Op]) -> None:
        began = time.process_time()
        super()._tell(ops)
        self.noted_seconds += time.process_time() - began


class Grown(msgspec.Struct, frozen=True):
    """The costs with one number of engines. Times are CPU time, with decoding."""

    stored_us: float  # of a block that an engine has stored
    removed_us: float  # of one that it has dropped
    decision_us: list[float]  # each the mean of some
    resident_mib: float
    bytes_per_block: float
    noted_us: float  # of a block that was stored and dropped: noting what workers must be told
    told_us: float  # telling one of them
    followed_us: float  # what that takes the worker
    copied_bytes_per_block: float  # in a worker's copy
    follower_us: float  # the same of a block that a follower reads, until the hub is told
    relayed_us: float  # what that takes the hub, until its own index has it


def measure(filling: Filling, engines: int) -> Grown:
    """Fill an index by `engines`, and time events and decisions."""
    gc.disable()
    index, pid, size = _TimedToldIndex(), os.getpid(), filling.block_size
    events = endless_events(size, filling.seed, _CHAIN, _EVENT_BLOCKS)
    start = resident_bytes(pid)
    fleet = [FollowedEngine(holder, size, index) for holder in range(engines)]
    each = filling.blocks_held // _EVENT_BLOCKS
    for engine in fleet:
        engine.apply(payload(event, size) for event in islice(events, each))
    gc.collect()
    taken = resident_bytes(pid) - start
    stored, removed = _timed(fleet, events, size)
    decisions = uvloop.run(_decisions(filling, engines, index))
    resident = resident_bytes(pid)
    copied, noted, told, followed = _by_a_worker(fleet, events, size, index)
    follower, relayed = _by_a_follower(filling, engines, events, index)
    return Grown(
        stored_us=round(stored, 3),
        removed_us=round(removed, 3),
        decision_us=[round(us, 2) for us in decisions],
        resident_mib=round(resident / 2**20, 1),
        bytes_per_block=round(taken / (each * _EVENT_BLOCKS * engines), 1),
        noted_us=round(noted, 3),
        told_us=round(told, 3),
        followed_us=round(followed, 3),
        copied_bytes_per_block=round(copied / (each * _EVENT_BLOCKS * engines), 1),
        follower_us=round(follower, 3),
        relayed_us=round(relayed, 3),
    )


def _timed(
    fleet: Sequence[FollowedEngine], events: Iterator[Stored], block_size: int
) -> tuple[float, float]:
    """The microseconds a block of batches that store, and of batches that remove the same; they
    come from one engine after the other."""
    made, blocks = _made(fleet, events)
    stored = [[payload(event, block_size) for event in mine] for mine in made]
    removed = [[removal(event.hashes) for event in reversed(mine)] for mine in made]
    took = []
    for batches in (stored, removed):
        began = time.process_time()
        for engine, mine in zip(fleet, batches, strict=False):
            engine.apply(mine)
        took.append((time.process_time() - began) * 1e6 / blocks)
    return took[0], took[1]


def _made(
    fleet: Sequence[FollowedEngine], events: Iterator[Stored]
) -> tuple[list[list[Stored]], int]:
    """Events of engines, and how many blocks they are."""
    each = max(_CHAIN, _TIMED // len(fleet) // _CHAIN * _CHAIN)
    made = [list(islice(events, each)) for _ in range(min(len(fleet), _TIMED // _CHAIN))]
    return made, len(made) * each * _EVENT_BLOCKS


def _by_a_worker(
    fleet: Sequence[FollowedEngine],
    events: Iterator[Stored],
    block_size: int,
    index: _TimedToldIndex,
) -> tuple[int, float, float, float]:
    """The bytes of a worker's copy of the index, which fits into what filling has freed, so that no
    memory shows it; and the microseconds a block of what engines store and remove: noting what it
    changes, encoding that for a worker, and, in the copy, decoding and applying it."""
    told: list[IndexChanges] = []
    index.tell_to(told.append)
    heard = HeardIndex()
    for changes in index.picture():
        frame = msgspec.msgpack.encode(changes)  # the copy's keys are its own, as in a process
        heard.hear(msgspec.msgpack.decode(frame, type=IndexChanges))
    copied = heard.num_bytes()
    made, blocks = _made(fleet, events)
    index.noted_seconds = 0.0
    for engine, mine in zip(fleet, made, strict=False):
        engine.apply([payload(event, block_size) for event in mine])
        engine.apply([removal(event.hashes) for event in reversed(mine)])
    noted = index.noted_seconds
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(list[Message]).decode
    began = time.process_time()
    frames = [encode([IndexChanged(each, 1)]) for each in told]
    encoded = time.process_time()
    for frame in frames:
        for message in decode(frame):
            assert isinstance(message, IndexChanged)
            heard.hear(message.changes)
    ended = time.process_time()
    us = 1e6 / blocks
    return copied, noted * us, (encoded - began) * us, (ended - encoded) * us


def _by_a_follower(
    filling: Filling, engines: int, events: Iterator[Stored], index: ToldIndex
) -> tuple[float, float]:
    """The microseconds a block of what engines store and remove: in a follower of half of the
    engines, until it is encoded for the hub; and in the hub, decoding and applying it."""
    size, heard = filling.block_size, list[Heard]()

    def take(ops: list[Op]) -> None:
        if ops:
            heard.append(Heard(1, ops, 1))

    fleet = [
        FollowedEngine(holder, size, IndexElsewhere(take)) for holder in range(max(1, engines // 2))
    ]
    each = filling.blocks_held // _EVENT_BLOCKS
    for engine in fleet:
        engine.apply(payload(event, size) for event in islice(events, each))
        heard.clear()
    made, blocks = _made(fleet, events)
    batches = [
        [payload(event, size) for event in mine]
        + [removal(event.hashes) for event in reversed(mine)]
        for mine in made
    ]
    index.tell_to(None)
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(list[FollowerMessage]).decode
    began = time.process_time()
    for engine, mine in zip(fleet, batches, strict=False):
        engine.apply(mine)
    frames = [encode([message]) for message in heard]
    followed = time.process_time()
    for frame in frames:
        for message in decode(frame):
            assert isinstance(message, Heard)
            index.apply(message.ops)
    ended = time.process_time()
    return (followed - began) * 1e6 / blocks, (ended - followed) * 1e6 / blocks


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
