"""Prompts on their way count as held, and stop counting exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from inferway.kv.index.speculative import STEP_BLOCKS, Speculation, SpeculativeOverlay

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


def test_a_long_prompt_comes_and_goes_a_step_a_turn() -> None:
    turns = deque[Callable[[], None]]()
    overlay = SpeculativeOverlay(turns.append)
    prompt = list(range(5 * STEP_BLOCKS // 2))
    speculations = [overlay.add(holder, prompt) for holder in (A, B)]

    def seen() -> list[int]:
        """What is there after each turn, until nothing waits."""
        counts = [overlay.num_blocks(A) + overlay.num_blocks(B)]
        while turns:
            turns.popleft()()
            counts.append(overlay.num_blocks(A) + overlay.num_blocks(B))
        return counts

    # the last turn finds nothing to do
    assert seen() == [STEP_BLOCKS * turn for turn in (1, 2, 3, 4, 5, 5)]
    assert overlay.extend(prompt, {}) == {A: len(prompt), B: len(prompt)}
    overlay.remove_all(speculations)
    assert seen() == [STEP_BLOCKS * turn for turn in (4, 3, 2, 1, 0, 0)]


def test_prompts_of_one_turn_take_a_step_together() -> None:
    turns = deque[Callable[[], None]]()
    overlay = SpeculativeOverlay(turns.append)
    length = STEP_BLOCKS // 2
    speculations = [overlay.add(A, range(n * length, (n + 1) * length)) for n in range(6)]

    assert overlay.num_blocks(A) == length, "the first one counts at once"
    turns.popleft()()
    assert overlay.num_blocks(A) == 3 * length
    while turns:
        turns.popleft()()
    assert overlay.num_blocks(A) == 6 * length
    overlay.remove_all(speculations)
    assert overlay.num_blocks(A) == 5 * length


def test_a_short_prompt_waits_for_no_long_one() -> None:
    turns = deque[Callable[[], None]]()
    overlay = SpeculativeOverlay(turns.append)
    overlay.add(A, list(range(10, 10 + 3 * STEP_BLOCKS)))
    short = overlay.add(B, PROMPT)

    assert overlay.extend(PROMPT, {}) == {B: 4}
    overlay.remove(short)
    assert overlay.extend(PROMPT, {}) == {}


steps = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 2), st.integers(1, 3 * STEP_BLOCKS)),  # a prompt to a holder
        st.integers(0, 9),  # one of those ends
        st.none(),  # the next turn
    ),
    max_size=30,
)


@given(steps)
def test_in_any_order_of_turns_it_comes_to_the_same(
    steps: list[tuple[int, int] | int | None],
) -> None:
    turns = deque[Callable[[], None]]()
    overlay = SpeculativeOverlay(turns.append)
    under_way: list[tuple[Speculation, int]] = []
    for step in steps:
        if step is None:
            if turns:
                turns.popleft()()
        elif isinstance(step, tuple):
            holder, length = step
            under_way.append((overlay.add(holder, range(length)), length))
        elif step < len(under_way):
            overlay.remove(under_way.pop(step)[0])
    while turns:
        turns.popleft()()

    expected: dict[int, int] = {}
    for speculation, length in under_way:
        expected[speculation.holder] = max(length, expected.get(speculation.holder, 0))
    assert overlay.extend(range(3 * STEP_BLOCKS), {}) == expected
    for speculation, _ in under_way:
        overlay.remove(speculation)
    while turns:
        turns.popleft()()
    assert [overlay.num_blocks(holder) for holder in range(3)] == [0, 0, 0]
