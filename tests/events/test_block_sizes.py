"""Engines whose blocks are smaller or bigger than those of an index with one key size."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.blocks.extra_keys import request_extras
from inferway.blocks.keys import BlockHasher
from inferway.events.apply import EngineBlocks
from inferway.events.event import AllBlocksCleared, BlockRemoved, BlockStored, Event
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import CPU, GPU, Clear, Remove, Store
from inferway.model import BlockKey

HOLDER = 3
TOKENS = list(range(1000, 1256))  # 256 of them, as llm-d's tests have
SIZES = pytest.mark.parametrize(
    ("engine", "key"), [(16, 16), (16, 64), (64, 16), (16, 256), (256, 16)]
)


def keys(size: int, tokens: Sequence[int] = TOKENS, salt: str | None = None) -> list[BlockKey]:
    extras = request_extras(cache_salt=salt)
    return BlockHasher(size).keys(np.array(tokens, dtype=np.uint32), extras)


def stored(size: int, first: int = 0, last: int | None = None, **fields: object) -> BlockStored:
    """Engine blocks first..last-1 of the 256 tokens; block i has hash 1 + i."""
    end = len(TOKENS) // size if last is None else last
    values = {
        "block_hashes": list(range(1 + first, 1 + end)),
        "parent_hash": first or None,
        "token_ids": TOKENS[first * size : end * size],
        "block_size": size,
        **fields,
    }
    return BlockStored(**values)  # type: ignore[arg-type]


def removed(*hashes: int, medium: str | None = None) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), medium=medium)


def blocks(engine: int, key: int) -> EngineBlocks:
    return EngineBlocks(HOLDER, engine, key_block_size=key)


def matched(engine: int, key: int, events: Sequence[Event]) -> int:
    """Key blocks of the prompt that an index finds after these events."""
    engine_blocks, index = blocks(engine, key), MemoryIndex()
    for event in events:
        index.apply(engine_blocks.apply(event))
    return asyncio.run(index.match(keys(key))).blocks.get(HOLDER, 0)


@SIZES
def test_a_prompts_blocks_have_the_keys_of_the_index(engine: int, key: int) -> None:
    assert blocks(engine, key).apply(stored(engine)) == [Store(HOLDER, keys(key))]


@SIZES
def test_blocks_may_come_one_by_one(engine: int, key: int) -> None:
    events = [stored(engine, i, i + 1) for i in range(256 // engine)]

    assert matched(engine, key, events) == 256 // key


@SIZES
def test_everything_can_be_removed(engine: int, key: int) -> None:
    assert matched(engine, key, [stored(engine), removed(*range(1, 1 + 256 // engine))]) == 0


def test_a_key_is_there_when_all_its_small_blocks_are() -> None:
    assert matched(16, 64, [stored(16, 0, 3)]) == 0
    assert matched(16, 64, [stored(16, 0, 4)]) == 1
    assert matched(16, 64, [stored(16, 0, 7)]) == 1


def test_evicting_a_small_block_removes_just_its_key() -> None:
    engine = blocks(16, 64)
    engine.apply(stored(16))

    assert engine.apply(removed(6)) == [Remove(HOLDER, [keys(64)[1]])]
    assert engine.apply(removed(7)) == []


@pytest.mark.parametrize("gone", range(1, 5))
def test_an_evicted_small_blocks_neighbours_are_not_forgotten(gone: int) -> None:
    """It returns alone, and the key is whole again."""
    events: list[Event] = [stored(16), removed(gone)]

    assert matched(16, 64, events) == 0
    assert matched(16, 64, [*events, stored(16, gone - 1, gone)]) == 4


def test_a_key_whose_small_blocks_have_all_gone_comes_back_with_all_of_them() -> None:
    events: list[Event] = [stored(16), *(removed(h) for h in (4, 1, 3, 2))]

    assert matched(16, 64, [*events, stored(16, 0, 3)]) == 0
    assert matched(16, 64, [*events, stored(16, 0, 4)]) == 4


def test_nothing_is_remembered_of_blocks_that_are_gone() -> None:
    engine = blocks(16, 64)
    for event in (stored(16), removed(*range(16, 0, -1))):
        engine.apply(event)

    assert engine.num_blocks == 0


def test_prompts_may_part_inside_a_key() -> None:
    """One small block is a part of two keys."""
    other = [*TOKENS[:48], *range(16)]
    branch = BlockStored(block_hashes=[99], parent_hash=3, token_ids=other[48:], block_size=16)
    engine = blocks(16, 64)
    engine.apply(stored(16, 0, 4))

    assert engine.apply(branch) == [Store(HOLDER, keys(64, other))]

    gone = [list(op.keys) for op in engine.apply(removed(2)) if isinstance(op, Remove)]

    assert sorted(gone) == sorted([keys(64, TOKENS[:64]), keys(64, other)])


def test_a_big_block_is_removed_as_all_its_keys() -> None:
    engine = blocks(64, 16)
    engine.apply(stored(64))

    assert engine.apply(removed(2)) == [Remove(HOLDER, keys(16)[4:8])]


def test_copies_are_counted() -> None:
    assert matched(16, 64, [stored(16), stored(16, 0, 1), removed(1)]) == 4
    assert matched(16, 64, [stored(16), stored(16, 0, 1), removed(1), removed(1)]) == 0
    assert matched(64, 16, [stored(64), stored(64, 3, 4), removed(4)]) == 16


def test_a_key_lies_in_the_lowest_tier_of_its_small_blocks() -> None:
    engine = blocks(16, 64)
    engine.apply(stored(16, 0, 4))
    [key] = keys(64, TOKENS[:64])

    assert engine.apply(stored(16, 2, 3, medium="CPU")) == []
    assert engine.apply(removed(3, medium="GPU")) == [
        Store(HOLDER, [key], tier=CPU),
        Remove(HOLDER, [key], tier=GPU),
    ]


def test_a_known_block_may_be_copied_without_tokens() -> None:
    offloaded = stored(16, token_ids=[], parent_hash=None, block_size=0, medium="CPU")
    gone = removed(*range(1, 17), medium="GPU")

    assert matched(16, 64, [stored(16), offloaded, gone]) == 4


def test_a_copy_is_known_by_its_hash_whatever_its_tokens_say() -> None:
    """Events of other tiers say nothing of salts."""
    salted = stored(16, extra_keys=[["tenant"], *[None] * 15])
    engine, index = blocks(16, 64), MemoryIndex()
    for event in (salted, stored(16, medium="CPU"), removed(*range(1, 17), medium="GPU")):
        index.apply(engine.apply(event))

    assert asyncio.run(index.match(keys(64))).blocks == {}
    assert asyncio.run(index.match(keys(64, salt="tenant"))).blocks == {HOLDER: 4}


def test_blocks_first_told_of_in_another_tier_wait() -> None:
    engine = blocks(16, 64)

    assert engine.apply(stored(16, medium="CPU")) == []
    assert (engine.num_orphans, engine.num_blocks) == (16, 0)


def test_a_salt_belongs_to_the_prompts_first_key() -> None:
    for engine, key in ((16, 64), (64, 16)):
        extra_keys = [["s"], *[None] * (256 // engine - 1)]

        assert blocks(engine, key).apply(stored(engine, extra_keys=extra_keys)) == [
            Store(HOLDER, keys(key, salt="s"))
        ]


def test_a_picture_belongs_to_the_key_in_which_it_begins() -> None:
    """Whatever the engine's block size, the keys are those of an engine of the key size."""
    pictures: dict[int, list[list[object] | None]] = {
        16: [None, [["p", 4]], [["p", -12]], None],
        32: [[["p", 20]], [["p", -12]]],
        64: [[["p", 20]]],
    }
    small, middle, whole = (
        blocks(size, 64).apply(stored(size, 0, 64 // size, extra_keys=extra_keys))
        for size, extra_keys in pictures.items()
    )

    assert small == middle == whole != [Store(HOLDER, keys(64, TOKENS[:64]))]


def test_a_block_of_an_unknown_parent_is_an_orphan() -> None:
    engine = blocks(16, 64)

    assert engine.apply(stored(16, 4, 8)) == []
    assert engine.num_orphans == 4

    engine.apply(stored(16))

    assert engine.num_orphans == 0


def test_sizes_that_do_not_fit_are_counted() -> None:
    engine = blocks(24, 64)

    assert engine.apply(stored(24, 0, 2)) == []
    assert engine.stats.skipped == {"block_size": 1}


def test_an_engine_that_changes_its_block_size_makes_orphans() -> None:
    engine = blocks(16, 64)
    engine.apply(stored(16, 0, 2))

    assert engine.apply(stored(32, 2, 4)) == []
    assert engine.num_orphans == 2


def test_a_cleared_engine_holds_nothing() -> None:
    engine = blocks(16, 64)
    engine.apply(stored(16))

    assert engine.apply(AllBlocksCleared()) == [Clear(HOLDER)]
    assert engine.num_blocks == 0


# everything at once

paths = st.lists(st.integers(0, 1), min_size=1, max_size=6)
tiers = st.sampled_from(["GPU", "CPU"])
steps = st.lists(st.tuples(st.sampled_from(["store", "remove"]), paths, tiers), max_size=30)


def tokens_of(path: Sequence[int], size: int) -> list[int]:
    return [token * 1000 + i for i, token in enumerate(path) for _ in range(size)]


def hash_of(path: Sequence[int]) -> int:
    return int("9" + "".join(map(str, path)))


@settings(deadline=None)
@given(
    steps, st.lists(st.integers(0, 1), min_size=6, max_size=6), st.sampled_from([(2, 6), (6, 2)])
)
def test_a_key_is_matched_when_every_engine_block_of_it_is_there(
    story: list[tuple[str, list[int], str]], prompt: list[int], sizes: tuple[int, int]
) -> None:
    """An engine that stores whole prompts and evicts any of their last blocks."""
    engine_size, key_size = sizes
    engine, index = EngineBlocks(HOLDER, engine_size, key_block_size=key_size), MemoryIndex()
    copies: Counter[tuple[str, int]] = Counter()
    for step, path, tier in story:
        hashes = [hash_of(path[: i + 1]) for i in range(len(path))]
        if step == "store":
            copies.update((tier, h) for h in hashes)
            event: Event = BlockStored(
                block_hashes=hashes,
                parent_hash=None,
                token_ids=tokens_of(path, engine_size),
                block_size=engine_size,
                medium=tier,
                extra_keys=[None] * len(hashes),
            )
        elif copies[tier, hashes[-1]]:
            copies[tier, hashes[-1]] -= 1
            event = removed(hashes[-1], medium=tier)
        else:
            continue
        index.apply(engine.apply(event))
    held = [
        any(copies[tier, hash_of(prompt[: i + 1])] for tier in ("GPU", "CPU"))
        for i in range(len(prompt))
    ]
    reach = (held.index(False) if False in held else len(held)) * engine_size
    prompt_keys = keys(key_size, tokens_of(prompt, engine_size))

    found = asyncio.run(index.match(prompt_keys)).blocks.get(HOLDER, 0)

    assert found == reach // key_size
