"""SipHash as its authors have it."""

from __future__ import annotations

import numpy as np

from inferway_console.records.siphash import siphash

KEY = bytes(range(16))


def test_the_reference_vector_of_eight_bytes() -> None:
    message = np.frombuffer(bytes(range(8)), "<u8")

    # vectors_sip64[8] of the reference implementation (github.com/veorq/SipHash)
    assert siphash(KEY, message).astype("<u8").tobytes().hex() == "6224939a79f5f593"


def test_numbers_are_hashed_each_for_itself() -> None:
    numbers = np.arange(1000, dtype=np.uint64)
    together = siphash(KEY, numbers)

    assert [int(siphash(KEY, numbers[i : i + 1])[0]) for i in (0, 7, 999)] == [
        int(together[i]) for i in (0, 7, 999)
    ]
    assert len(set(together.tolist())) == 1000


def test_another_key_makes_other_hashes() -> None:
    numbers = np.arange(10, dtype=np.uint64)

    assert not (siphash(KEY, numbers) == siphash(KEY[::-1], numbers)).any()
