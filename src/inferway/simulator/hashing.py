"""(parent hash, a block's tokens, extra keys) -> the block's hash, as vLLM computes it."""

from __future__ import annotations

import hashlib
import pickle
from typing import Protocol

HashedExtraKeys = tuple[tuple[str, ...], ...] | None


class BlockHasher(Protocol):
    """One engine's block hash, its seed included."""

    def __call__(
        self, parent: bytes | None, tokens: tuple[int, ...], extra_keys: HashedExtraKeys
    ) -> bytes:
        """32 bytes. No parent: the first block of a prompt."""


def vllm_hasher(seed: str | None) -> BlockHasher:
    """vLLM's default, sha256. `seed` is its PYTHONHASHSEED; None: not set there."""
    root = _sha256("vllm-none-hash" if seed is None else seed)

    def block_hash(
        parent: bytes | None, tokens: tuple[int, ...], extra_keys: HashedExtraKeys
    ) -> bytes:
        return _sha256((root if parent is None else parent, tokens, extra_keys))

    return block_hash


def _sha256(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()
