"""Blocks in other tiers, whose events keep to themselves what is hashed beside the tokens: vLLM's
OffloadingConnector tells neither salts nor pictures (0.32)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from tests.kv.snapshots import restore, saved

from inferway.kv.blocks.dialects import Dialect, HashExtra, LoraAdapter, published_extras, wire_hash
from inferway.kv.blocks.extra_keys import event_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.dialect_finder import DialectFinder, DialectState
from inferway.kv.events.event import BlockRemoved, BlockStored, Event
from inferway.kv.events.holder_state import MAX_LATELY
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import CPU, FULL_ATTENTION, GPU
from inferway.model import BlockKey

HOLDER = 3
SIZE = 2
TOKENS = list(range(8))
NUM = len(TOKENS) // SIZE
SHA256 = Dialect()
ALICE = LoraAdapter("alice", "/adapters/alice")

Extras = Sequence[tuple[HashExtra, ...] | None]  # of each block, as they are hashed
PLAIN: Extras = [None] * NUM
SALTED: Extras = [(("cache_salt", "tenant"),), None, None, None]
PICTURE: Extras = [None, None, (("mm", "cat", 1),), (("mm", "cat", -1),)]
ADAPTED: Extras = [(("lora", ALICE.name, ALICE.path),)] * NUM

every_kind = pytest.mark.parametrize("extras", [PLAIN, SALTED, PICTURE, ADAPTED])


def hashes_of(extras: Extras) -> list[int]:
    hashes: list[int] = []
    parent = None
    for i, extra in enumerate(extras):
        parent = SHA256.block_hash(parent, TOKENS[i * SIZE : (i + 1) * SIZE], extra)
        hashes.append(wire_hash(parent))
    return hashes


def lora_of(extras: Extras) -> str | None:
    return ALICE.name if extras is ADAPTED else None


def on_gpu(extras: Extras, first: int = 0, last: int = NUM) -> BlockStored:
    """As vLLM tells of what it has computed."""
    hashes = hashes_of(extras)
    return BlockStored(
        block_hashes=hashes[first:last],
        parent_hash=hashes[first - 1] if first else None,
        token_ids=TOKENS[first * SIZE : last * SIZE],
        block_size=SIZE,
        lora_name=lora_of(extras),
        medium="GPU",
        extra_keys=[published_extras(extra) for extra in extras[first:last]],
    )


def offloaded(extras: Extras, first: int = 0, last: int = NUM) -> BlockStored:
    """As vLLM's OffloadingConnector tells of a chunk."""
    told = on_gpu(extras, first, last)
    return msgspec.structs.replace(told, medium="CPU", extra_keys=None)


def removed(extras: Extras, first: int = 0, last: int = NUM, medium: str = "GPU") -> BlockRemoved:
    return BlockRemoved(block_hashes=hashes_of(extras)[first:last], medium=medium)


def keys_of(extras: Extras) -> list[BlockKey]:
    told = event_extras(lora_of(extras), [published_extras(extra) for extra in extras])
    return BlockHasher(SIZE).keys(np.array(TOKENS, dtype=np.uint32), told)


class Gateway:
    """What it believes of one engine."""

    def __init__(self, *events: Event, knows_dialect: bool = False) -> None:
        self.index = MemoryIndex()
        self.blocks = EngineBlocks(HOLDER, SIZE, holdings=self.index)
        if knows_dialect:
            finder = DialectFinder(lora_path=lambda _: ALICE.path)
            finder.see(another_prompt())
            finder.step(100)
            self.blocks.verify_hashes(finder)
        self.hear(*events)

    def hear(self, *events: Event) -> None:
        for event in events:
            self.index.apply(self.blocks.apply(event))

    def matched(self, extras: Extras) -> int:
        return asyncio.run(self.index.match(keys_of(extras))).blocks.get(HOLDER, 0)

    def num_in(self, tier: int, extras: Extras) -> int:
        return len(self.index.held(HOLDER, keys_of(extras), tier, FULL_ATTENTION))


def another_prompt() -> BlockStored:
    tokens = [90, 91]
    return BlockStored(
        block_hashes=[wire_hash(SHA256.block_hash(None, tokens))],
        parent_hash=None,
        token_ids=tokens,
        block_size=SIZE,
        extra_keys=[None],
    )


@every_kind
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_a_copy_of_what_is_known_is_that_block_whatever_its_tokens_say(
    extras: Extras, order: Sequence[int]
) -> None:
    copies = [offloaded(extras, i, i + 1) for i in order]
    gateway = Gateway(on_gpu(extras), *copies, removed(extras))

    assert (gateway.num_in(CPU, extras), gateway.matched(extras)) == (NUM, NUM)
    assert gateway.blocks.num_orphans == 0


@pytest.mark.parametrize(("extras", "plain"), [(SALTED, 0), (PICTURE, 2)])
def test_a_copy_with_extra_keys_is_no_block_of_the_plain_prompt(extras: Extras, plain: int) -> None:
    gateway = Gateway(on_gpu(extras), offloaded(extras))

    assert gateway.matched(PLAIN) == plain
    assert gateway.index.num_blocks(HOLDER) == NUM


