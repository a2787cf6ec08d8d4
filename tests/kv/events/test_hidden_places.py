"""Blocks whose events do not say where they are, found by hashing as the engine does."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from inferway.kv.blocks.dialects import Dialect, wire_hash
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import PromptPlaces
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.dialect_finder import DialectFinder
from inferway.kv.events.event import BlockRemoved, BlockStored, Event
from inferway.kv.events.groups import CacheFacts
from inferway.kv.events.hidden_places import Beside
from inferway.kv.index.memory import MemoryIndex

HOLDER = 1
UNIT, SIZE = 4, 16
TOKENS = list(range(100, 160))  # three blocks and three parts
HASHES = [wire_hash(each) for each in Dialect().block_hashes(TOKENS, UNIT)]


def hash_at(end: int) -> int:
    """Of the block, or part, that ends at a token."""
    return HASHES[end // UNIT - 1]


def stored(ends: Sequence[int], start: int, end: int, **fields: Any) -> BlockStored:
    """Blocks that end there, in an event of the tokens from `start` to `end`."""
    return BlockStored(
        block_hashes=[hash_at(each) for each in ends],
        parent_hash=hash_at(start) if start else None,
        token_ids=array("I", TOKENS[start:end]),
        **{"block_size": SIZE, "group_idx": 0, "spec_kind": "full_attention", **fields},
    )


FULL = stored([16, 32, 48], 0, 48)
STATES: dict[str, Any] = {"group_idx": 1, "spec_kind": "mamba"}
# the last part of a prompt, of both groups
TAIL = [
    stored([56], 52, 56, block_size=UNIT),
    stored([56], 52, 56, **STATES, block_size=UNIT),
]


class Gateway:
    """What is believed of an engine whose hashes have `UNIT` tokens."""

    def __init__(self) -> None:
        facts = CacheFacts(hash_size=UNIT, block_size=SIZE)
        self.index = MemoryIndex()
        self.blocks = EngineBlocks(HOLDER, SIZE, cache_facts=lambda: facts)
        self.blocks.verify_hashes(DialectFinder(hash_size=lambda: self.blocks.hash_size))

    def hear(self, *events: Event) -> None:
        self.index.apply(self.blocks.expect(events))
        for event in events:
            self.index.apply(self.blocks.apply(event))

    def expect(self, tokens: Sequence[int]) -> None:
        keys = BlockHasher(SIZE).keys(np.array(tokens, np.uint32))
        for ops in self.blocks.expect_prompt(tokens, keys, Beside()):
            self.index.apply(ops)

    def reused(self, tokens: Sequence[int] = (*TOKENS, 7)) -> int:
        hasher, ids = BlockHasher(SIZE), np.array(tokens, np.uint32)
        keys = hasher.keys(ids)
        found = self.index.match_now(keys, PromptPlaces(hasher, ids, keys))
        return found.tokens(HOLDER, SIZE)


def test_the_last_part_of_a_prompt_that_was_routed_is_known() -> None:
    gateway = Gateway()
    gateway.hear(FULL, stored([48], 0, 48, **STATES))
    gateway.expect(TOKENS)

    gateway.hear(*TAIL)

    assert gateway.reused() == 56
    assert gateway.blocks.num_awaited == 0


def test_it_waits_until_its_prompt_is_routed() -> None:
    gateway = Gateway()
    gateway.hear(FULL, stored([48], 0, 48, **STATES), *TAIL)
    assert gateway.reused() == 48
    assert gateway.blocks.unplaced_kinds == ("mamba",)

    gateway.expect(TOKENS)

    assert gateway.reused() == 56
    assert not gateway.blocks.unplaced_kinds


def test_it_is_not_reused_by_a_prompt_that_ends_otherwise() -> None:
    gateway = Gateway()
    gateway.hear(FULL, stored([48], 0, 48, **STATES))
    gateway.expect(TOKENS)
    gateway.hear(*TAIL)

    assert gateway.reused([*TOKENS[:54], 1, 2, 3]) == 48


def test_it_is_gone_when_it_is_removed() -> None:
    gateway = Gateway()
    gateway.hear(FULL, stored([48], 0, 48, **STATES))
    gateway.expect(TOKENS)
    gateway.hear(*TAIL, BlockRemoved(block_hashes=[hash_at(56)], group_idx=1))

    assert gateway.reused() == 48


def test_checkpoints_are_found_among_the_tokens_of_an_engine_without_full_attention() -> None:
    gateway = Gateway()
    gateway.hear(stored([32], 0, 32, **{**STATES, "group_idx": 0}))
    gateway.hear(stored([48], 32, 48, **{**STATES, "group_idx": 0}))

    assert gateway.reused() == 48
    assert gateway.reused(TOKENS[:40]) == 32
    assert gateway.reused(TOKENS[:30]) == 0


def test_smaller_blocks_of_a_window_are_found_where_some_were_skipped() -> None:
    window = {"group_idx": 1, "spec_kind": "sliding_window", "sliding_window": 9}
    gateway = Gateway()

    gateway.hear(FULL, stored([28, 32], 0, 48, **window, block_size=UNIT))

    assert gateway.reused() == 32


def test_without_a_dialect_nothing_is_guessed() -> None:
    gateway = Gateway()
    gateway.blocks.verify_hashes(DialectFinder(seeds=["another"]))
    gateway.hear(FULL, stored([48], 0, 48, **STATES), *TAIL)
    gateway.expect(TOKENS)

    assert gateway.reused() == 48
