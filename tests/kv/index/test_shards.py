"""A dict in many small ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.kv.index.shards import FOLD, LIMIT, Shards

FOLDED = pytest.mark.parametrize("folded", [False, True])
MANY = 100_000


def full(folded: bool) -> tuple[Shards[int], list[int]]:
    numbers = random.Random(5)
    keys = [numbers.getrandbits(64) for _ in range(MANY)]
    table: Shards[int] = Shards(folded=folded)
    for i, key in enumerate(keys):
        table.set(key, i)
    return table, keys


@FOLDED
def test_what_was_set_is_found_however_often_shards_are_split(folded: bool) -> None:
    table, keys = full(folded)

    assert [table.get(key) for key in keys] == list(range(MANY))
    assert len(table) == MANY


@FOLDED
def test_hot_loops_find_it_without_a_method(folded: bool) -> None:
    table, keys = full(folded)
    short = FOLD if folded else -1

    assert [table.at[key >> table.shift][key & short] for key in keys] == list(range(MANY))


@FOLDED
def test_no_shard_is_big(folded: bool) -> None:
    table, _ = full(folded)

    assert max(len(shard) for shard in table.dicts()) < LIMIT


def test_shards_are_of_many_sizes() -> None:
    """Else all of them would double at the same time."""
    table, _ = full(folded=False)
    sizes = sorted(len(shard) for shard in table.dicts())

    assert sizes[-1] > 1.5 * sizes[0]


@FOLDED
def test_the_same_number_but_for_its_top_bits_is_another(folded: bool) -> None:
    table: Shards[str] = Shards(folded=folded)
    table.set(7, "low")
    table.set(7 | 15 << 60, "high")

    assert (table.get(7), table.get(7 | 15 << 60), table.get(7 | 1 << 60)) == ("low", "high", None)


def test_numbers_that_are_all_alike_at_the_top_share_a_shard() -> None:
    """An engine that counts its blocks, say: it works, and only resizing takes longer."""
    table: Shards[int] = Shards()
    for key in range(3 * LIMIT):
        table.set(key, key)

    assert [table.get(key) for key in range(3 * LIMIT)] == list(range(3 * LIMIT))


numbers = st.one_of(st.integers(0, 3), st.integers(2**64 - 3, 2**64 - 1))


@FOLDED
@given(steps=st.lists(st.tuples(st.booleans(), numbers)))
def test_it_is_a_dict(folded: bool, steps: list[tuple[bool, int]]) -> None:
    table: Shards[int] = Shards(folded=folded)
    plain: dict[int, int] = {}
    for i, (is_set, key) in enumerate(steps):
        if is_set:
            table.set(key, i)
            plain[key] = i
        else:
            assert table.pop(key) == plain.pop(key, None)

        assert table.get(key) == plain.get(key)
        assert len(table) == len(plain)
