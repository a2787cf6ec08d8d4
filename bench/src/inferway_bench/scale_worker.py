"""A gateway's parts that grow with its engines, measured in a process of their own: the production
index and event path filled by so many engines, and the production director before them.

`python -m inferway_bench.scale_worker ENGINES PLAN` prints a `Grown` as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice

import msgspec
import numpy as np
import uvloop

from inferway.cluster.bus.messages import IndexChanged, Message
from inferway.cluster.teller import ToldIndex
from inferway.fleet.columns import EndpointColumns, ModelRows
from inferway.fleet.zmtp import (
    COMMAND,
    GREETING,
    MORE,
    Owner,
    ZmtpConnection,
    frame,
    keep_connected,
    ready,
)
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.changes import IndexChanges
from inferway.kv.index.copied import CopiedIndex
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Op, Store
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import (
    EXACT,
    Candidates,
    Endpoint,
    HolderId,
    RequestHead,
    TokenIds,
    Tokenized,
)
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.prompts.served import ServedModel
from inferway.routing.director import Director
from inferway.routing.match import Matcher
from inferway.scheduling.load import load_scheduling
from inferway_bench.cpu import resident_bytes
from inferway_bench.index.engine import FollowedEngine, endless_events, payload, step
from inferway_bench.index.worker import VOCABULARY, Stored

MODEL = "m"
_SKIPPED = 3  # rounds that warm up
_HEAD = RequestHead("POST", "/v1/chat/completions", "", ())
_BODY = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
EVENT_BLOCKS = 8  # of a batch
_CHAIN = 8  # events of a prompt
_TIMED = 4_000  # events


class Filling(msgspec.Struct, frozen=True):
    """The blocks that each engine holds, and the decisions that are timed."""

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
    """The costs with one number of engines. Times are CPU time, with decoding, and those of a block
    are of one that an engine stores and another one that it drops for it."""

    event_us: float  # of a block in one process, from messages on that a socket has brought
    decision_us: list[float]  # each the mean of some
    resident_mib: float
    bytes_per_block: float
    noted_us: float  # of a block: noting what workers must be told
    told_us: float  # telling one of them
    followed_us: float  # what that takes the worker
    copied_bytes_per_block: float  # in a worker's copy


class _Fleet:
    """Engines that hold blocks, and go on with others."""

    def __init__(self, filling: Filling, engines: int, index: MemoryIndex) -> None:
        size = self._block_size = filling.block_size
        self.engines = [FollowedEngine(holder, size, index) for holder in range(engines)]
        self._events = endless_events(size, filling.seed, _CHAIN, EVENT_BLOCKS)
        self._each = filling.blocks_held // EVENT_BLOCKS
        steps = max(_CHAIN, _TIMED // engines // _CHAIN * _CHAIN)
        self._steps = min(steps, self._each // _CHAIN * _CHAIN)
        self._oldest: list[list[Stored]] = []  # that some of the engines hold

    def fill(self) -> None:
        """Have each engine store what it holds."""
        for engine in self.engines:
            first = list(islice(self._events, self._steps))
            rest = islice(self._events, self._each - self._steps)
            engine.apply(payload(event, self._block_size) for event in chain(first, rest))
            if len(self._oldest) < _TIMED // _CHAIN:
                self._oldest.append(first)

    def steps(self) -> tuple[list[list[bytes]], int]:
        """Return the next batches of some of the engines, each of which stores what it drops others
        for, and how many blocks they store."""
        batches = []
        for number, oldest in enumerate(self._oldest):
            new = self._oldest[number] = list(islice(self._events, self._steps))
            gone = [oldest[i : i + _CHAIN][::-1] for i in range(0, len(oldest), _CHAIN)]
            pairs = zip(chain.from_iterable(gone), new, strict=True)
            batches.append([step(old.hashes, one, self._block_size) for old, one in pairs])
        return batches, len(batches) * self._steps * EVENT_BLOCKS


def measure(filling: Filling, engines: int) -> Grown:
    """Fill an index by `engines`, and time events and decisions."""
    gc.disable()
    index, pid = _TimedToldIndex(), os.getpid()
    start = resident_bytes(pid)
    fleet = _Fleet(filling, engines, index)
    fleet.fill()
    gc.collect()
    taken = resident_bytes(pid) - start
    events = _timed(fleet)
    decisions = uvloop.run(_decisions(filling, engines, index))
    resident = resident_bytes(pid)
    copied, noted, told, followed = _by_a_worker(fleet, index)
    held = filling.blocks_held // EVENT_BLOCKS * EVENT_BLOCKS * engines
    return Grown(
        event_us=round(events, 3),
        decision_us=[round(us, 2) for us in decisions],
        resident_mib=round(resident / 2**20, 1),
        bytes_per_block=round(taken / held, 1),
        noted_us=round(noted, 3),
        told_us=round(told, 3),
        followed_us=round(followed, 3),
        copied_bytes_per_block=round(copied / held, 1),
    )


def _timed(fleet: _Fleet) -> float:
    """The microseconds a block of steps; they come from one engine after the other."""
    made, blocks = fleet.steps()
    began = time.process_time()
    for engine, mine in zip(fleet.engines, made, strict=False):
        engine.apply(mine)
    return (time.process_time() - began) * 1e6 / blocks


def _by_a_worker(fleet: _Fleet, index: _TimedToldIndex) -> tuple[int, float, float, float]:
    """The bytes of a worker's copy of the index, which fits into what filling has freed, so that no
    memory shows it; and the microseconds a block: noting what it changes, encoding that for a
    worker, and, in the copy, decoding and applying it."""
    told: list[IndexChanges] = []
    index.tell_to(told.append)
    heard = CopiedIndex()
    for changes in index.picture():
        frame = msgspec.msgpack.encode(changes)  # the copy's keys are its own, as in a process
        heard.hear(msgspec.msgpack.decode(frame, type=IndexChanges))
    copied = heard.num_bytes()
    made, blocks = fleet.steps()
    index.noted_seconds = 0.0
    for engine, mine in zip(fleet.engines, made, strict=False):
        engine.apply(mine)
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


async def _decisions(filling: Filling, engines: int, index: MemoryIndex) -> list[float]:
    """The CPU microseconds of a decision, from the head to the choice; a few engines hold most of
    the prompt, all of them its beginning."""
    rng = np.random.default_rng(filling.seed)
    tokens = rng.integers(VOCABULARY, size=filling.prompt_tokens, dtype=np.uint32)
    keys = BlockHasher(filling.block_size).keys(tokens)
    index.apply([Store(holder, keys[: len(keys) // 8]) for holder in range(engines)])
    index.apply([Store(holder, keys[: len(keys) * 7 // 8]) for holder in range(min(3, engines))])
    model = ServedModel(MODEL, GivenTokens(tokens), (filling.block_size,))
    director = Director(
        IdleEngines(model, engines, filling.block_size),
        Matcher(index, SpeculativeOverlay()),
        load_scheduling(None),
        time.monotonic,
    )
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


class GivenTokens:
    """A prompt source for which every prompt is `token_ids`."""

    def __init__(self, token_ids: TokenIds) -> None:
        self.token_ids = token_ids

    def within(self, contexts: object, rules: object) -> GivenTokens:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        return Tokenized([self.token_ids])

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return ChatRequest(messages=body.messages)

    def rendered_text(self, body: ChatRequest) -> str | None:  # noqa: ARG002
        return None

    @property
    def local(self) -> None:
        return None


class IdleEngines:
    """A fleet of engines that do nothing and serve one model. Its table is the fleet's own."""

    def __init__(self, model: ServedModel, engines: int, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        endpoints = [Endpoint(f"e{i}", f"http://e{i}", i) for i in range(engines)]
        self._rows = ModelRows(endpoints)
        self.columns = EndpointColumns(engines)
        self.columns.states[:] = EXACT
        self.columns.block_sizes[:] = self.columns.cuts[:] = block_size

    def model(self, name: str) -> ServedModel:  # noqa: ARG002
        return self._model

    def sole_model(self) -> str:
        return self._model.name

    def candidates(self, model: str) -> Candidates:  # noqa: ARG002
        return self._rows.candidates(self.columns)

    def cut(self, holder: HolderId) -> int | None:  # noqa: ARG002
        return self._block_size

    def heal(self, endpoint: Endpoint) -> bool:  # noqa: ARG002
        return False

    def _nothing(self, *_: object, **__: object) -> None:
        """Do nothing: requests are decided and not sent, none fails, and no engine reports."""

    book = release = healed = reports = suspect = _nothing


class _Counting(Owner):
    """An owner of connections that does nothing with what they bring."""

    def __init__(self) -> None:
        self.up = 0
        self.messages = 0

    def connected(self, connection: ZmtpConnection) -> None:
        del connection
        self.up += 1

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        del connection
        self.messages += len(messages)

    def refused(self, fault: str) -> None:
        raise ConnectionError(fault)


async def reading_us(payload: bytes, connections: int, rounds: int) -> list[float]:
    """Return the CPU microseconds of reading a batch, one of each connection and all at once, as
    they are read where a process is busy; a figure for each round. Connections are TCP on this
    machine, and what its kernel does for those who send is not counted."""
    counting = _Counting()
    make = partial(ZmtpConnection, "SUB", counting)
    batch = frame(MORE, b"") + frame(MORE, bytes(8)) + frame(0, payload)
    with socket.create_server(("127.0.0.1", 0), backlog=connections) as listening:
        port = listening.getsockname()[1]
        tasks = [
            asyncio.ensure_future(keep_connected(f"tcp://127.0.0.1:{port}", counting, make))
            for _ in range(connections)
        ]
        publishers = []
        try:
            for _ in range(connections):
                publishers.append(await asyncio.to_thread(listening.accept))
                publishers[-1][0].sendall(GREETING + frame(COMMAND, ready("PUB")))
            while counting.up < connections:
                await asyncio.sleep(0)
            ours = [publisher for publisher, _ in publishers]
            took = [await _round(ours, batch, counting) for _ in range(_SKIPPED + rounds)]
            return took[_SKIPPED:]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for publisher, _ in publishers:
                publisher.close()


async def _round(publishers: Sequence[socket.socket], batch: bytes, counting: _Counting) -> float:
    for publisher in publishers:
        publisher.sendall(batch)
    expected = counting.messages + len(publishers)
    began = time.thread_time()
    while counting.messages < expected:
        await asyncio.sleep(0)
    return (time.thread_time() - began) * 1e6 / len(publishers)


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.argv[2], type=Filling)
    sys.stdout.buffer.write(msgspec.json.encode(measure(wanted, int(sys.argv[1]))))
