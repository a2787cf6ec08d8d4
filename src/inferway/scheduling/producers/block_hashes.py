"""Bytes -> a hash for each block of them."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest


def block_hashes(prompt: bytes, block_bytes: int, most_blocks: int, seed: int) -> list[int]:
    """A block's hash depends on its bytes, on all blocks before it and on `seed`. The last block
    may be a short one; a prompt shorter than one block has none."""
    if len(prompt) < block_bytes:
        return []
    hashes = []
    for start in range(0, min(len(prompt), block_bytes * most_blocks), block_bytes):
        seed = xxh3_64_intdigest(prompt[start : start + block_bytes], seed)
        hashes.append(seed)
    return hashes
