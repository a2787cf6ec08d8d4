"""Events as an engine's socket brings them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from inferway_bench.index.workload import VOCABULARY, Stored

_ENCODER = msgspec.msgpack.Encoder()
_HASH = struct.Struct(">BQ")  # 0xcf: an unsigned integer of 64 bits
_TOKEN = struct.Struct(">BI")  # 0xce: one of 32 bits

# a payload cut at its hashes, its parent and its first token
Template = tuple[bytes, tuple[bytes, bytes], bytes]

_MARK = 0x1122334455667788
_PARENT = 0x1122334455667789
_FIRST = 0x11223344


def payload(stored: Stored, block_size: int) -> bytes:
    """A batch of one event, with the fields that vLLM 0.32 sends."""
    return _ENCODER.encode([1700000000.5, [_event(stored, block_size)], 0])


def payloads(events: Iterable[Stored], block_size: int) -> list[bytes]:
    return [payload(event, block_size) for event in events]


def endless_payloads(blocks: int, block_size: int, chain: int, seed: int) -> Iterator[bytes]:
    """Events of so many new blocks each, `chain` of them to a prompt. Made from a few templates,
    so that making them costs little beside applying them."""
    numbers = random.Random(seed)
    templates = [_template(numbers, blocks, block_size) for _ in range(64)]
    return _from_templates(numbers, templates, blocks, chain)


def _from_templates(
    numbers: random.Random, templates: Sequence[Template], blocks: int, chain: int
) -> Iterator[bytes]:
    parent, count = b"\xc0", 0
    while True:
        before, between, after = templates[count & 63]
        if count % chain == 0:
            parent = b"\xc0"
        hashes = [numbers.getrandbits(64) for _ in range(blocks)]
        packed = b"".join([_HASH.pack(0xCF, block_hash) for block_hash in hashes])
        first_token = _TOKEN.pack(0xCE, count)
        yield b"".join((before, packed, between[0], parent, between[1], first_token, after))
        parent = _HASH.pack(0xCF, hashes[-1])
        count += 1


def _template(numbers: random.Random, blocks: int, block_size: int) -> Template:
    tokens = [_FIRST, *(numbers.randrange(VOCABULARY) for _ in range(blocks * block_size - 1))]
    encoded = payload(Stored([_MARK] * blocks, _PARENT, tokens), block_size)
    before, _, rest = encoded.partition(_HASH.pack(0xCF, _MARK) * blocks)
    upto_parent, _, rest = rest.partition(_HASH.pack(0xCF, _PARENT))
    upto_tokens, _, after = rest.partition(_TOKEN.pack(0xCE, _FIRST))
    return before, (upto_parent, upto_tokens), after


def _event(stored: Stored, block_size: int) -> dict[str, object]:
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
