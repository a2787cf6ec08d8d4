"""The KV events of the trivial engine: published when asked, in the form of vLLM 0.32.

The "hashes" are a chain of xxh64 and not vLLM's own: to a router an engine's hashes are names.
"""

from __future__ import annotations

import time
from typing import Protocol

import msgspec
import xxhash
import zmq


class Publisher(Protocol):
    """Where BlockStored events go."""

    @property
    def endpoint(self) -> str: ...

    def publish(self, token_ids: list[int]) -> int:
        """Says that all full blocks of `token_ids` are stored; returns how many."""


class ZmqPublisher:
    """A PUB socket with vLLM's frames: topic | 8-byte big-endian sequence | msgpack batch.

    The topic is empty, as vLLM's is unless configured: vllm-router 0.1.17 drops, without a
    word, what comes under another (tried).
    """

    def __init__(self, block_size: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:*")
        self._block_size = block_size
        self._sequence = 0

    @property
    def endpoint(self) -> str:
        """As vLLM says it: `*` is the engine's own host."""
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return f"tcp://*:{bound.rsplit(':', 1)[1]}"

    def publish(self, token_ids: list[int]) -> int:
        event = block_stored(token_ids, self._block_size)
        payload = msgspec.msgpack.encode([time.time(), [event], 0])
        sequence = self._sequence.to_bytes(8, "big")
        self._socket.send_multipart([b"", sequence, payload])
        self._sequence += 1
        return len(token_ids) // self._block_size

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def block_stored(token_ids: list[int], block_size: int) -> dict[str, object]:
    """One BlockStored event in the map form, with all full blocks of `token_ids`."""
    full = len(token_ids) // block_size * block_size
    hashes: list[int] = []
    for start in range(0, full, block_size):
        block = msgspec.msgpack.encode(token_ids[start : start + block_size])
        hashes.append(xxhash.xxh64_intdigest(block, seed=hashes[-1] if hashes else 0))
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": token_ids[:full],
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
