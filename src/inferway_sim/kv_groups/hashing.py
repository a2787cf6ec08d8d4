"""The block hashes of a request: with the tokens after each block where the engine speculates, as
vLLM 0.33's (v1/core/kv_cache_utils.py)."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence

from inferway.kv.blocks.dialects import Dialect, HashExtra


class LookaheadHasher:
    """Hashes blocks of `unit` tokens in the engine's dialect. With `lookahead` each hash covers
    that number of tokens after its block, and is there only once these tokens are; vLLM's own
    algorithm, sha256, is the only one then."""

    def __init__(self, dialect: Dialect, unit: int, lookahead: int) -> None:
        self._dialect = dialect
        self.unit = unit
        self.lookahead = lookahead

    def block_hash(
        self,
        parent: bytes | None,
        tokens: Sequence[int],
        end: int,
        extra: tuple[HashExtra, ...] | None,
    ) -> bytes:
        """Return the hash of the block of a request's `tokens` that ends at token `end`."""
        block = tokens[end - self.unit : end]
        if not self.lookahead:
            return self._dialect.block_hash(parent, block, extra)
        keys = (extra, *tokens[end : end + self.lookahead])
        hashed = (parent or self._dialect.none_hash, tuple(block), keys)
        return hashlib.sha256(pickle.dumps(hashed, protocol=5)).digest()
