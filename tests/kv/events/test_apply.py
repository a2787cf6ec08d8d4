"""Events of one engine become index operations that keep the index true."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.kv.blocks.extra_keys import request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import PromptPlaces
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.dialect_finder import DialectFinder
from inferway.kv.events.event import (
    MAX_GROUPS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
)
from inferway.kv.events.groups import CacheFacts
from inferway.kv.events.holder_state import MAX_TIERS
from inferway.kv.events.orphans import MAX_ORPHANS
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import CPU, GPU, STORAGE, Clear, Copy, Layout, Remove, Store
from inferway.kv.index.reuse import CacheGroup, CacheLayout
from inferway.model import cut_of

HOLDER = 3
SIZE = 2
TOKENS = [1, 2, 3, 4, 5, 6]
HASHES = [101, 102, 103]
KEYS = BlockHasher(SIZE).keys(np.array(TOKENS, dtype=np.uint32))


def blocks() -> EngineBlocks:
    return EngineBlocks(HOLDER, SIZE)


def stored(first: int = 0, last: int = 3, **fields: object) -> BlockStored:
    """Blocks first..last-1 of the prompt of six tokens, as vLLM tells of those in GPU memory."""
    values = {
        "block_hashes": HASHES[first:last],
        "parent_hash": HASHES[first - 1] if first else None,
        "token_ids": TOKENS[first * SIZE : last * SIZE],
        "block_size": SIZE,
        "extra_keys": [None] * (last - first),
        **fields,
    }
    return BlockStored(**values)  # type: ignore[arg-type]


def removed(*hashes: int, **fields: object) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), **fields)  # type: ignore[arg-type]


def matched(events: Sequence[Event], tokens: Sequence[int] = TOKENS) -> int:
    """Blocks of a prompt that an index finds after these events, whether it is asked which keys
    the engine has, or the engine's side remembers them."""
    keys = BlockHasher(SIZE).keys(np.array(tokens, dtype=np.uint32))
    found = []
    for ask in (False, True):
        index = MemoryIndex()
        engine = EngineBlocks(HOLDER, SIZE, holdings=index if ask else None)
        for event in events:
            index.apply(engine.apply(event))
        found.append(asyncio.run(index.match(keys)).blocks.get(HOLDER, 0))
    assert found[0] == found[1]
    return found[0]


# keys


def test_stored_blocks_have_the_keys_of_a_prompt() -> None:
    assert blocks().apply(stored()) == [Store(HOLDER, KEYS)]


def test_blocks_continue_from_their_parents_key() -> None:
    engine = blocks()
    engine.apply(stored(0, 1))

    assert engine.apply(stored(1, 3)) == [Store(HOLDER, KEYS[1:], parent=KEYS[0])]


def test_an_adapters_blocks_have_the_keys_of_its_requests() -> None:
    extras = request_extras(lora="alice")
    keys = BlockHasher(SIZE).keys(np.array(TOKENS, dtype=np.uint32), extras)
    event = stored(lora_name="alice", extra_keys=[["alice"]] * 3)

    assert blocks().apply(event) == [Store(HOLDER, keys)]


def test_an_adapters_blocks_follow_on_the_block_before_them_wherever_it_is_from_by_now() -> None:
    paths = {"alice": "/a"}
    engine = EngineBlocks(HOLDER, SIZE, lora_path=paths.get)
    extras = request_extras("alice", None, "/a")
    keys = BlockHasher(SIZE).keys(np.array(TOKENS, dtype=np.uint32), extras)
    first = engine.apply(stored(0, 1, lora_name="alice", extra_keys=[["alice"]]))
    paths["alice"] = "/b"
    rest = engine.apply(stored(1, 3, lora_name="alice", extra_keys=[["alice"]] * 2))

    assert first == [Store(HOLDER, keys[:1])]
    assert rest == [Store(HOLDER, keys[1:], parent=keys[0])]


def test_blocks_of_an_adapter_from_elsewhere_wait() -> None:
    class AliceHasMoved(DialectFinder):
        def is_moved(self, event: BlockStored) -> bool:
            return event.lora_name == "alice"

    engine = blocks()
    engine.verify_hashes(AliceHasMoved())

    assert engine.apply(stored(lora_name="alice", extra_keys=[["alice"]] * 3)) == []
    assert engine.num_orphans == 3
    assert engine.apply(stored()) != []


def test_a_salted_prompts_blocks_have_the_keys_of_its_request() -> None:
    extras = request_extras(cache_salt="s")
    keys = BlockHasher(SIZE).keys(np.array(TOKENS, dtype=np.uint32), extras)
    event = stored(extra_keys=[["s"], None, None])

    assert blocks().apply(event) == [Store(HOLDER, keys)]


