"""vLLM's own block hashes, from tokens. For the simulator, which publishes them, and to find out
whether an engine hashes as we think. Keys (`keys.py`) do not depend on them.

    --prefix-caching-hash-algo   hash(x) =
    sha256 (default)             sha256(pickle(x, protocol 5))
    sha256_cbor                  sha256(canonical CBOR of x)
    xxhash                       xxh3_128(pickle(x, protocol 5))
    xxhash_cbor                  xxh3_128(canonical CBOR of x)

    H_none = hash(seed)     seed: $PYTHONHASHSEED, else "vllm-none-hash"; for the xxhash forms a
                            random one per process, so that nobody can construct collisions
    H_i    = hash((H_(i-1) or H_none, (token, ...), extra keys or None))

    on the wire             last 8 bytes as an unsigned big-endian integer, or (with
                            VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0) all bytes

Source: vllm 0.32.0, utils/hashing.py and v1/core/kv_cache_utils.py; tests/golden/blocks holds
hashes made by these functions. Extra keys are hashed with tags (0.32):
("lora", name, path), ("mm", id, offset in block), ("cache_salt", salt) in block 0, and
("prompt_embeds", digest), in this order. Before, they were hashed as events still carry them,
without tags and without the adapter's path.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from inferway.model import TokenIds

DEFAULT_SEED = "vllm-none-hash"

_SALT = "cache_salt"

HashExtra = tuple[str | int | bytes, ...]


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter as the engine hashes it."""

    name: str
    path: str


class Dialect:
    """The algorithm by which one engine hashes blocks. Raises ValueError for an algorithm that vLLM
    does not have."""

    def __init__(
        self, algorithm: str = "sha256", seed: str = DEFAULT_SEED, *, tagged: bool = True
    ) -> None:
        if algorithm not in _ALGORITHMS:
            known = ", ".join(_ALGORITHMS)
            raise ValueError(f"algorithm: no block hash {algorithm!r}; known: {known}")
        self.algorithm = algorithm
        self.seed = seed
        self.tagged = tagged  # how extra keys are hashed
        self._encode, self._digest = _ALGORITHMS[algorithm]
        self.none_hash = self._digest(self._encode(seed))

    def block_hash(
        self,
        parent: bytes | None,
        token_ids: Sequence[int],
        extra: tuple[HashExtra, ...] | None = None,
        ahead: tuple[int, ...] = (),
    ) -> bytes:
        """Return the hash of one full block. `token_ids` are Python integers; `parent` None starts
        a prompt. `ahead`: the tokens behind the block, if hashes cover them (vLLM 0.33)."""
        beside: object = extra
        if extra is not None and not self.tagged:
            beside = _untagged(extra)
        elif extra is not None:
            # Pickle writes an object that it meets again as a reference. Two pictures share
            # their tag, a constant in vLLM: they must share it here as well.
            beside = tuple((sys.intern(str(key[0])), *key[1:]) for key in extra)
        if ahead:
            beside = (beside, *ahead)
        return self._digest(self._encode((parent or self.none_hash, tuple(token_ids), beside)))

    def block_hashes(
        self,
        token_ids: Sequence[int] | TokenIds,
        block_size: int,
        *,
        lora: LoraAdapter | None = None,
        cache_salt: str | None = None,
        lookahead: int = 0,
    ) -> Iterator[bytes]:
        """Yield the hashes of all full blocks of a prompt. `lookahead`: so many tokens behind a
        block are part of it."""
        parent, extra = None, hash_extras(lora, cache_salt)
        for start in range(0, len(token_ids) - lookahead - block_size + 1, block_size):
            end = start + block_size
            tokens = token_ids[start : end + lookahead]
            tokens = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
            ahead = tuple(tokens[block_size:])
            yield (parent := self.block_hash(parent, tokens[:block_size], extra, ahead))
            if start == 0:
                extra = hash_extras(lora)


def without_salt(extra: tuple[HashExtra, ...] | None) -> tuple[HashExtra, ...] | None:
    """Return a prompt's extra keys as they are behind its first hash."""
    left = tuple(key for key in extra or () if key[0] != _SALT)
    return left or None


def hash_extras(
    lora: LoraAdapter | None = None,
    cache_salt: str | None = None,
    media: Sequence[tuple[str, int]] = (),
) -> tuple[HashExtra, ...] | None:
    """Return one block's extra keys in the form in which they are hashed. The salt belongs to block
    0 alone. `media`: names, and where their tokens begin, counted from the block's first."""
    extras: list[HashExtra] = []
    if lora is not None:
        extras.append(("lora", lora.name, lora.path))
    extras += [("mm", name, offset) for name, offset in media]
    if cache_salt:
        extras.append((_SALT, cache_salt))
    return tuple(extras) or None


def published_extras(extra: tuple[HashExtra, ...] | None) -> list[object] | None:
    """Return the same keys as an event carries them: without tags, only pictures as pairs."""
    if extra is None:
        return None
    return [list(key[1:]) if key[0] == "mm" else key[1] for key in extra]


def _untagged(extra: tuple[HashExtra, ...]) -> tuple[object, ...]:
    return tuple(key[1:] if key[0] == "mm" else key[1] for key in extra)


def wire_hash(block_hash: bytes) -> int:
    """Return the 64 bits that events carry by default."""
    return int.from_bytes(block_hash[-8:], "big")


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xxh3(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def cbor(value: object) -> bytes:
    """Encode what block hashes are made of as canonical CBOR (RFC 8949, 4.2): None, integers, text,
    bytes and sequences of these. Raises TypeError for anything else."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        raise TypeError(f"cbor: {value!r} is no part of a block")
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        raw = value.encode()
        return _head(3, len(raw)) + raw
    if isinstance(value, list | tuple):
        return _head(4, len(value)) + b"".join([cbor(item) for item in value])
    raise TypeError(f"cbor: {type(value).__name__} is no part of a block")


def _head(major: int, argument: int) -> bytes:
    """A major type and its argument in the fewest bytes."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << 8 * size:
            return bytes((major << 5 | code,)) + argument.to_bytes(size, "big")
    raise TypeError(f"cbor: {argument!r} needs more than 64 bits")


_ALGORITHMS: dict[str, tuple[Callable[[object], bytes], Callable[[bytes], bytes]]] = {
    "sha256": (_pickled, _sha256),
    "sha256_cbor": (cbor, _sha256),
    "xxhash": (_pickled, _xxh3),
    "xxhash_cbor": (cbor, _xxh3),
}

ALGORITHMS = tuple(_ALGORITHMS)
