"""token ids -> block keys.

Rule 1: a key depends on the tokens of its block, on the key before it (for the first block, on
seed and block size) and on what `extra_keys` adds. On nothing else: no clock, no dict order,
no model. (An engine has one base model and candidates are filtered by model before keys are
compared, so aliases of a model share its keys.)
Rule 2: only full blocks have keys. The tail of a prompt has none, so its last
`len(token_ids) % block_size` tokens never count as cached.
Rule 3: a chain continues from any key: keys(a + b) == keys(a) + keys(b, parent=keys(a)[-1]).
Rule 4: tests/golden/blocks/keys.json holds keys; change nothing here without them: processes of
one gateway must agree, and so must a gateway and the snapshot of the one before it.

How. All arithmetic is modulo 2**64. Tokens are taken two at a time as one 64-bit lane x; lane
number k of a block has constants a_k, m_k, w_k of its own (odd m and w, splitmix64 of seed and
block size), so position counts:

    x = (x + a_k) * m_k;  x ^= x >> 32;  x *= M;  x ^= x >> 29;  block digest h = sum x * w_k

and blocks are chained by a polynomial with odd K, which numpy evaluates for all at once:

    key_i = key_(i-1) * K + h_i  =  K**i * (root + sum over j <= i of h_j * K**-j)

Collisions. A lane's mix is a bijection with two multiplications (murmur's finalizer spreads
every input bit over the upper half, the shifts bring it down), its weight is a random odd
number: two blocks that differ meet with probability ~2**-64 over the choice of constants. The
chain is linear in the digests: prompts whose digests differ in one block never meet after it (K
is odd, hence invertible), prompts that swap two blocks d apart meet with probability ~2**-62 * d
at most (K is 5 modulo 8, so 4 * d bounds the power of 2 in K**d - 1). At 10 million keys the
chance of any pair is ~3e-6. It is not a cryptographic hash: who knows the seed can construct two
prompts with one key. What that buys is a wrong forecast for the attacker's own prompt: keys
choose an engine, the engine compares its own hashes.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from inferway.kv.blocks.extra_keys import BlockExtras, ExtraItems, encode
from inferway.model import BlockKey, TokenIds

Lanes = NDArray[np.uint64]

_TOKEN = np.dtype("<u4")
_LANE = np.dtype("<u8")
_MASK = (1 << 64) - 1
# arrays without dimensions: numpy takes 0.2 µs to make one of a scalar, each time
_SHIFT_1 = np.array(32, dtype=np.uint64)
_SHIFT_2 = np.array(29, dtype=np.uint64)
_MULTIPLY = np.array(0x9FB21C651E98DF25, dtype=np.uint64)  # of rrmxmx (P. Evensen): good spread


_BEHIND = 0x0C3A_99B7_41E2_6F05  # what the seed differs by of the tokens behind a block
_FEW_BLOCKS = 32  # up to so many a loop is faster than five array operations
_SMALL_PRODUCT = 800  # up to so many factors a product is faster than five operations on arrays
_LAID_OUT = 64  # up to so many blocks have arrays laid out for `keys_of_list`: 64 KB for the most


class _Layout:
    """The arrays that the keys of one number of blocks are computed with, and in: making arrays and
    views of them takes as long as what is done in them.

    `weights` are those of the lanes, times K**-j for block j: what is summed up to a block's end
    are all digests before it, as the chain needs them.

    Of few blocks, the mixed lanes and the key before them are one vector, and `product` is
    the matrix that makes keys of it: block i has K**(i - j) times the lanes' weights for each
    block j up to i, and K**(i + 1) for the key."""

    __slots__ = (
        "adds",
        "ends",
        "high",
        "key",
        "keys",
        "low",
        "muls",
        "powers",
        "product",
        "rows",
        "shifted",
        "vector",
        "weights",
        "x",
    )

    def __init__(self, adds: Lanes, muls: Lanes, weights: Lanes, powers: Lanes) -> None:
        num_blocks, count = len(powers), len(adds)
        lanes = count // num_blocks
        self.adds, self.muls, self.weights, self.powers = adds, muls, weights, powers
        self.vector = np.empty(count + 1, dtype=np.uint64)
        self.x = self.vector[:count]
        self.low, self.high = (self.x.view(_TOKEN)[half::2] for half in (0, 1))
        self.shifted = np.empty_like(self.x)
        self.rows = self.x.reshape(num_blocks, lanes)
        self.ends = self.x[lanes - 1 :: lanes]
        self.key = np.zeros((), dtype=np.uint64)
        self.keys = np.empty_like(powers)
        self.product: Lanes | None = None
        if num_blocks * count <= _SMALL_PRODUCT:
            of_blocks = np.outer(powers, weights)
            for i in range(num_blocks):
                of_blocks[i, (i + 1) * lanes :] = 0  # of blocks after it
            self.product = np.column_stack((of_blocks, powers))


class BlockHasher:
    """Keys of one block size and seed. Immutable but for buffers that grow; not for threads.

    `lookahead`: so many tokens behind a block are part of it, as vLLM 0.33 hashes blocks for a
    draft that reads them (`num_hash_lookahead_tokens`). A block without them is not full then."""

    def __init__(self, block_size: int, seed: int = 0, lookahead: int = 0) -> None:
        if block_size < 1:
            raise ValueError(f"block_size: {block_size!r} must be at least 1")
        self.block_size = block_size
        self.seed = seed
        self.lookahead = lookahead
        numbers = _SplitMix(seed & _MASK, block_size)
        self._root = numbers.next()
        self._factor = numbers.next() & ~7 | 5  # 5 modulo 8: longest period
        lanes = (block_size + 1) // 2
        self._add = numbers.column(lanes)
        self._mul = numbers.column(lanes) | np.uint64(1)
        self._weight = numbers.column(lanes) | np.uint64(1)
        self._extras_key = numbers.next().to_bytes(8, "little")
        self._digest_of = lru_cache(maxsize=4096)(self._extras_digest)
        self._tiled = 0
        # an odd block ends in half a lane
        self._most_laid_out = 0 if block_size % 2 or lookahead else _LAID_OUT
        behind = _SplitMix(seed & _MASK ^ _BEHIND, lookahead)
        self._behind = behind.column(lookahead), behind.column(lookahead) | np.uint64(1)
        self._layouts: dict[int, _Layout] = {}
        self._tile(256)

    def keys(
        self,
        token_ids: TokenIds,
        extras: BlockExtras | None = None,
        parent: BlockKey | None = None,
    ) -> list[BlockKey]:
        """Return the keys of the full blocks of `token_ids`, which follow on `parent` (None: a
        prompt's start). `extras` count from the first of these blocks."""
        return self.chain(self.digests(token_ids, extras), parent)

    def keys_of_list(
        self,
        token_ids: Sequence[int],
        extras: BlockExtras | None = None,
        parent: BlockKey | None = None,
    ) -> list[BlockKey]:
        """Do as `keys`, if all blocks are full; fastest with tokens in an array of type "I"."""
        packed = token_ids if isinstance(token_ids, array) else array("I", token_ids)
        num_blocks = len(packed) // self.block_size
        if extras is not None or not 0 < num_blocks <= self._most_laid_out:
            return self.keys(np.frombuffer(packed, _TOKEN), extras, parent)
        at = self._mixed(packed, num_blocks)
        if at.product is not None:
            at.vector[-1] = self._root if parent is None else parent
            return at.product.dot(at.vector).tolist()  # type: ignore[no-any-return]
        np.multiply(at.x, at.weights, at.x)
        np.add.accumulate(at.x, out=at.x)
        at.key[()] = self._root if parent is None else parent
        np.add(at.ends, at.key, at.keys)
        np.multiply(at.keys, at.powers, at.keys)
        keys: list[BlockKey] = at.keys.tolist()
        return keys

    def digests_of_list(self, packed: array[int]) -> list[int]:
        """Do as `digests`, if all blocks are full and have nothing but tokens in an array of type
        "I"."""
        num_blocks = len(packed) // self.block_size
        if 0 < num_blocks <= self._most_laid_out:
            digests = self._mixed(packed, num_blocks).rows.dot(self._weight)
        else:
            digests = self.digests(np.frombuffer(packed, _TOKEN))
        return digests.tolist()  # type: ignore[no-any-return]

    def _mixed(self, packed: array[int], num_blocks: int) -> _Layout:
        """Mix the lanes of so many full blocks where they are laid out."""
        at = self._layouts.get(num_blocks) or self._layout(num_blocks)
        x, shifted = at.x, at.shifted
        np.add(np.frombuffer(packed, _LANE), at.adds, x)
        np.multiply(x, at.muls, x)
        np.bitwise_xor(at.low, at.high, at.low)  # x ^= x >> 32
        np.multiply(x, _MULTIPLY, x)
        np.right_shift(x, _SHIFT_2, shifted)
        np.bitwise_xor(x, shifted, x)
        return at

    def digests(self, token_ids: TokenIds, extras: BlockExtras | None = None) -> Lanes:
        """Return one number per full block, which does not depend on the blocks before it."""
        num_blocks = max(len(token_ids) - self.lookahead, 0) // self.block_size
        if num_blocks > self._tiled:
            self._tile(num_blocks)
        x = self._lanes(token_ids, num_blocks)
        x = x + self._adds[: len(x)]
        x *= self._muls[: len(x)]
        x ^= x >> _SHIFT_1
        x *= _MULTIPLY
        x ^= x >> _SHIFT_2
        digests: Lanes = x.reshape(num_blocks, len(self._weight)).dot(self._weight)
        if extras is not None:
            digests += self._extras_column(extras, num_blocks)
        if self.lookahead:
            digests += self._behind_column(token_ids, num_blocks)
        return digests

    def chain(self, digests: Lanes, parent: BlockKey | None = None) -> list[BlockKey]:
        """Return the keys of blocks with these digests, which follow on `parent`."""
        if len(digests) <= _FEW_BLOCKS:
            return self.chain_of_list(digests.tolist(), parent)
        key = self._root if parent is None else parent
        scaled = digests * self._inverse_powers[: len(digests)]
        np.cumsum(scaled, out=scaled)
        scaled += np.uint64(key)
        scaled *= self._powers[: len(digests)]
        chained: list[BlockKey] = scaled.tolist()
        return chained

    def chain_of_list(
        self, digests: Sequence[int], parent: BlockKey | None = None
    ) -> list[BlockKey]:
        """Do as `chain`, for few blocks."""
        key, factor = self._root if parent is None else parent, self._factor
        keys = []
        for digest in digests:
            key = (key * factor + digest) & _MASK
            keys.append(key)
        return keys

    def _layout(self, num_blocks: int) -> _Layout:
        count = num_blocks * len(self._weight)
        weights = np.outer(self._inverse_powers[:num_blocks], self._weight).reshape(count)
        layout = self._layouts[num_blocks] = _Layout(
            self._adds[:count], self._muls[:count], weights, self._powers[:num_blocks]
        )
        return layout

    def _lanes(self, token_ids: TokenIds, num_blocks: int) -> Lanes:
        """Two tokens to a lane, the first in the low half; an odd block ends in half a lane."""
        size = self.block_size
        tokens = token_ids[: num_blocks * size]
        if tokens.dtype != _TOKEN or not tokens.flags.c_contiguous:
            tokens = np.ascontiguousarray(tokens, dtype=_TOKEN)
        if size % 2:
            padded = np.zeros((num_blocks, size + 1), dtype=_TOKEN)
            padded[:, :size] = tokens.reshape(num_blocks, size)
            tokens = padded.reshape(-1)
        return tokens.view(_LANE)

    def _behind_column(self, token_ids: TokenIds, num_blocks: int) -> Lanes:
        """Return the column of the tokens behind each block."""
        starts = np.arange(1, num_blocks + 1) * self.block_size
        x = token_ids[starts[:, None] + np.arange(self.lookahead)].astype(np.uint64)
        add, weight = self._behind
        x += add
        x *= _MULTIPLY
        x ^= x >> _SHIFT_1
        x *= _MULTIPLY
        x ^= x >> _SHIFT_2
        column: Lanes = x.dot(weight)
        return column

    def _extras_column(self, extras: BlockExtras, num_blocks: int) -> Lanes:
        column = np.zeros(num_blocks, dtype=np.uint64)
        if extras.every:
            column[:] = self._digest_of(extras.every)
        for i, items in extras.at.items():
            if i < num_blocks:
                column[i] = self._digest_of(extras.every + items)
        return column

    def _extras_digest(self, items: ExtraItems) -> int:
        """Keyed, because salts are secrets that must not be guessed from keys."""
        digest = hashlib.blake2b(encode(items), digest_size=8, key=self._extras_key)
        return int.from_bytes(digest.digest(), "little")

    def _tile(self, num_blocks: int) -> None:
        """Constants laid out for so many blocks: one long operation instead of many short."""
        self._tiled = num_blocks = max(num_blocks, 2 * self._tiled)
        self._adds = np.tile(self._add, num_blocks)
        self._muls = np.tile(self._mul, num_blocks)
        self._powers = _powers(self._factor, num_blocks)
        self._inverse_powers = _powers(pow(self._factor, -1, 1 << 64), num_blocks)


def _powers(base: int, count: int) -> Lanes:
    """base**1 .. base**count."""
    column = np.full(count, base, dtype=np.uint64)
    return np.multiply.accumulate(column)


class _SplitMix:
    """splitmix64 (Steele, Lea, Flood 2014): constants from a seed, the same everywhere."""

    def __init__(self, seed: int, block_size: int) -> None:
        self._state = seed
        self._state = self.next() ^ block_size

    def next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def column(self, length: int) -> Lanes:
        return np.array([self.next() for _ in range(length)], dtype=np.uint64)
