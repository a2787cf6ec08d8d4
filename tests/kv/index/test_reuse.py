"""How many tokens of a prompt an engine reuses, by the groups of KV caches that it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from inferway.kv.index.reuse import (
    MOST_LOOKED_AT,
    CacheGroup,
    CacheLayout,
    Reuse,
    reusable_tokens,
)

SIZE = 16
FULL = CacheGroup(0, "full_attention", SIZE)
WINDOW = CacheGroup(1, "sliding_window", SIZE, 2 * SIZE + 1)  # two blocks before the next token
STATES = CacheGroup(2, "mamba", SIZE)
LOCAL = CacheGroup(3, "chunked_local_attention", SIZE, 4 * SIZE)


def reuse(
    groups: Sequence[CacheGroup],
    blocks: Mapping[int, Collection[int]],
    length: int = 8,
    *,
    more: int = 1,
) -> Reuse:
    """Of a prompt of `length` blocks and `more` tokens. `blocks`: by the place of a group, those
    that it has, counted from 1."""
    layout = CacheLayout(tuple(groups))
    run, full = 0, layout.full_position
    while full is not None and run + 1 in blocks[full]:
        run += 1
    num_tokens = SIZE * length + more
    return reusable_tokens(
        layout, num_tokens, num_tokens, run, lambda i, end: end // SIZE in blocks.get(i, ())
    )


def test_full_attention_is_reused_as_far_as_it_has_no_hole() -> None:
    assert reuse([FULL], {0: [1, 2, 3, 5]}).tokens == 3 * SIZE


def test_the_last_token_is_always_computed() -> None:
    assert reuse([FULL], {0: [1, 2]}, 2, more=0).tokens == SIZE
    assert reuse([FULL], {0: [1, 2]}, 2, more=1).tokens == 2 * SIZE


def test_a_window_needs_its_last_blocks_and_no_others() -> None:
    found = reuse([FULL, WINDOW], {0: range(1, 8), 1: [4, 5, 7]})

    assert found == Reuse(5 * SIZE, 7, WINDOW)
    assert found.why == "its window of 33 tokens is there up to token 80"


def test_a_prompt_that_is_shorter_than_a_window_needs_all_of_it() -> None:
    assert reuse([FULL, WINDOW], {0: range(1, 8), 1: [1]}).tokens == SIZE


def test_state_space_layers_need_one_checkpoint_that_ends_there() -> None:
    found = reuse([FULL, STATES], {0: range(1, 8), 1: [2, 4]})

    assert found == Reuse(4 * SIZE, 7, STATES)
    assert found.why == "the last state checkpoint is at 64 tokens"
    assert reuse([FULL, STATES], {0: range(1, 8)}).why == "there is no state checkpoint"


def test_local_attention_needs_the_chunk_that_goes_on_alone() -> None:
    assert reuse([FULL, LOCAL], {0: range(1, 8), 1: [5, 6]}).tokens == 6 * SIZE
    assert reuse([FULL, LOCAL], {0: range(1, 8), 1: [6]}).tokens == 4 * SIZE


def test_groups_are_asked_again_until_all_agree() -> None:
    blocks = {0: range(1, 9), 1: [3, 4, 6, 7], 2: [4, 6]}

    assert reuse([FULL, WINDOW, STATES], blocks).tokens == 4 * SIZE


def test_a_draft_model_drops_the_last_block_once() -> None:
    full = CacheGroup(0, "full_attention", SIZE, eagle=True)

    assert reuse([full], {0: range(1, 6)}).tokens == 4 * SIZE
    assert reuse([full, STATES], {0: range(1, 6), 1: [4, 5]}).tokens == 4 * SIZE
    assert reuse([full, STATES], {0: range(1, 6), 1: [5]}).tokens == 0


def test_hits_are_aligned_to_the_blocks_of_all_groups() -> None:
    layout = CacheLayout((CacheGroup(0, "full_attention", 2 * SIZE), WINDOW))

    def holds(group: int, end: int) -> bool:
        return group == 0 or end != 6 * SIZE

    assert reusable_tokens(layout, 8 * SIZE, 8 * SIZE, 3, holds).tokens == 4 * SIZE


def test_with_hashes_finer_than_blocks_the_last_part_of_a_prompt_counts() -> None:
    full, states = CacheGroup(0, "full_attention", 64), CacheGroup(1, "mamba", 64)
    layout = CacheLayout((full, states), hash_size=16)

    found = reusable_tokens(layout, 130, 130, 1, lambda _, end: end in (64, 96))

    assert layout.is_fine
    assert found.tokens == 96


@pytest.mark.parametrize("group", [WINDOW, STATES])
def test_of_a_very_long_prompt_the_end_alone_is_looked_at(group: CacheGroup) -> None:
    layout, looked = CacheLayout((FULL, group)), 0
    length = 10 * MOST_LOOKED_AT

    def holds(_: int, end: int) -> bool:
        nonlocal looked
        looked += 1
        return end < SIZE * 100

    found = reusable_tokens(layout, SIZE * length, SIZE * length, length, holds)

    assert found.tokens == 0
    assert looked <= MOST_LOOKED_AT + 1


@pytest.mark.parametrize(
    ("groups", "block_size"),
    [
        ([FULL], SIZE),
        ([WINDOW, CacheGroup(0, "full_attention", 64)], 64),
        ([CacheGroup(0, "sliding_window", 32, 65), CacheGroup(1, "sliding_window", 16, 65)], 16),
    ],
)
def test_prompts_are_cut_into_blocks_of_full_attention_or_the_smallest(
    groups: Sequence[CacheGroup], block_size: int
) -> None:
    assert CacheLayout(tuple(groups)).block_size == block_size


def test_a_kind_that_is_not_known_needs_all_of_its_blocks() -> None:
    other = CacheGroup(1, "something_new", SIZE)

    assert reuse([FULL, other], {0: range(1, 8), 1: [1, 2, 4]}).tokens == 2 * SIZE