@every_kind
def test_a_chunk_of_several_blocks_is_several_copies(extras: Extras) -> None:
    gateway = Gateway(on_gpu(extras), offloaded(extras, 0, 2), offloaded(extras, 2, 4))

    assert gateway.num_in(CPU, extras) == NUM


@every_kind
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_a_copy_told_of_after_its_block_was_evicted_is_known_all_the_same(
    extras: Extras, order: Sequence[int]
) -> None:
    """vLLM frees the blocks of a request that has ended, and copies them before they are used."""
    gateway = Gateway(another_prompt())
    gateway.hear(msgspec.structs.replace(another_prompt(), medium="CPU", extra_keys=None))
    gateway.hear(on_gpu(extras), removed(extras))

    gateway.hear(*(offloaded(extras, i, i + 1) for i in order))

    assert gateway.matched(extras) == NUM
    assert gateway.blocks.num_orphans == 0
    gateway.hear(removed(extras, medium="CPU"))
    assert gateway.matched(extras) == 0


def test_no_more_is_remembered_of_what_was_evicted_than_can_be_on_its_way() -> None:
    gateway = Gateway(on_gpu(PLAIN), offloaded(PLAIN, 3, 4), removed(PLAIN, 0, 3))
    for i in range(MAX_LATELY):
        event = BlockStored(
            block_hashes=[i], parent_hash=None, token_ids=[i, i], block_size=SIZE, extra_keys=[None]
        )
        gateway.hear(event, BlockRemoved(block_hashes=[i]))

    gateway.hear(offloaded(PLAIN, 0, 1))

    assert gateway.blocks.num_orphans == 1


@every_kind
def test_what_was_never_seen_waits_until_the_gpu_says_what_it_is(extras: Extras) -> None:
    gateway = Gateway(offloaded(extras))
    assert (gateway.index.num_blocks(HOLDER), gateway.blocks.num_orphans) == (0, NUM)

    gateway.hear(on_gpu(extras))

    assert (gateway.num_in(CPU, extras), gateway.num_in(GPU, extras)) == (NUM, NUM)
    assert gateway.blocks.num_orphans == 0


@every_kind
def test_what_was_never_seen_is_adopted_by_the_prompt_with_its_hashes(extras: Extras) -> None:
    gateway = Gateway(offloaded(extras))

    gateway.index.apply(gateway.blocks.adopt(hashes_of(extras), keys_of(extras)))

    assert (gateway.num_in(CPU, extras), gateway.num_in(GPU, extras)) == (NUM, 0)


@pytest.mark.parametrize("extras", [PLAIN, ADAPTED])
def test_unseen_blocks_whose_tokens_make_their_hashes_count_at_once(extras: Extras) -> None:
    gateway = Gateway(knows_dialect=True)

    gateway.hear(*(offloaded(extras, i, i + 1) for i in range(NUM)))

    assert gateway.num_in(CPU, extras) == NUM


def test_unseen_blocks_count_up_to_the_one_that_has_something_in_it() -> None:
    gateway = Gateway(knows_dialect=True)

    gateway.hear(*(offloaded(PICTURE, i, i + 1) for i in range(NUM)))

    assert (gateway.matched(PLAIN), gateway.matched(PICTURE)) == (2, 2)
    assert gateway.blocks.num_orphans == 2


def test_an_unseen_salted_prompt_waits_whole() -> None:
    gateway = Gateway(offloaded(SALTED), knows_dialect=True)

    assert (gateway.matched(PLAIN), gateway.matched(SALTED)) == (0, 0)
    assert gateway.blocks.num_orphans == NUM


def test_events_that_tell_all_extra_keys_count_in_any_tier() -> None:
    told = msgspec.structs.replace(on_gpu(SALTED), medium="CPU")

    assert Gateway(told).matched(SALTED) == NUM


def test_chunks_of_another_size_are_left_out() -> None:
    """LMCache's have 256 tokens and hashes of their own; no prompt is cut like that."""
    chunk = BlockStored(
        block_hashes=[7], parent_hash=None, token_ids=TOKENS, block_size=len(TOKENS), medium="cpu"
    )
    gateway = Gateway(chunk)

    assert (gateway.blocks.num_blocks, gateway.blocks.num_orphans) == (0, 0)
    assert gateway.blocks.stats.skipped == {"block_size": 1}


@every_kind
def test_copies_are_in_a_snapshot(extras: Extras) -> None:
    first = Gateway(offloaded(PLAIN, 0, 1), on_gpu(extras), removed(extras, 2), offloaded(extras))
    second = Gateway()

    restore(second.blocks, second.index, saved(first.blocks, first.index))

    for tier in (CPU, GPU):
        assert second.num_in(tier, extras) == first.num_in(tier, extras)
    assert second.num_in(CPU, extras) == NUM


def test_how_an_engine_hashes_is_learned_from_its_gpu_alone() -> None:
    finder = DialectFinder()
    gateway = Gateway()
    gateway.blocks.verify_hashes(finder)

    gateway.hear(on_gpu(SALTED))
    finder.step(100)
    gateway.hear(offloaded(SALTED), removed(SALTED), removed(SALTED, medium="CPU"))
    gateway.blocks.forget()
    gateway.hear(
        offloaded(SALTED), msgspec.structs.replace(offloaded(SALTED), extra_keys=[None] * 4)
    )
    finder.step(100)

    assert finder.state is DialectState.FOUND
