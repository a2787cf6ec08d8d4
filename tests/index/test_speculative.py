"""Prompts on their way count as held, and stop counting exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferway.index.speculative import SpeculativeOverlay

A, B = 0, 1
PROMPT = [1, 2, 3, 4]


def test_without_speculation_the_match_stands() -> None:
    assert SpeculativeOverlay().extend(PROMPT, {A: 2}) == {A: 2}


def test_a_prompt_on_its_way_counts_as_held() -> None:
    overlay = SpeculativeOverlay()
    overlay.add(A, PROMPT)

    assert overlay.extend(PROMPT, {}) == {A: 4}


def test_it_counts_as_far_as_prompts_are_alike() -> None:
    overlay = SpeculativeOverlay()
    overlay.add(A, PROMPT)

    assert overlay.extend([1, 2, 7, 8], {}) == {A: 2}
    assert overlay.extend([9, 2, 3, 4], {}) == {}


def test_it_continues_what_the_holder_has() -> None:
    overlay = SpeculativeOverlay()
    overlay.add(A, PROMPT, skip=2)

    assert overlay.extend(PROMPT, {A: 2, B: 1}) == {A: 4, B: 1}


def test_it_never_shortens_a_match() -> None:
    overlay = SpeculativeOverlay()
    overlay.add(A, PROMPT[:1])

    assert overlay.extend(PROMPT, {A: 3}) == {A: 3}


def test_the_match_that_was_given_is_left_alone() -> None:
    overlay = SpeculativeOverlay()
    overlay.add(A, PROMPT)
    matched = {A: 1}
    overlay.extend(PROMPT, matched)

    assert matched == {A: 1}


def test_it_ends_when_removed() -> None:
    overlay = SpeculativeOverlay()
    overlay.remove(overlay.add(A, PROMPT))

    assert overlay.extend(PROMPT, {}) == {}
    assert overlay.num_blocks(A) == 0


def test_removing_twice_is_removing_once() -> None:
    overlay = SpeculativeOverlay()
    first, _second = overlay.add(A, PROMPT), overlay.add(A, PROMPT)
    overlay.remove(first)
    overlay.remove(first)

    assert overlay.extend(PROMPT, {}) == {A: 4}


def test_a_prompt_that_brings_nothing_may_end_last() -> None:
    overlay = SpeculativeOverlay()
    first, held_already = overlay.add(A, PROMPT), overlay.add(A, PROMPT, skip=len(PROMPT))

    overlay.remove(first)
    overlay.remove(held_already)

    assert overlay.extend(PROMPT, {}) == {}


def test_of_two_equal_prompts_the_second_stands_for_all_of_it() -> None:
    overlay = SpeculativeOverlay()
    first, second = overlay.add(A, PROMPT), overlay.add(A, PROMPT)
    overlay.remove(first)
    overlay.add(B, PROMPT[:2])

    assert overlay.extend(PROMPT, {}) == {A: 4, B: 2}

    overlay.remove(second)

    assert overlay.extend(PROMPT, {}) == {B: 2}


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(
    lambda path: [hash(tuple(path[: i + 1])) for i in range(len(path))]
)


@given(st.lists(st.tuples(st.integers(0, 2), prompts, st.booleans()), max_size=12), prompts)
def test_the_longest_prompt_on_its_way_decides(
    routed: list[tuple[int, list[int], bool]], query: list[int]
) -> None:
    """Prompts as a tree of prefixes; some have ended; the rest extend as a plain search says."""
    overlay = SpeculativeOverlay()
    handles = [(overlay.add(holder, keys), ended) for holder, keys, ended in routed]
    for handle, ended in handles:
        if ended:
            overlay.remove(handle)
    expected: dict[int, int] = {}
    for holder, keys, ended in routed:
        alike = sum(a == b for a, b in zip(query, keys, strict=False))
        if alike and not ended:
            expected[holder] = max(alike, expected.get(holder, 0))

    assert overlay.extend(query, {}) == expected