def test_another_block_size_is_seen_and_never_matches_wrongly() -> None:
    engine = blocks()
    event = stored(block_size=3, block_hashes=[201, 202])
    keys = BlockHasher(3).keys(np.array(TOKENS, dtype=np.uint32))

    assert engine.apply(event) == [Store(HOLDER, keys)]
    assert engine.block_size_seen == 3
    assert engine.stats.other_block_size == 1
    assert not set(keys) & set(KEYS)


def test_the_seed_is_part_of_the_keys() -> None:
    assert EngineBlocks(HOLDER, SIZE, seed=1).apply(stored()) != blocks().apply(stored())


# copies


def test_a_removed_block_is_gone() -> None:
    engine = blocks()
    engine.apply(stored())

    assert engine.apply(removed(103, 102)) == [Remove(HOLDER, [KEYS[2], KEYS[1]])]


def test_a_second_copy_is_nothing_new() -> None:
    engine = blocks()
    engine.apply(stored())

    assert engine.apply(stored(2, 3)) == []


def test_only_what_is_new_of_a_chain_is_stored_again() -> None:
    engine = blocks()
    engine.apply(stored(0, 1))
    engine.apply(stored(2, 3, parent_hash=None))  # as if it began a prompt: another key

    assert engine.apply(stored()) == [Store(HOLDER, [KEYS[1]], parent=KEYS[0])]


def test_a_block_is_gone_with_its_last_copy() -> None:
    assert matched([stored(), stored(2, 3), stored(2, 3), removed(103), removed(103)]) == 3
    assert matched([stored(), stored(2, 3), removed(103), removed(103)]) == 2


def test_each_tier_has_copies_of_its_own() -> None:
    """Both are written, the GPU's is evicted, the CPU's serves."""
    on_cpu = stored(medium="CPU")

    assert matched([stored(medium="GPU"), on_cpu, removed(103, medium="GPU")]) == 3
    assert (
        matched(
            [
                stored(medium="GPU"),
                on_cpu,
                removed(103, medium="GPU"),
                removed(103, medium="CPU"),
            ]
        )
        == 2
    )


def test_a_tier_cannot_lose_what_it_was_not_said_to_hold() -> None:
    assert matched([stored(medium="CPU"), removed(101, 102, 103, medium="GPU")]) == 3


def test_no_medium_means_the_gpu() -> None:
    assert matched([stored(), removed(103, medium="GPU")]) == 2


def test_blocks_offloaded_without_tokens_keep_their_keys() -> None:
    offloaded = stored(token_ids=[], parent_hash=None, block_size=0, medium="CPU")

    assert matched([stored(), offloaded, removed(*HASHES, medium="GPU")]) == 3


def test_the_medium_is_the_tier() -> None:
    engine = blocks()

    assert engine.apply(stored(0, 1, medium="GPU")) == [Store(HOLDER, KEYS[:1], tier=GPU)]
    assert engine.apply(stored(0, 1, medium="CPU")) == [Store(HOLDER, KEYS[:1], tier=CPU)]
    assert engine.apply(stored(0, 1, medium="STORAGE")) == [Store(HOLDER, KEYS[:1], tier=STORAGE)]
    assert engine.apply(removed(101, medium="CPU")) == [Remove(HOLDER, KEYS[:1], tier=CPU)]


def test_unknown_media_are_lower_tiers_each_its_own() -> None:
    engine = blocks()
    tape, disk = engine.apply(stored(medium="TAPE")), engine.apply(stored(medium="DISK"))

    assert (tape, disk) == ([Store(HOLDER, KEYS, tier=3)], [Store(HOLDER, KEYS, tier=4)])
    assert engine.apply(removed(103, medium="TAPE")) == [Remove(HOLDER, KEYS[2:], tier=3)]


def test_an_engine_cannot_name_media_without_end() -> None:
    engine = blocks()
    for i in range(MAX_TIERS):
        engine.apply(stored(medium=f"M{i}"))

    assert engine.apply(stored(medium="ONE MORE")) == []
    assert engine.apply(removed(101, medium="ONE MORE")) == []
    assert engine.stats.skipped["medium"] == 5


def test_blocks_offloaded_without_tokens_are_copies() -> None:
    engine = blocks()
    engine.apply(stored())
    offloaded = stored(
        token_ids=[], block_hashes=[103, 101], parent_hash=None, block_size=0, medium="CPU"
    )

    assert engine.apply(offloaded) == [Copy(HOLDER, [KEYS[2], KEYS[0]], tier=CPU)]
    assert engine.apply(offloaded) == []


