"""The order in which blocks are taken, and copies of one block."""

from __future__ import annotations

from inferway_sim.events import CacheCleared, CacheRemoved
from inferway_sim.pool import Block, BlockPool


def ids(blocks: list[Block]) -> list[int]:
    return [block.id for block in blocks]


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(4)

    assert ids(pool.take(3)) == [1, 2, 3]
    assert pool.num_free == 0


def test_blocks_without_content_are_taken_before_any_that_can_be_reused() -> None:
    pool = BlockPool(5)
    first, second, third = pool.take(3)
    pool.keep(first, b"a")

    pool.release([first, second, third])

    # Freed tail first, and each put in front of the ones that were free before.
    assert ids(pool.take(4)) == [third.id, second.id, 4, first.id]


def test_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    for block, block_hash in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.keep(block, block_hash)
    pool.release(blocks)

    pool.take(2)

    assert pool.cached() == {b"a": 1}
    assert pool.events == [CacheRemoved(b"c"), CacheRemoved(b"b")]


def test_a_block_in_use_is_not_evicted() -> None:
    pool = BlockPool(3)
    shared, other = pool.take(2)
    pool.keep(shared, b"a")
    pool.share([shared])
    pool.release([shared])
    pool.release([other])

    assert ids(pool.take(1)) == [other.id]
    assert pool.num_free == 0


def test_copies_of_a_block_are_told_and_removed_one_by_one() -> None:
    pool = BlockPool(3)
    blocks = pool.take(2)
    for block in blocks:
        pool.keep(block, b"a")
    pool.release(blocks)

    pool.take(1)

    assert pool.cached() == {b"a": 1}
    assert pool.events == [CacheRemoved(b"a")]


def test_clearing_is_refused_while_a_block_is_used() -> None:
    pool = BlockPool(3)
    [block] = pool.take(1)
    pool.keep(block, b"a")

    assert not pool.clear()
    assert pool.cached() == {b"a": 1}

    pool.release([block])

    assert pool.clear()
    assert pool.cached() == {}
    assert pool.events == [CacheCleared()]
