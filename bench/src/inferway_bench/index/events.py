"""One engine's events as its socket brings them, and the gateway's way from them to the index."""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from inferway.events.apply import EngineBlocks
from inferway.events.dialect import DialectFinder, DialectState
from inferway.events.follower import EngineFollower
from inferway.events.stream import StreamState
from inferway.events.wire import BlockStored, decode_batch
from inferway.fleet.journal.journal import HolderJournal
from inferway.index.memory import MemoryIndex
from inferway.model import HolderId
from inferway_bench.index.workload import VOCABULARY, Stored

BLOCKS = 16  # of an event
CHAIN = 32  # events of a prompt
_ENCODER = msgspec.msgpack.Encoder()
_HASH = struct.Struct(">BQ")  # 0xcf: an unsigned integer of 64 bits
_TOKEN = struct.Struct(">BI")  # 0xce: one of 32 bits
_MARK, _PARENT, _FIRST = 0x1122334455667788, 0x1122334455667789, 0x11223344


class FollowedEngine:
    """The gateway's own way of an engine's events to the index, without the subscriber's sockets:
    order and digests of batches, orphans, copies, losses, and the journal if there is one. The
    engine has stored nothing yet, unless the journal says so."""

    def __init__(
        self,
        holder: HolderId,
        block_size: int,
        index: MemoryIndex,
        journal: HolderJournal | None = None,
    ) -> None:
        self.journal = journal
        self._index = index
        self._seq = 0
        on_record = None if journal is None else journal.record
        self.blocks = EngineBlocks(holder, block_size, holdings=index, on_record=on_record)
        self.follower = self._follower()
        if journal is None:
            self.begin()

    async def load(self) -> None:
        """Load the journal."""
        assert self.journal is not None
        await self.journal.load(self.follower, self._index)

    def begin(self) -> None:
        """Get in step with the engine. What was loaded counts as proven: its replay is empty."""
        if self._seq or self.blocks.num_blocks:
            self.follower = self._follower()
        for steps in (self.follower.resume(), self.follower.replay_ended(True)):
            for _ in steps:
                pass

    def find_dialect(self, payloads: Iterable[bytes]) -> None:
        """Find out how the blocks of these are hashed, as the gateway does beside the first events,
        or that it is none of the ways we know, as with random hashes. From now on hashes are
        checked."""
        finder = DialectFinder()
        for payload in payloads:
            for event in decode_batch(payload).events:
                if isinstance(event, BlockStored):
                    finder.see(event)
            while finder.has_work:
                finder.step(64)
            if finder.state is not DialectState.UNKNOWN:
                break
        self.blocks.witness = finder.see

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Apply the next batches."""
        live, index = self.follower.live, self._index
        for seq, payload in enumerate(payloads, self._seq):
            for step in live(seq, payload):
                assert isinstance(step, list)
                index.apply(step)
            self._seq = seq + 1
        assert self.follower.state is StreamState.EXACT

    def _follower(self) -> EngineFollower:
        on_done = None if self.journal is None else self.journal.batch_done
        return EngineFollower(self.blocks, holdings=self._index, on_batch_done=on_done)


def payload(stored: Stored, block_size: int) -> bytes:
    """Return a batch of one event, with the fields that vLLM 0.32 sends."""
    event = {
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
    return _batch(event)


def endless_payloads(
    block_size: int, seed: int, chain: int = CHAIN, max_held: int | None = None
) -> Iterator[bytes]:
    """Yield batches that store BLOCKS new blocks each, `chain` of them to a prompt; beyond
    `max_held` blocks, also batches that remove as many old ones.

    They are made from a few templates, so that making them costs little beside applying them.
    """
    numbers = random.Random(seed)
    templates = [_template(numbers, block_size) for _ in range(64)]
    held: deque[list[int]] = deque()
    parent, count = b"\xc0", 0
    while True:
        before, upto_parent, upto_tokens, after = templates[count & 63]
        if count % chain == 0:
            parent = b"\xc0"
        hashes = [numbers.getrandbits(64) for _ in range(BLOCKS)]
        packed = b"".join([_HASH.pack(0xCF, block_hash) for block_hash in hashes])
        first_token = _TOKEN.pack(0xCE, count)
        yield b"".join((before, packed, upto_parent, parent, upto_tokens, first_token, after))
        parent = _HASH.pack(0xCF, hashes[-1])
        count += 1
        if max_held is not None:
            held.append(hashes)
            if len(held) * BLOCKS > max_held:
                yield removal(held.popleft())


def removal(hashes: list[int]) -> bytes:
    """Return a batch of one event that removes these blocks."""
    return _batch({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"})


def _batch(event: Mapping[str, object]) -> bytes:
    return _ENCODER.encode([1700000000.5, [event], 0])


def _template(numbers: random.Random, block_size: int) -> tuple[bytes, bytes, bytes, bytes]:
    """A payload cut at its hashes, its parent and its first token."""
    tokens = [_FIRST, *(numbers.randrange(VOCABULARY) for _ in range(BLOCKS * block_size - 1))]
    encoded = payload(Stored([_MARK] * BLOCKS, _PARENT, tokens), block_size)
    before, _, rest = encoded.partition(_HASH.pack(0xCF, _MARK) * BLOCKS)
    upto_parent, _, rest = rest.partition(_HASH.pack(0xCF, _PARENT))
    upto_tokens, _, after = rest.partition(_TOKEN.pack(0xCE, _FIRST))
    return before, upto_parent, upto_tokens, after
