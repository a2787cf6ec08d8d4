"""What every index promises. A new one joins by joining `IMPLEMENTATIONS`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Clear, Index, Op, Remove, Store
from inferway.model import BlockKey, HolderId

MakeIndex = Callable[[], Index]

IMPLEMENTATIONS: list[MakeIndex] = [MemoryIndex]
A, B = 0, 1
FAR = 700  # holders are small, but not bounded by a machine word


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda cls: cls.__name__)
def index(request: pytest.FixtureRequest) -> Index:
    made: Index = request.param()
    return made


def match(index: Index, keys: Sequence[BlockKey]) -> dict[HolderId, int]:
    return asyncio.run(index.match(keys))


def test_an_empty_index_knows_no_holder(index: Index) -> None:
    assert match(index, [1, 2]) == {}


def test_no_keys_no_holders(index: Index) -> None:
    index.apply([Store(A, [1])])

    assert match(index, []) == {}


def test_stored_blocks_are_matched(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3])])

    assert match(index, [1, 2, 3]) == {A: 3}


def test_a_prompt_may_be_longer_or_shorter_than_what_is_held(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3])])

    assert match(index, [1, 2]) == {A: 2}
    assert match(index, [1, 2, 3, 4]) == {A: 3}


def test_match_stops_at_a_hole(index: Index) -> None:
    index.apply([Store(A, [1, 3])])

    assert match(index, [1, 2, 3]) == {A: 1}


def test_who_lacks_the_first_block_is_absent(index: Index) -> None:
    index.apply([Store(A, [2, 3]), Store(B, [1])])

    assert match(index, [1, 2, 3]) == {B: 1}


def test_each_holder_is_matched_for_itself(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Store(B, [1, 2]), Store(FAR, [1])])

    assert match(index, [1, 2, 3]) == {A: 3, B: 2, FAR: 1}


def test_a_hole_of_one_holder_does_not_stop_the_others(index: Index) -> None:
    index.apply([Store(A, [1, 3, 4]), Store(B, [1, 2, 3])])

    assert match(index, [1, 2, 3, 4]) == {A: 1, B: 3}


def test_storing_twice_is_storing_once(index: Index) -> None:
    index.apply([Store(A, [1, 1]), Store(A, [1]), Remove(A, [1])])

    assert match(index, [1]) == {}
    assert index.num_blocks(A) == 0


def test_a_removed_block_hides_what_follows(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Remove(A, [2])])

    assert match(index, [1, 2, 3]) == {A: 1}


def test_a_block_that_returns_brings_back_what_follows(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Remove(A, [2]), Store(A, [2])])

    assert match(index, [1, 2, 3]) == {A: 3}


def test_a_removal_is_one_holders_own(index: Index) -> None:
    index.apply([Store(A, [1]), Store(B, [1]), Remove(A, [1])])

    assert match(index, [1]) == {B: 1}


def test_removing_what_was_never_there_does_nothing(index: Index) -> None:
    index.apply([Store(A, [1]), Remove(A, [9]), Remove(B, [1]), Remove(FAR, [1, 2])])

    assert match(index, [1]) == {A: 1}


def test_clear_empties_one_holder(index: Index) -> None:
    index.apply([Store(A, [1, 2]), Store(B, [1, 2]), Clear(A)])

    assert match(index, [1, 2]) == {B: 2}
    assert index.num_blocks(A) == 0


def test_clearing_what_is_empty_does_nothing(index: Index) -> None:
    index.apply([Clear(FAR), Clear(FAR)])

    assert index.num_blocks(FAR) == 0


def test_a_cleared_holder_can_store_again(index: Index) -> None:
    index.apply([Store(A, [1, 2]), Clear(A), Store(A, [1])])

    assert match(index, [1, 2]) == {A: 1}


def test_ops_are_done_in_order(index: Index) -> None:
    index.apply([Remove(A, [1]), Store(A, [1, 2]), Clear(A), Store(A, [2]), Store(A, [1])])

    assert match(index, [1, 2]) == {A: 2}


def test_blocks_are_counted_once(index: Index) -> None:
    index.apply([Store(A, [1, 2, 2]), Store(A, [2, 3]), Remove(A, [1, 1])])

    assert index.num_blocks(A) == 2


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1])
def test_every_64_bit_number_is_a_key(index: Index, key: BlockKey) -> None:
    index.apply([Store(A, [key])])

    assert match(index, [key]) == {A: 1}


holders = st.integers(0, 5)
keys = st.lists(st.integers(0, 12), max_size=8)
ops = st.lists(
    st.one_of(
        st.builds(Store, holders, keys),
        st.builds(Remove, holders, keys),
        st.builds(Clear, holders),
    ),
    max_size=40,
)


def plain(ops: Sequence[Op]) -> dict[HolderId, set[BlockKey]]:
    """What the protocol says, as directly as it can be said."""
    held: dict[HolderId, set[BlockKey]] = {}
    for op in ops:
        own = held.setdefault(op.holder, set())
        if isinstance(op, Store):
            own.update(op.keys)
        elif isinstance(op, Remove):
            own.difference_update(op.keys)
        else:
            own.clear()
    return held


def walk(held: set[BlockKey], prompt: Sequence[BlockKey]) -> int:
    return next((i for i, key in enumerate(prompt) if key not in held), len(prompt))


@pytest.mark.parametrize("make", IMPLEMENTATIONS, ids=lambda cls: cls.__name__)
@given(ops=ops, prompts=st.lists(st.permutations(range(13)), min_size=1, max_size=3))
def test_match_equals_a_plain_walk_of_each_holder(
    make: MakeIndex, ops: list[Op], prompts: list[list[BlockKey]]
) -> None:
    index = make()
    index.apply(ops)
    held = plain(ops)

    assert {h: index.num_blocks(h) for h in held} == {h: len(own) for h, own in held.items()}
    for prompt in prompts:
        walked = {h: walk(own, prompt) for h, own in held.items()}

        assert match(index, prompt) == {h: blocks for h, blocks in walked.items() if blocks}
