"""The fuzzer's checks on its seeds and on what it once found; `make fuzz` goes further."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.checks import CUT, WrongError, check, expect
from tests.fuzz.corpus import WORDS, seeds

SEEDS = list(seeds())
FOUND = sorted((Path(__file__).parent / "found").glob("*-*"))


def checked(data: bytes) -> None:
    async def run() -> None:
        check(data)

    uvloop.run(run())


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "in bytes"])
def test_seeds_hold(cut: bool) -> None:
    async def run() -> None:
        for seed in SEEDS:
            check(
                seed[:1] + CUT.join(seed[i : i + 1] for i in range(1, len(seed))) if cut else seed
            )

    uvloop.run(run())


def test_what_was_found_once_holds() -> None:
    for path in FOUND:
        checked(path.read_bytes())


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(SEEDS),
    st.lists(
        st.tuples(st.integers(1, 2000), st.integers(0, 9), st.sampled_from(WORDS) | st.binary()),
        max_size=4,
    ),
)
def test_seeds_with_changes_hold(seed: bytes, changes: list[tuple[int, int, bytes]]) -> None:
    data = seed
    for place, length, word in changes:
        place = 1 + place % len(data)
        data = data[:place] + word + data[place + length :]

    checked(data)


def test_a_check_that_does_not_hold_says_what_it_saw() -> None:
    with pytest.raises(WrongError, match=r"lost: \(1, 2\)"):
        expect(False, "lost", 1, 2)