def test_offloaded_blocks_that_nobody_described_are_skipped() -> None:
    engine = blocks()

    assert engine.apply(stored(token_ids=[], block_size=0)) == []
    assert engine.stats.skipped == {"unknown_hash": 1}


def test_one_key_under_two_hashes_goes_with_the_second() -> None:
    """An adapter loaded again from another path: the engine hashes the path, requests cannot."""
    again = stored(block_hashes=[201, 202, 203])

    assert matched([stored(), again, removed(*HASHES)]) == 3
    assert matched([stored(), again, removed(*HASHES), removed(203)]) == 2


def test_a_block_stored_on_another_machine_is_not_this_engines() -> None:
    assert matched([stored(locality="REMOTE")]) == 0
    assert matched([stored(), removed(103, locality="REMOTE")]) == 3


# groups


def test_a_group_without_a_kind_is_full_attention() -> None:
    assert matched([stored(group_idx=0), removed(103, group_idx=1)]) == 3
    assert matched([stored(), removed(103, group_idx=0)]) == 2
    assert matched([stored(group_idx=0), stored(0, 2, group_idx=1)]) == 2


# groups of KV caches


def window(first: int, last: int, **fields: object) -> BlockStored:
    """Of three tokens: two blocks of two, to see two tokens back."""
    values = {"group_idx": 1, "spec_kind": "sliding_window", "sliding_window": 3, **fields}
    return stored(first, last, token_ids=[], **values)


FULL = stored(group_idx=0, spec_kind="full_attention")
FULL_GROUP = CacheGroup(0, "full_attention", SIZE)


def laid_out(*others: CacheGroup) -> Layout:
    return Layout(HOLDER, CacheLayout((FULL_GROUP, *others)))


def test_a_window_makes_a_layout_and_has_its_blocks_by_their_hashes() -> None:
    engine = blocks()

    assert len(engine.apply(FULL)) == 1
    assert engine.apply(window(1, 3)) == [
        laid_out(CacheGroup(1, "sliding_window", SIZE, 3)),
        Copy(HOLDER, KEYS[1:], group=2),
    ]
    assert engine.apply(removed(103, group_idx=1)) == [Remove(HOLDER, KEYS[2:], group=2)]


def test_full_attention_alone_makes_no_layout() -> None:
    engine = blocks()

    assert engine.apply(FULL) == [Store(HOLDER, KEYS)]
    assert engine.layout == CacheLayout((FULL_GROUP,))


def test_a_prefix_ends_where_the_window_does() -> None:
    assert matched([FULL, window(2, 3)]) == 3
    assert matched([FULL, window(0, 2)]) == 2
    assert matched([FULL, window(0, 3), removed(103, 102, group_idx=1)]) == 1
    assert matched([FULL, window(0, 3), removed(*HASHES, group_idx=1)]) == 0


def test_a_prefix_ends_at_the_last_checkpoint_of_state_space_layers() -> None:
    def state(*blocks: int) -> BlockStored:
        hashes = [HASHES[i] for i in blocks]
        return stored(block_hashes=hashes, group_idx=1, spec_kind="mamba", extra_keys=None)

    assert matched([FULL, state()]) == 0
    assert matched([FULL, state(1)]) == 2  # its event has the tokens of all three blocks
    assert matched([FULL, state(0, 2)]) == 3
    assert matched([FULL, state(0, 2), removed(103, group_idx=1)]) == 1


@pytest.mark.parametrize(
    "fields",
    [{"spec_kind": "sliding_window", "sliding_window": 3}, {"spec_kind": "mamba"}],
    ids=["window", "states"],
)
def test_a_report_of_a_sparse_group_is_not_believed(fields: dict[str, Any]) -> None:
    """It names all blocks of the prefix, also those that the group does not hold. Before an engine
    is asked for reports there are none."""
    of_group = stored(group_idx=1, **fields)
    engine = blocks()
    engine.apply(FULL)
    engine.count_no_copies()

    assert engine.may_name_more_than_held(of_group)
    assert [type(op) for op in engine.apply(of_group)] == [Layout]
    assert not engine.may_name_more_than_held(FULL)
    assert matched([FULL, of_group]) == 3


def test_a_block_of_another_group_may_come_before_that_of_full_attention() -> None:
    assert matched([window(2, 3), FULL]) == 3
    assert matched([window(0, 3), removed(103, group_idx=1), FULL]) == 2


def test_full_attention_need_not_be_group_0() -> None:
    full = stored(group_idx=1, spec_kind="full_attention")

    assert matched([window(0, 2, group_idx=0), full]) == 2
    assert matched([window(0, 2, group_idx=0), full, removed(102, group_idx=0)]) == 1


