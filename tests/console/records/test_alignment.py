"""Where prompts part, and come together again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferway_console.records.alignment import (
    WINDOW,
    common_prefix,
    going_on,
    num_moved,
    rejoin,
    shared,
    window_hashes,
)

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=80).map(lambda ids: np.array(ids, np.uint32))
DRAW = np.random.default_rng(7)
MOST = 50_000  # no token is more


def drawn(count: int) -> np.ndarray:
    return DRAW.integers(0, MOST, count).astype(np.uint32)


@given(IDS, IDS, IDS)
def test_the_common_prefix_is_the_longest(
    start: np.ndarray, left: np.ndarray, right: np.ndarray
) -> None:
    one, other = np.concatenate([start, left]), np.concatenate([start, right])
    same = common_prefix(one, other)

    assert np.array_equal(one[:same], other[:same])
    assert same >= len(start)
    assert same in (len(one), len(other)) or one[same] != other[same]


@given(IDS, IDS)
def test_hashes_depend_on_the_window_alone(before: np.ndarray, ids: np.ndarray) -> None:
    moved = window_hashes(np.concatenate([before, ids]))

    assert np.array_equal(moved[len(before) :], window_hashes(ids)[: len(moved)])
    assert len(window_hashes(ids)) == max(0, len(ids) - WINDOW + 1)


def test_prompts_come_together_again_behind_what_differs() -> None:
    start, rest = drawn(100), drawn(300)
    left = np.concatenate([start, drawn(3), rest])
    right = np.concatenate([start, drawn(7), rest])
    ours, theirs = window_hashes(left), window_hashes(right)

    again = rejoin(ours, theirs, common_prefix(left, right), 64)

    assert again is not None
    assert (again.left, again.right) == (103, 107)
    assert shared(ours[103:], theirs).all()
    assert num_moved(ours, theirs) == 0


def test_others_do_not_come_together() -> None:
    assert rejoin(window_hashes(drawn(200)), window_hashes(drawn(200)), 0, 200) is None


def test_what_is_moved_is_counted() -> None:
    first, second = drawn(100), drawn(60)

    moved = num_moved(
        window_hashes(np.concatenate([first, second])),
        window_hashes(np.concatenate([second, first])),
    )

    assert moved >= 60 - WINDOW


@given(st.integers(1, 200), st.integers(0, 30))
def test_a_prompt_goes_on_with_what_comes_later_in_the_other(dropped: int, note: int) -> None:
    rest = drawn(160)
    others = drawn(dropped + note) + np.uint32(
        MOST
    )  # or the last token before the rest may be the same
    left = window_hashes(np.concatenate([drawn(note), rest]))
    right = window_hashes(np.concatenate([others, rest]))

    found = going_on(left, right)

    assert found is not None
    assert (found.left, found.right) == (note, dropped + note)


def test_it_does_not_where_less_than_half_of_it_stands_there() -> None:
    rest = drawn(60)
    left = window_hashes(np.concatenate([rest, drawn(100)]))

    assert going_on(left, window_hashes(np.concatenate([drawn(9), rest]))) is None
    assert going_on(left, window_hashes(drawn(0))) is None
