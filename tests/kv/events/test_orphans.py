"""Blocks whose parent is unknown wait for their keys; nobody vouches for who is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.kv.blocks.dialects import Dialect, wire_hash
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.adapters.sglang import open_batch
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import AllBlocksCleared, BlockRemoved, BlockStored
from inferway.kv.events.orphans import Orphans
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import CPU, GPU, Copy, Remove, Store
from inferway_sim.cache import KvCache, Run
from inferway_sim.events import encode_batch

HOLDER = 3
SIZE = 2
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]
HASHES = [101, 102, 103, 104]
KEYS = BlockHasher(SIZE).keys(np.array(TOKENS, dtype=np.uint32))


def stored(first: int, last: int, **fields: object) -> BlockStored:
    """Blocks first..last-1 of the prompt."""
    values = {
        "block_hashes": HASHES[first:last],
        "parent_hash": HASHES[first - 1] if first else None,
        "token_ids": TOKENS[first * SIZE : last * SIZE],
        "block_size": SIZE,
        **fields,
    }
    return BlockStored(**values)  # type: ignore[arg-type]


def removed(*hashes: int, **fields: object) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), **fields)  # type: ignore[arg-type]


def engine_after(*events: BlockStored | BlockRemoved | AllBlocksCleared) -> EngineBlocks:
    engine = EngineBlocks(HOLDER, SIZE)
    for event in events:
        engine.apply(event)
    return engine


# adoption


def test_an_orphan_is_adopted_with_the_blocks_before_it() -> None:
    """The engine cached the first two before we joined. It could only store the third because
    it held them."""
    engine = engine_after(stored(2, 3))
    assert engine.is_orphan(103)

    assert engine.adopt(HASHES, KEYS) == [Store(HOLDER, KEYS[:3])]
    assert (engine.num_orphans, engine.stats.adopted, engine.num_blocks) == (0, 3, 3)
    assert not engine.is_orphan(103)


def test_children_of_the_adopted_are_orphans_no_more() -> None:
    engine = engine_after(stored(2, 3))
    engine.adopt(HASHES, KEYS)

    assert engine.apply(stored(3, 4)) == [Store(HOLDER, KEYS[3:], parent=KEYS[2])]


def test_what_was_removed_since_is_not_vouched_for() -> None:
    """The third block is adopted all the same, under its true parent."""
    engine = engine_after(stored(2, 3), removed(102))

    assert engine.adopt(HASHES, KEYS) == [
        Store(HOLDER, KEYS[:1]),
        Store(HOLDER, KEYS[2:3], parent=KEYS[1]),
    ]


def test_who_is_stored_later_vouches_for_what_came_back() -> None:
    engine = engine_after(stored(2, 3), removed(102), stored(2, 3))

    engine.adopt(HASHES, KEYS)

    assert engine.num_blocks == 3


def test_an_orphan_on_another_tier_vouches_for_nobody() -> None:
    engine = engine_after(stored(2, 3, medium="CPU"))

    assert engine.adopt(HASHES, KEYS) == [Store(HOLDER, KEYS[2:3], KEYS[1], CPU)]


def test_an_orphan_keeps_its_tiers_and_copies() -> None:
    engine = engine_after(stored(2, 3), stored(2, 3), stored(2, 3, medium="CPU"))

    assert engine.adopt(HASHES, KEYS)[-1] == Copy(HOLDER, KEYS[2:3], CPU)
    assert engine.apply(removed(103)) == []
    assert engine.apply(removed(103)) == [Remove(HOLDER, KEYS[2:3], GPU)]
    assert engine.apply(removed(103, medium="CPU")) == [Remove(HOLDER, KEYS[2:3], CPU)]


def test_an_offloaded_orphan_lies_in_both_tiers() -> None:
    engine = engine_after(stored(2, 3), stored(2, 3, token_ids=[], medium="CPU"))

    assert engine.adopt(HASHES, KEYS)[-1] == Copy(HOLDER, KEYS[2:3], CPU)
    assert engine.stats.skipped == {}


def test_an_orphan_is_gone_with_its_last_copy() -> None:
    engine = engine_after(stored(2, 3), stored(2, 3), removed(103))
    assert engine.num_orphans == 1

    engine.apply(removed(103))

    assert engine.num_orphans == 0
    assert engine.adopt(HASHES, KEYS) == []


def test_a_cleared_engine_has_no_orphans() -> None:
    engine = engine_after(stored(2, 3), AllBlocksCleared())

    assert engine.num_orphans == 0
    assert engine.adopt(HASHES, KEYS) == []


def test_another_prompt_adopts_nothing() -> None:
    engine = engine_after(stored(2, 3))

    assert engine.adopt([201, 202, 203], KEYS[:3]) == []
    assert engine.num_orphans == 1


def test_an_orphan_that_is_stored_with_its_parent_keeps_its_copies() -> None:
    engine = engine_after(stored(2, 3), stored(0, 3))

    assert (engine.num_orphans, engine.num_blocks) == (0, 3)
    assert engine.apply(removed(103)) == []
    assert engine.apply(removed(103)) == [Remove(HOLDER, KEYS[2:3])]


def test_an_unknown_chain_is_keyed_from_its_first_known_block_on() -> None:
    """Its third block is known from another copy; the second is not."""
    engine = engine_after(stored(0, 3), removed(102))

    assert engine.apply(stored(1, 4, parent_hash=999)) == [
        Store(HOLDER, KEYS[3:], parent=KEYS[2]),
    ]
    assert engine.is_orphan(102)


def test_a_long_chain_is_adopted_in_pieces() -> None:
    tokens = list(range(1100 * SIZE))
    keys = BlockHasher(SIZE).keys(np.array(tokens, dtype=np.uint32))
    hashes = list(range(1, 1101))
    orphan = stored(0, 1, block_hashes=[1100], parent_hash=1099)
    engine = engine_after(orphan)

    steps = list(engine.adopt_in_steps(hashes, keys))

    assert [[len(op.keys) for op in ops if isinstance(op, Store)] for ops in steps] == [
        [512],
        [512],
        [76],
    ]
    assert [op.parent for ops in steps for op in ops if isinstance(op, Store)] == [
        None,
        keys[511],
        keys[1023],
    ]
    assert engine.num_blocks == 1100


def test_adopting_again_changes_nothing() -> None:
    engine = engine_after(stored(2, 3), stored(3, 4, parent_hash=999))
    engine.adopt(HASHES[:3], KEYS[:3])

    engine.adopt(HASHES, KEYS)

    assert engine.adopt(HASHES, KEYS) == []
    assert engine.num_blocks == 4


# bounds


def test_the_oldest_orphans_make_room() -> None:
    orphans = Orphans(max_orphans=2)

    orphans.add([1, 2, 3], GPU, implies_ancestors=True, counting=True)

    assert (len(orphans), 1 in orphans) == (2, False)


def test_too_many_removals_end_what_older_orphans_vouch_for() -> None:
    """So many that it is not known any more whether block 7 is among them."""
    orphans = Orphans(max_orphans=2)
    orphans.add([8], GPU, implies_ancestors=True, counting=True)
    assert orphans.known_of([7, 8]) == [(GPU,), (GPU,)]

    orphans.note_removed([1, 2, 3, 4, 5])

    assert orphans.known_of([7, 8]) == [(), (GPU,)]
    orphans.add([9], GPU, implies_ancestors=True, counting=True)
    assert orphans.known_of([7, 9]) == [(GPU,), (GPU,)]


# copies that do not count


def test_reports_of_blocks_held_are_no_copies() -> None:
    """vLLM 0.32 reports what a prompt found in the cache as if it were stored once more."""
    engine = engine_after(stored(0, 3))
    engine.count_no_copies()
    assert engine.apply(stored(0, 2)) == []

    assert engine.apply(removed(102)) == [Remove(HOLDER, [KEYS[1]])]


def test_copies_counted_before_count_no_more() -> None:
    engine = engine_after(stored(0, 3), stored(0, 3), stored(0, 3))
    engine.count_no_copies()

    assert engine.apply(removed(103)) == [Remove(HOLDER, [KEYS[2]])]
    engine.apply(stored(2, 3))
    assert engine.apply(removed(103)) == [Remove(HOLDER, [KEYS[2]])]


def test_copies_of_orphans_do_not_count_either() -> None:
    engine = engine_after(stored(2, 3), stored(2, 3))
    engine.count_no_copies()

    engine.apply(removed(103))

    assert engine.num_orphans == 0


def test_clearing_does_not_make_copies_count_again() -> None:
    """A request that was asked to report may still be under way."""
    engine = engine_after(stored(0, 3))
    engine.count_no_copies()

    engine.apply(AllBlocksCleared())

    assert not engine.copies_count


# the truth


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(8, 40), st.booleans())
def test_a_late_joiner_never_believes_what_is_not_there(
    seed: int, unheard: int, num_blocks: int, reports: bool
) -> None:
    """Any prompts, on an engine of the simulator with little room; the first events are lost.
    Prompts are adopted as they come, or later, or never. `reports`: prompts are reported again as
    vLLM does it when it is asked to, and so copies do not count."""
    numbers = random.Random(seed)
    dialect = Dialect()
    cache, index = KvCache(num_blocks, SIZE, dialect), MemoryIndex()
    engine = EngineBlocks(HOLDER, SIZE, holdings=index)
    if reports:
        engine.count_no_copies()
    hasher = BlockHasher(SIZE)
    prompts = _prompts(numbers)
    running: list[Run] = []
    for turn in range(60):
        prompt = numbers.choice(prompts)
        run = Run(list(prompt))
        if cache.admit(run) is not None:
            running.append(run)
        while running and (numbers.random() < 0.5 or len(running) > 3):
            cache.release(running.pop(numbers.randrange(len(running))))
        payload = encode_batch(cache.take_events(), timestamp=0.0, rank=0, format="map")
        if turn < unheard:
            continue
        for event in open_batch(payload).decoded().events:
            index.apply(engine.apply(event))
        if reports and run.num_reused:
            hashes = [wire_hash(block_hash) for block_hash in run.hashes[: run.num_reused]]
            tokens = prompt[: run.num_reused * SIZE]
            again = BlockStored(
                block_hashes=hashes, parent_hash=None, token_ids=tokens, block_size=SIZE
            )
            index.apply(engine.apply(again))
        if numbers.random() < 0.5:
            routed = numbers.choice(prompts)
            keys = hasher.keys(np.array(routed, dtype=np.uint32))
            hashes = [wire_hash(block_hash) for block_hash in dialect.block_hashes(routed, SIZE)]
            index.apply(engine.adopt(hashes, keys))
        _check(prompts, hasher, dialect, cache, index, engine)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 20))
def test_nobody_vouches_for_who_has_gone_whatever_order_blocks_go_in(
    seed: int, unheard: int
) -> None:
    """An engine that drops any block at any time, those in the middle of others too."""
    numbers = random.Random(seed)
    prompts, hasher, dialect = _prompts(numbers), BlockHasher(SIZE), Dialect()
    index, held = MemoryIndex(), set[int]()
    engine = EngineBlocks(HOLDER, SIZE, holdings=index)
    for turn in range(80):
        prompt = numbers.choice(prompts)
        keys = hasher.keys(np.array(prompt, dtype=np.uint32))
        hashes = [wire_hash(block_hash) for block_hash in dialect.block_hashes(prompt, SIZE)]
        events: list[BlockStored | BlockRemoved] = []
        if numbers.random() < 0.5:
            for i in (i for i, block_hash in enumerate(hashes) if block_hash not in held):
                parent = hashes[i - 1] if i else None
                tokens = prompt[i * SIZE : (i + 1) * SIZE]
                events.append(
                    BlockStored(
                        block_hashes=[hashes[i]],
                        parent_hash=parent,
                        token_ids=tokens,
                        block_size=SIZE,
                    )
                )
            held.update(hashes)
        elif held:
            gone = numbers.choice(sorted(held))
            held.remove(gone)
            events.append(removed(gone))
        if turn < unheard:
            continue
        for event in events:
            index.apply(engine.apply(event))
        if numbers.random() < 0.3:
            index.apply(engine.adopt(hashes, keys))
        for other in prompts:
            keys = hasher.keys(np.array(other, dtype=np.uint32))
            hashes = [wire_hash(block_hash) for block_hash in dialect.block_hashes(other, SIZE)]
            there = dict(zip(keys, hashes, strict=False))
            assert all(there[key] in held for key in index.held(HOLDER, keys, GPU, 0))


def _prompts(numbers: random.Random) -> list[list[int]]:
    """Of two to twelve tokens; many begin as others do."""
    prompts: list[list[int]] = [[]]
    for _ in range(12):
        start = numbers.choice(prompts)
        prompts.append([*start, *(numbers.randrange(3) for _ in range(numbers.randrange(2, 7)))])
    return [prompt for prompt in prompts if prompt]


def _check(
    prompts: Sequence[list[int]],
    hasher: BlockHasher,
    dialect: Dialect,
    cache: KvCache,
    index: MemoryIndex,
    engine: EngineBlocks,
) -> None:
    truth = cache.cached()
    for prompt in prompts:
        keys = hasher.keys(np.array(prompt, dtype=np.uint32))
        believed = asyncio.run(index.match(keys)).blocks.get(HOLDER, 0)
        hashes = list(dialect.block_hashes(prompt, SIZE))
        assert all(block_hash in truth for block_hash in hashes[:believed])
        held = index.held(HOLDER, keys, GPU, 0)
        assert all(hashes[keys.index(key)] in truth for key in held)
    assert engine.num_blocks <= len(truth)