def test_groups_are_forgotten_with_the_blocks_for_an_engine_that_starts_anew_may_have_others() -> (
    None
):
    engine = blocks()
    engine.apply(FULL)
    engine.apply(window(0, 3))

    assert engine.apply(AllBlocksCleared()) == [Clear(HOLDER)]
    assert engine.layout is None
    assert matched([FULL, window(0, 3), AllBlocksCleared(), FULL]) == 3
    assert matched([window(0, 3), AllBlocksCleared(), FULL, window(0, 2)]) == 2


def test_all_groups_of_a_batch_are_known_before_its_first_event_is_applied() -> None:
    engine = blocks()
    engine.expect([FULL, window(0, 3)])

    [layout, store] = engine.apply(FULL)

    assert layout == laid_out(CacheGroup(1, "sliding_window", SIZE, 3))
    assert store == Store(HOLDER, KEYS)


def test_blocks_that_wait_for_those_of_full_attention_are_bounded() -> None:
    engine = blocks()
    count = MAX_ORPHANS + 5
    engine.apply(window(0, 0, block_hashes=list(range(1_000, 1_000 + count)), block_size=SIZE))

    assert engine.num_awaited == MAX_ORPHANS


def test_blocks_of_a_group_with_smaller_blocks_are_keyed_by_their_own_tokens() -> None:
    """Full attention has blocks of two, the window of one."""
    window_blocks = BlockStored(
        block_hashes=[1, 101, 2, 102],
        parent_hash=None,
        token_ids=array("I", TOKENS[:4]),
        block_size=1,
        group_idx=1,
        spec_kind="sliding_window",
        sliding_window=2,
    )
    index, engine = MemoryIndex(), blocks()
    for event in (FULL, window_blocks, removed(102, 2, group_idx=1)):
        index.apply(engine.apply(event))
    hasher = BlockHasher(SIZE)
    ids = np.array([*TOKENS, 99], np.uint32)

    found = index.match_now(KEYS, PromptPlaces(hasher, ids, KEYS))

    assert found.reuse[HOLDER].tokens == 2
    assert found.reuse[HOLDER].held_blocks == 3
    assert engine.num_awaited == 0


def test_a_window_of_unknown_length_is_taken_for_full_attention() -> None:
    assert matched([FULL, window(0, 2, sliding_window=None)]) == 2


def test_groups_that_no_engine_has_are_left_out() -> None:
    engine = blocks()
    engine.apply(FULL)

    for number in (-1, MAX_GROUPS):
        assert engine.apply(window(0, 3, group_idx=number)) == []
        assert engine.apply(removed(*HASHES, group_idx=number)) == []
    assert engine.stats.skipped == {"other_group": 4}
    assert engine.num_blocks == 3


def test_an_event_without_a_block_size_teaches_nothing() -> None:
    engine = blocks()

    assert engine.apply(window(0, 0, block_size=0)) == []
    assert engine.layout is None
    assert len(engine.apply(FULL)) == 1


def test_a_draft_model_makes_its_engine_drop_the_last_block() -> None:
    facts = CacheFacts(drops_last_block=True)
    engine = EngineBlocks(HOLDER, SIZE, cache_facts=lambda: facts)
    engine.expect([FULL])

    [layout, _] = engine.apply(FULL)

    assert layout == Layout(
        HOLDER, CacheLayout((CacheGroup(0, "full_attention", SIZE, eagle=True),))
    )


def test_with_look_ahead_hashes_blocks_are_keyed_with_the_tokens_behind_them() -> None:
    def look_ahead(behind: int) -> BlockStored:
        ahead = [[TOKENS[2]], [TOKENS[4]], [behind]]
        return stored(group_idx=0, spec_kind="full_attention", lookahead_token_ids=ahead)

    index, engine = MemoryIndex(), blocks()
    index.apply(engine.apply(look_ahead(7)))
    hasher = BlockHasher(SIZE, 0, 1)

    def found(last: int) -> int:
        keys = hasher.keys(np.array([*TOKENS, last], np.uint32))
        return index.match_now(keys).blocks.get(HOLDER, 0)

    assert engine.cut_seen == cut_of(SIZE, 1)
    assert found(7) == 3
    assert found(8) == 2


# orphans


def test_a_block_of_an_unknown_parent_is_not_guessed() -> None:
    engine = blocks()

    assert engine.apply(stored(1, 3)) == []
    assert engine.stats.orphans == 2
    assert engine.num_orphans == 2


def test_children_of_orphans_are_orphans() -> None:
    assert matched([stored(1, 2), stored(2, 3)]) == 0


