"""The rules at the top of kv/blocks/keys.py, one by one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.kv.blocks.extra_keys import BlockExtras, request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.model import TokenIds

GOLDEN = Path(__file__).parents[2] / "golden/blocks/keys.json"

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=200)


def ids(tokens: list[int]) -> TokenIds:
    return np.array(tokens, dtype=np.uint32)


def some_ids(count: int, seed: int = 0) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 150_000, count).astype(np.uint32)


@given(token_lists, st.integers(1, 20))
def test_only_full_blocks_have_keys(tokens: list[int], block_size: int) -> None:
    hasher = BlockHasher(block_size)
    full = len(tokens) // block_size * block_size

    assert len(hasher.keys(ids(tokens))) == len(tokens) // block_size
    assert hasher.keys(ids(tokens)) == hasher.keys(ids(tokens[:full]))


@given(token_lists, st.integers(1, 20), st.integers(0, 12))
def test_a_chain_continues_from_any_key(tokens: list[int], block_size: int, cut: int) -> None:
    hasher = BlockHasher(block_size)
    at = min(cut, len(tokens) // block_size) * block_size
    head = hasher.keys(ids(tokens[:at]))
    tail = hasher.keys(ids(tokens[at:]), parent=head[-1] if head else None)

    assert head + tail == hasher.keys(ids(tokens))


def test_long_and_short_runs_are_chained_alike() -> None:
    """Short runs take a loop, long ones numpy."""
    hasher, tokens = BlockHasher(16), some_ids(16 * 40)
    keys: list[int] = []
    for start in range(0, len(tokens), 16):
        keys += hasher.keys(tokens[start : start + 16], parent=keys[-1] if keys else None)

    assert keys == hasher.keys(tokens)


@given(
    st.integers(1, 20), st.integers(0, 80), st.none() | st.integers(0, 2**64 - 1), st.integers(0, 9)
)
def test_a_list_of_full_blocks_has_the_same_keys(
    block_size: int, blocks: int, parent: int | None, seed: int
) -> None:
    """Engines' events are lists; few blocks are computed in arrays that are used again."""
    hasher, tokens = BlockHasher(block_size), some_ids(block_size * blocks, seed)
    extras = request_extras("adapter") if seed > 6 else None

    expected = hasher.keys(tokens, extras, parent)

    assert hasher.keys_of_list(tokens.tolist(), extras, parent) == expected
    assert hasher.keys_of_list(tokens.tolist(), extras, parent) == expected


@given(token_lists.filter(len), st.data())
def test_a_changed_token_changes_its_key_and_all_after_it(
    tokens: list[int], data: st.DataObject
) -> None:
    hasher = BlockHasher(4)
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens[:at], tokens[at] ^ 1, *tokens[at + 1 :]]
    before, after = hasher.keys(ids(tokens)), hasher.keys(ids(other))

    assert before[: at // 4] == after[: at // 4]
    assert all(a != b for a, b in zip(before[at // 4 :], after[at // 4 :], strict=True))


def test_the_order_of_tokens_counts() -> None:
    hasher = BlockHasher(4)
    orders = [[1, 2, 3, 4], [2, 1, 3, 4], [3, 4, 1, 2], [1, 2, 4, 3], [4, 3, 2, 1]]

    assert len({hasher.keys(ids(order))[0] for order in orders}) == len(orders)


def test_the_order_of_blocks_counts() -> None:
    hasher, a, b = BlockHasher(2), [1, 2], [3, 4]

    assert hasher.keys(ids(a + b))[-1] != hasher.keys(ids(b + a))[-1]


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 32])
def test_equal_blocks_in_a_row_have_different_keys(block_size: int) -> None:
    keys = BlockHasher(block_size).keys(np.zeros(block_size * 3000, dtype=np.uint32))

    assert len(set(keys)) == 3000


def test_keys_of_alike_prompts_do_not_meet_and_fill_all_64_bits() -> None:
    """100,000 blocks that differ from each other in two small numbers."""
    blocks = np.zeros((100_000, 16), dtype=np.uint32)
    blocks[:, 0], blocks[:, 15] = np.divmod(np.arange(100_000), 317)
    digests = BlockHasher(16).digests(blocks.reshape(-1))
    ones = np.unpackbits(digests.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)

    assert len(np.unique(digests)) == 100_000
    assert ones.min() > 0.49
    assert ones.max() < 0.51


def test_seed_and_block_size_are_part_of_a_key() -> None:
    tokens = some_ids(32)
    keys = [BlockHasher(size, seed).keys(tokens)[0] for size in (8, 16) for seed in (0, 1)]

    assert len(set(keys)) == 4


def test_equal_hashers_agree() -> None:
    assert BlockHasher(16, 7).keys(some_ids(64)) == BlockHasher(16, 7).keys(some_ids(64))


def test_an_adapter_changes_every_key() -> None:
    hasher, tokens = BlockHasher(16), some_ids(160)
    plain, adapted = hasher.keys(tokens), hasher.keys(tokens, request_extras(lora="alice"))

    assert not set(plain) & set(adapted)


def test_a_salt_changes_every_key_through_block_0() -> None:
    hasher, tokens = BlockHasher(16), some_ids(160)
    salted = request_extras(cache_salt="s")
    head = hasher.keys(tokens[:16], salted)

    assert hasher.keys(tokens, salted) == head + hasher.keys(tokens[16:], parent=head[0])
    assert not set(hasher.keys(tokens)) & set(hasher.keys(tokens, salted))


def test_extras_beyond_the_last_full_block_do_not_count() -> None:
    hasher, tokens = BlockHasher(16), some_ids(40)
    beyond = BlockExtras((), {2: (("mm", "pic", 0),)})

    assert hasher.keys(tokens, beyond) == hasher.keys(tokens)


def test_a_view_into_a_larger_buffer_has_the_same_keys() -> None:
    """Encoders return buffers; slices of them start at odd addresses."""
    tokens = some_ids(33)
    strided = np.zeros(66, dtype=np.uint32)
    strided[::2] = tokens

    assert BlockHasher(16).keys(tokens[1:]) == BlockHasher(16).keys(tokens[1:].copy())
    assert BlockHasher(16).keys(strided[::2]) == BlockHasher(16).keys(tokens)


def test_no_block_is_shorter_than_a_token() -> None:
    with pytest.raises(ValueError, match="block_size: 0 must be at least 1"):
        BlockHasher(0)


def test_keys_are_what_they_always_were() -> None:
    """Rule 4. Rewrite the file only when keys are meant to change."""
    golden = json.loads(GOLDEN.read_text())
    tokens = np.arange(96, dtype=np.uint32) * 1_009
    extras = BlockExtras((("lora", "alice", 0),), {0: (("key", "s", 0),)})
    found = {
        f"{size}/{seed}": {
            "plain": BlockHasher(size, seed).keys(tokens),
            "extras": BlockHasher(size, seed).keys(tokens, extras),
        }
        for size in (3, 16, 32)
        for seed in (0, 42)
    }

    assert found == golden
