"""A row of blocks: who held what, scaled to the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_console.cli.block_picture import ASCII, BLOCKS, marks_for, row

RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=5)


@pytest.mark.parametrize(
    ("runs", "blocks", "expected"),
    [
        ([], 4, "····|"),
        ([(0, 4)], 4, "████|"),
        ([(0, 2), (1, 1)], 4, "██▓·|"),
        ([(0, 1), (2, 1)], 2, "█▒|"),
        ([], 0, "|"),
    ],
)
def test_a_short_prompt_has_one_character_a_block(
    runs: list[tuple[int, int]], blocks: int, expected: str
) -> None:
    assert row(runs, blocks, 80, BLOCKS) == expected


def test_a_long_prompt_is_scaled_and_never_looks_longer_held_than_it_is() -> None:
    assert row([(0, 55)], 100, 10, BLOCKS) == "█████·····|"


def test_a_single_block_of_many_is_still_seen() -> None:
    assert row([(0, 1)], 1_000, 10, BLOCKS) == "█·········|"


def test_without_utf8_or_as_asked_it_is_ascii() -> None:
    assert row([(0, 1), (1, 1)], 3, 10, marks_for("ISO-8859-1", ascii_only=False)) == "#+.|"
    assert marks_for("utf-8", ascii_only=True) is ASCII
    assert marks_for("UTF-8", ascii_only=False) is BLOCKS


@given(RUNS, st.integers(0, 200), st.integers(1, 60))
def test_it_is_as_wide_as_it_may_be_and_held_comes_before_what_is_not(
    runs: list[tuple[int, int]], blocks: int, width: int
) -> None:
    picture = row(runs, blocks, width, BLOCKS)

    assert picture.endswith("|")
    cells = picture[:-1]
    assert len(cells) == min(blocks, width)
    assert "·" not in cells.rstrip("·")
    held = sum(number for _, number in runs)
    assert (cells.startswith("·") or not cells) == (held == 0 or blocks == 0)
