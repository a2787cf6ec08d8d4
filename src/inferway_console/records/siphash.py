"""SipHash-2-4 (J.-P. Aumasson, D. J. Bernstein, 2012) of many 64-bit numbers at a time: who does
not know the key cannot tell which number a hash is of, nor try out guesses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

KEY_BYTES = 16
_LENGTH = np.uint64(8 << 56)  # of a message of 8 bytes, as its last word


def siphash(key: bytes, numbers: Numbers) -> Numbers:
    """Return the hash of each number, as eight bytes, little-endian. `key` has KEY_BYTES."""
    k0, k1 = np.frombuffer(key, "<u8")
    v0 = np.full(numbers.shape, k0 ^ np.uint64(0x736F6D6570736575))
    v1 = np.full(numbers.shape, k1 ^ np.uint64(0x646F72616E646F6D))
    v2 = np.full(numbers.shape, k0 ^ np.uint64(0x6C7967656E657261))
    v3 = k1 ^ np.uint64(0x7465646279746573) ^ numbers
    state = (v0, v1, v2, v3)
    state = _rounds(state, 2)
    state = (state[0] ^ numbers, state[1], state[2], state[3] ^ _LENGTH)
    state = _rounds(state, 2)
    state = (state[0] ^ _LENGTH, state[1], state[2] ^ np.uint64(0xFF), state[3])
    v0, v1, v2, v3 = _rounds(state, 4)
    return v0 ^ v1 ^ v2 ^ v3


_State = tuple[Numbers, Numbers, Numbers, Numbers]


def _rounds(state: _State, number: int) -> _State:
    v0, v1, v2, v3 = state
    for _ in range(number):
        v0 = v0 + v1
        v1 = _rotated(v1, 13) ^ v0
        v0 = _rotated(v0, 32)
        v2 = v2 + v3
        v3 = _rotated(v3, 16) ^ v2
        v0 = v0 + v3
        v3 = _rotated(v3, 21) ^ v0
        v2 = v2 + v1
        v1 = _rotated(v1, 17) ^ v2
        v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


def _rotated(numbers: Numbers, by: int) -> Numbers:
    left: Numbers = numbers << np.uint64(by)
    left |= numbers >> np.uint64(64 - by)
    return left
