"""What the memory index promises beyond the contract (tests/contract/test_index.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.test_index import Plain, prompts, stories
from tests.kv.layouts import windows

from inferway.kv.index.memory import BYTES_PER_BLOCK, MemoryIndex
from inferway.kv.index.protocol import (
    CPU,
    FULL_ATTENTION,
    GPU,
    Clear,
    Copy,
    Op,
    Remove,
    Store,
)
from inferway.model import BlockKey, HolderId

A, B = 0, 1


def matched(index: MemoryIndex, keys: Sequence[BlockKey]) -> dict[HolderId, int]:
    return dict(index.match_now(keys).blocks)


def swept(index: MemoryIndex, step: int = 100) -> int:
    """In how many steps nothing more was left to do."""
    steps = 1
    while index.sweep(step):
        steps += 1
    return steps


def test_a_match_does_not_wait() -> None:
    """A caller on the event loop has its answer without giving up its turn."""
    index = MemoryIndex()
    index.apply([Store(0, [1])])
    asked = index.match([1])

    with pytest.raises(StopIteration) as answered:
        asked.send(None)

    assert answered.value.value.blocks == {0: 1}


def test_both_doors_answer_alike() -> None:
    index = MemoryIndex()
    index.apply([Store(0, [1, 2]), Store(3, [1])])

    assert index.match_now([1, 2]) == asyncio.run(index.match([1, 2]))


# nothing is left behind


def test_nothing_is_left_of_blocks_that_nobody_holds() -> None:
    index = MemoryIndex()
    index.apply([Store(0, range(100)), Store(1, range(50)), Remove(0, range(100)), Clear(1)])
    swept(index)

    assert (index.num_keys, index.num_values) == (0, 1)


def test_a_parent_that_never_came_goes_with_its_last_child() -> None:
    index = MemoryIndex()
    index.apply([Store(A, [2], parent=1), Store(B, [3], parent=1)])

    assert index.num_keys == 3

    index.apply([Remove(A, [2]), Remove(B, [3])])

    assert index.num_keys == 0


def test_removed_blocks_make_room_for_others() -> None:
    index = MemoryIndex()
    index.apply([Store(A, range(1000))])
    before = index.num_bytes()
    for i in range(1, 20):
        index.apply([Remove(A, range(1000 * i - 1, 1000 * i - 1001, -1))])
        index.apply([Store(A, range(1000 * i, 1000 * i + 1000))])

    assert index.num_keys == 1000
    assert index.num_bytes() < 2 * before


@given(stories())
def test_a_story_that_ends_with_everybody_cleared_leaves_nothing(
    story: tuple[list[list[BlockKey]], list[list[Op]]],
) -> None:
    index = MemoryIndex(slice_blocks=2)
    for batch in story[1]:
        index.apply(batch)
    index.apply([Clear(holder) for holder in range(4)])
    swept(index, 1)

    assert (index.num_keys, index.num_values) == (0, 1)


@given(stories())
def test_the_links_are_the_parents_of_all_blocks_that_are_held(
    story: tuple[list[list[BlockKey]], list[list[Op]]],
) -> None:
    ways, batches = story
    parents = {key: parent for way in ways for parent, key in pairwise([0, *way])}
    index, plain = MemoryIndex(slice_blocks=2), Plain()
    for batch in batches:
        index.apply(batch)
        for op in batch:
            plain.apply(op)
        told = links(index)
        assert told.items() <= parents.items()
        assert {key for _, key, _, _ in plain.blocks} <= told.keys()
    swept(index, 1)

    assert links(index).keys() == {key for _, key, _, _ in plain.blocks}


def links(index: MemoryIndex) -> dict[int, int]:
    rows = np.frombuffer(b"".join(index.links()), "<u8").reshape(-1, 2).tolist()
    found = dict(rows)
    assert len(found) == len(rows)
    return found


# clear


def test_clear_takes_effect_at_once_and_is_swept_in_pieces() -> None:
    index = MemoryIndex()
    index.apply([Store(A, range(20_000)), Store(B, range(10))])
    index.apply([Clear(A)])

    assert index.num_blocks(A) == 0
    assert matched(index, range(20)) == {B: 10}
    assert index.num_keys > 19_000
    assert swept(index) > 100
    assert index.num_keys == 10


def test_a_long_chain_that_nobody_holds_is_freed_in_pieces() -> None:
    index = MemoryIndex(slice_blocks=100)
    for last in (Clear(A), Remove(A, [19_999])):
        index.apply([Store(A, range(20_000)), Remove(A, range(19_999))])
        index.apply([last])
        left = [20_000, index.num_keys]
        while index.sweep(50):
            left.append(index.num_keys)

        assert max(before - after for before, after in pairwise(left)) <= 1000
        assert index.num_keys == 0


def test_applying_sweeps_a_little_each_time() -> None:
    index = MemoryIndex()
    index.apply([Store(A, range(1000)), Clear(A)])
    for key in range(2000, 2100):
        index.apply([Store(B, [key])])

    assert index.num_keys == 100


def test_what_is_swept_may_be_held_again_meanwhile() -> None:
    index = MemoryIndex()
    index.apply([Store(A, range(5000)), Clear(A)])
    index.sweep(50)
    index.apply([Store(A, range(3000))])
    index.sweep(50)
    index.apply([Clear(A), Store(B, range(2000))])
    swept(index)

    assert matched(index, range(5000)) == {B: 2000}
    assert index.num_keys == 2000


# removals that detach a lot


def test_a_holder_is_matched_exactly_while_much_is_still_to_be_detached() -> None:
    index = MemoryIndex(slice_blocks=10)
    index.apply([Store(A, range(1000)), Store(B, range(1000)), Remove(A, [5])])

    assert matched(index, range(1000)) == {A: 5, B: 1000}

    index.apply([Store(A, [5], parent=4)])

    assert matched(index, range(1000)) == {A: 1000, B: 1000}

    swept(index)

    assert matched(index, range(1000)) == {A: 1000, B: 1000}


def test_a_block_may_go_while_its_siblings_are_looked_at() -> None:
    index = MemoryIndex(slice_blocks=10)
    index.apply([Store(A, [0, 1])])
    index.apply([Store(A, [2 + i], parent=1) for i in range(500)])
    index.apply([Remove(A, [1])])
    index.apply([Remove(A, [2 + i]) for i in range(499, 250, -1)])
    swept(index)
    index.apply([Store(A, [1], parent=0)])
    swept(index)

    assert [matched(index, [0, 1, 2 + i])[A] for i in (0, 250, 251, 499)] == [3, 3, 2, 2]


# bounds


def test_no_more_blocks_are_kept_than_allowed() -> None:
    index = MemoryIndex(max_blocks=100)
    for i in range(50):
        index.apply([Store(A, range(1000 * i, 1000 * i + 10))])

        assert index.num_keys == index.num_blocks(A) == min(100, 10 * i + 10)

    assert index.evicted == index.num_evicted(A) == 400


def test_bytes_are_a_bound_too() -> None:
    assert MemoryIndex(max_bytes=100 * BYTES_PER_BLOCK).max_blocks == 100
    assert MemoryIndex(max_bytes=100 * BYTES_PER_BLOCK, max_blocks=7).max_blocks == 7
    assert MemoryIndex().max_blocks is None


def test_a_prompt_is_evicted_from_its_end() -> None:
    index = MemoryIndex(max_blocks=100)
    index.apply([Store(A, range(80)), Store(A, range(1000, 1050))])
    left = [matched(index, range(80)).get(A, 0), matched(index, range(1000, 1050)).get(A, 0)]

    assert sum(left) == index.num_blocks(A) == 100


def test_what_was_asked_for_lately_stays() -> None:
    index = MemoryIndex(max_blocks=100)
    index.apply([Store(A, range(20))])
    for i in range(1, 100):
        index.apply([Store(A, range(1000 * i, 1000 * i + 10))])

        assert matched(index, range(20)) == {A: 20}


def test_what_is_not_asked_for_goes() -> None:
    index = MemoryIndex(max_blocks=100)
    index.apply([Store(A, range(20))])
    for i in range(1, 100):
        index.apply([Store(A, range(1000 * i, 1000 * i + 10))])

    assert matched(index, range(20)) == {}


def test_an_evicted_block_counts_for_each_of_its_holders() -> None:
    index = MemoryIndex(max_blocks=10)
    index.apply([Store(A, range(10)), Store(B, range(5)), Store(A, range(100, 110))])

    assert index.num_blocks(A) + index.num_evicted(A) == 20
    assert index.num_blocks(B) + index.num_evicted(B) == 5
    assert index.evicted == index.num_evicted(A) + index.num_evicted(B)


def test_what_follows_an_evicted_block_is_not_kept() -> None:
    index = MemoryIndex(max_blocks=10)
    index.apply([Store(A, range(10)), Store(B, range(100, 110))])
    evicted = index.num_evicted(A)
    index.apply([Store(A, [11], parent=9)])

    assert matched(index, range(10)).get(A, 0) == index.num_blocks(A) == 10 - evicted
    assert index.num_evicted(A) == evicted + 1


def test_removing_an_evicted_block_does_nothing() -> None:
    index = MemoryIndex(max_blocks=10)
    index.apply([Store(A, range(10)), Store(B, range(100, 110)), Remove(A, range(9, -1, -1))])

    assert index.num_blocks(A) == 0
    assert index.num_blocks(B) == 10 - index.num_evicted(B)


def test_a_cleared_holders_picture_is_whole_again() -> None:
    index = MemoryIndex(max_blocks=10)
    index.apply([Store(A, range(20))])

    assert index.num_evicted(A) == 10

    index.apply([Clear(A)])

    assert index.num_evicted(A) == 0


@given(story=stories(), max_blocks=st.integers(1, 12))
def test_too_little_room_never_makes_a_wrong_belief(
    story: tuple[list[list[BlockKey]], list[list[Op]]], max_blocks: int
) -> None:
    ways, batches = story
    index, plain = MemoryIndex(max_blocks=max_blocks, slice_blocks=1), Plain()
    for batch in batches:
        index.apply(batch)
        for op in batch:
            plain.apply(op)
        for prompt in prompts(ways):
            truth = plain.found(prompt).blocks

            assert all(truth.get(h, 0) >= n for h, n in matched(index, prompt).items())
        assert all(index.num_blocks(h) <= plain.num_blocks(h) for h in range(4))
        swept(index)

        assert index.num_keys <= max_blocks


def test_blocks_go_for_want_of_room_once_their_children_are_freed() -> None:
    index = MemoryIndex(max_blocks=1, slice_blocks=1)
    index.apply([Store(A, [1, 2, 3, 4]), Store(B, [1, 2]), Clear(A)])
    swept(index)

    assert index.num_keys == 1
    assert matched(index, [1, 2]) == {B: 1}
    assert index.num_evicted(B) == 1


# what the bridge asks


def test_it_tells_what_a_holder_has_in_a_place() -> None:
    index = MemoryIndex()
    index.apply([Store(A, [1, 2, 3]), Copy(A, [2], tier=CPU), Store(B, [1])])

    assert index.held(A, [3, 9, 1], GPU, FULL_ATTENTION) == [3, 1]
    assert index.held(A, [1, 2, 3], CPU, FULL_ATTENTION) == [2]
    assert index.held(A, [1], GPU, 1) == []
    assert index.held(B, [1, 2], GPU, FULL_ATTENTION) == [1]
    assert index.held(7, [1], GPU, FULL_ATTENTION) == []


def test_a_window_without_a_block_is_no_holder_of_anything() -> None:
    index = MemoryIndex()
    index.apply([windows(A, {1: 2})])

    assert matched(index, [1]) == {}
    assert index.num_blocks(A) == 0


def test_many_different_holders_come_and_go_in_few_bits() -> None:
    """Else masks would grow with every restart of an engine."""
    index = MemoryIndex()
    for i in range(300):
        index.apply([Store(holder, [i]) for holder in range(3)])
        index.apply([Clear(holder) for holder in range(3)])
        swept(index)
    index.apply([Store(holder, [1]) for holder in range(3)])

    assert matched(index, [1]) == {0: 1, 1: 1, 2: 1}
    assert index.num_bytes() < 2 * MemoryIndex().num_bytes()
