"""One engine's events as its socket brings them, and the gateway's way from them to the index."""

from __future__ import annotations

import gc
import os
import random
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import cast

import msgspec

from inferway.fleet.event_source import EventSource
from inferway.fleet.subscriber import Subscription
from inferway.fleet.zmq_subscriber import ZmqSubscriber
from inferway.fleet.zmtp import ZmtpConnection
from inferway.kv.events.adapters.sglang import open_batch
from inferway.kv.events.dialect_finder import DialectFinder, DialectState
from inferway.kv.events.event import BlockStored
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex
from inferway.model import HolderId
from inferway_bench.cpu import resident_bytes
from inferway_bench.index.worker import VOCABULARY, Stored

BLOCKS = 16  # of an event
CHAIN = 32  # events of a prompt
_SAMPLES = 60
_ENCODER = msgspec.msgpack.Encoder()
_ARRAY_AND_TOKEN = struct.Struct(">BHBI")  # 0xdc: 16 bits of length; 0xce: an integer of 32 bits


class FollowedEngine:
    """The gateway's own way of an engine's events to the index, from messages on that its socket
    has brought: order and digests of batches, orphans, copies, losses. The engine has stored
    nothing yet, and there is no event loop to give others a turn."""

    def __init__(self, holder: HolderId, block_size: int, index: MemoryIndex) -> None:
        source = EventSource(0, "tcp://127.0.0.1:1", None)
        subscription = Subscription(source, holder, block_size, index)
        self._subscriber = ZmqSubscriber(subscription, clock=_no_time_passes)
        self._link = cast(ZmtpConnection, object())  # it is compared, and nothing else
        self._seq = 0
        self.blocks = self._subscriber.blocks
        self.follower = self._subscriber.follower
        self._subscriber.connected(self._link)

    def find_dialect(self, payloads: Iterable[bytes]) -> None:
        """Find out how the blocks of these are hashed, as the gateway does beside the first events,
        or that it is none of the ways we know, as with random hashes. From now on hashes are
        checked."""
        finder = DialectFinder()
        for payload in payloads:
            for event in open_batch(payload).decoded().events:
                if isinstance(event, BlockStored):
                    finder.see(event)
            while finder.has_work:
                finder.step(64)
            if finder.state is not DialectState.UNKNOWN:
                break
        self.blocks.verify_hashes(finder)

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Apply the next batches."""
        received, link = self._subscriber.received, self._link
        for seq, payload in enumerate(payloads, self._seq):
            received(link, [[b"", seq.to_bytes(8, "big"), payload]])
            self._seq = seq + 1
        assert self.follower.state is StreamState.EXACT


def _no_time_passes() -> float:
    return -1.0


def payload(stored: Stored, block_size: int) -> bytes:
    """Return a batch of one event, with the fields that vLLM 0.32 sends."""
    return _batch([_stored(stored, block_size)])


def _stored(stored: Stored, block_size: int) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": stored.hashes,
        "parent_block_hash": stored.parent,
        "token_ids": stored.tokens,
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def step(gone: Sequence[int], stored: Stored, block_size: int) -> bytes:
    """Return the batch of a step that stores blocks and needs the room of others, as vLLM 0.32
    publishes it: once a step, what is removed with an event for each block, the end of the chain
    first."""
    event = {"type": "BlockRemoved", "medium": "GPU", "group_idx": 0}
    removed = [{**event, "block_hashes": [block_hash]} for block_hash in reversed(gone)]
    return _batch([*removed, _stored(stored, block_size)])


def _batch(events: Sequence[Mapping[str, object]]) -> bytes:
    return _ENCODER.encode([1700000000.5, events, 0])


def endless_payloads(block_size: int, seed: int, chain: int = CHAIN) -> Iterator[bytes]:
    """Return batches that store BLOCKS new blocks each, `chain` of them to a prompt."""
    made = endless_events(block_size, seed, chain, BLOCKS)
    return (payload(stored, block_size) for stored in made)


def endless_events(block_size: int, seed: int, chain: int, blocks: int) -> Iterator[Stored]:
    """Return events of `blocks` new blocks each, `chain` of them to a prompt.

    Their tokens are encoded here, all but the first, so that making a batch costs little beside
    applying it.
    """
    numbers = random.Random(seed)
    texts = [
        [numbers.randrange(VOCABULARY) for _ in range(blocks * block_size - 1)] for _ in range(64)
    ]
    encoded = [b"".join(map(_ENCODER.encode, text)) for text in texts]

    def made() -> Iterator[Stored]:
        parent: int | None = None
        for number in count():
            first = _ARRAY_AND_TOKEN.pack(0xDC, blocks * block_size, 0xCE, number)
            tokens = msgspec.Raw(first + encoded[number % len(encoded)])
            hashes = [numbers.getrandbits(64) for _ in range(blocks)]
            yield Stored(hashes, parent if number % chain else None, tokens)
            parent = hashes[-1]

    return made()


def bytes_of_a_block(num_blocks: int, block_size: int, seed: int) -> float:
    """Return the resident bytes of a block, everything included, at the peak of the growth beyond
    its twentieth. The process has done nothing else."""
    index = MemoryIndex()
    engine = FollowedEngine(0, block_size, index)
    engine.find_dialect(endless_payloads(block_size, seed + 1, chain=1))
    stream = endless_payloads(block_size, seed)
    engine.apply(islice(stream, CHAIN))  # what is made once
    index.apply(engine.blocks.forget())
    gc.collect()
    gc.freeze()  # as the gateway does when it has started
    before, peak, stored = resident_bytes(os.getpid()), 0.0, 0
    step = max(1, num_blocks // _SAMPLES // BLOCKS)
    while stored < num_blocks:
        engine.apply(islice(stream, step))
        stored += step * BLOCKS
        if stored >= num_blocks / 20:
            peak = max(peak, (resident_bytes(os.getpid()) - before) / stored)
    assert index.num_blocks(0) == engine.blocks.num_blocks == stored
    return peak