def test_an_orphan_that_is_stored_again_in_full_is_one_no_longer() -> None:
    engine = blocks()
    engine.apply(stored(1, 3))

    assert engine.apply(stored(0, 3)) == [Store(HOLDER, KEYS)]
    assert engine.num_orphans == 0


def test_a_copy_of_a_known_block_needs_no_parent() -> None:
    """The parent was evicted, or belongs to a copy that we have not heard of."""
    engine = blocks()
    engine.apply(stored())
    engine.apply(removed(101))

    assert engine.apply(stored(1, 3)) == []
    assert engine.stats.orphans == 0


def test_removing_an_orphan_is_harmless() -> None:
    engine = blocks()
    engine.apply(stored(1, 3))

    assert engine.apply(removed(102, 999)) == []
    assert engine.num_orphans == 1


def test_no_more_orphans_are_remembered_than_there_is_room_for() -> None:
    engine = blocks()
    count = MAX_ORPHANS + 5
    engine.apply(
        BlockStored(
            block_hashes=list(range(1_000, 1_000 + count)),
            parent_hash=1,
            token_ids=[0] * count,
            block_size=1,
        )
    )

    assert engine.num_orphans == MAX_ORPHANS
    assert engine.stats.orphans == count


# everything gone


def test_a_cleared_engine_holds_nothing() -> None:
    engine = blocks()
    engine.apply(stored())

    assert engine.apply(AllBlocksCleared()) == [Clear(HOLDER)]
    assert engine.apply(stored()) == [Store(HOLDER, KEYS)]
    assert engine.stats.cleared == 1


def test_counts_of_copies_do_not_outlive_a_clear() -> None:
    assert matched([stored(), stored(), AllBlocksCleared(), stored(), removed(103)]) == 2


def test_the_memory_of_what_was_cleared_is_given_back_piece_by_piece() -> None:
    engine = blocks()
    count = 50_000
    engine.apply(
        BlockStored(
            block_hashes=[i << 46 for i in range(count)],
            parent_hash=None,
            token_ids=[0] * count * SIZE,
            block_size=SIZE,
        )
    )

    assert engine.num_blocks == count
    assert engine.num_bytes() > 60 * count

    engine.forget()

    assert engine.num_blocks == 0
    assert engine.sweep(1000)

    while engine.sweep(1000):
        pass

    assert not engine.sweep(1000)


def test_hashes_of_evicted_blocks_are_forgotten() -> None:
    """Or the bridge would grow where the index may not."""
    index = MemoryIndex(max_blocks=100)
    engine = EngineBlocks(HOLDER, 1, holdings=index)
    for i in range(3000):
        event = BlockStored(
            block_hashes=[1 + (i << 50)], parent_hash=None, token_ids=[i], block_size=1
        )
        index.apply(engine.apply(event))

    assert index.num_blocks(HOLDER) == 100
    assert engine.num_blocks < 300


def test_copies_are_counted() -> None:
    engine = blocks()
    for event in (stored(), stored(2, 3), removed(103), removed(103), removed(103)):
        engine.apply(event)

    assert (engine.stats.stored, engine.stats.removed) == (4, 2)


# everything at once

paths = st.lists(st.integers(0, 2), min_size=1, max_size=4)
tiers = st.sampled_from(["GPU", "CPU"])


def hash_of(path: Sequence[int]) -> int:
    return int("9" + "".join(str(token) for token in path))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["store", "remove"]), paths, tiers), max_size=30),
    paths,
    st.sampled_from([None, None, 5]),
)
def test_a_prompt_matches_what_some_tier_has_a_copy_of(
    steps: list[tuple[str, list[int], str]], prompt: list[int], max_blocks: int | None
) -> None:
    """An engine of block size 1 that stores whole prompts and evicts any of their last blocks.
    An index with too little room never believes more."""
    index = MemoryIndex(max_blocks=max_blocks)
    engine = EngineBlocks(HOLDER, 1, holdings=index)
    copies: Counter[tuple[str, int]] = Counter()
    for step, path, tier in steps:
        hashes = [hash_of(path[: i + 1]) for i in range(len(path))]
        if step == "store":
            copies.update((tier, h) for h in hashes)
            event: Event = BlockStored(
                block_hashes=hashes,
                parent_hash=None,
                token_ids=path,
                block_size=1,
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
    expected = held.index(False) if False in held else len(held)
    keys = BlockHasher(1).keys(np.array(prompt, dtype=np.uint32))
    found = asyncio.run(index.match(keys)).blocks.get(HOLDER, 0)

    assert found == expected or (found < expected and index.evicted)
