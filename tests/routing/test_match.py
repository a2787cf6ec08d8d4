"""Prompts that are tokens already -> who holds how much of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.kv.blocks.extra_keys import request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import PromptPlaces
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.prefix_lengths import PrefixLengths
from inferway.kv.index.protocol import Layout, MatchResult, Store
from inferway.kv.index.reuse import CacheGroup, CacheLayout
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import (
    BlockKey,
    Endpoint,
    Places,
    Prompt,
    Reason,
    TokenIds,
    Tokenized,
    cut_of,
)
from inferway.openai_api.requests import ChatRequest, MessagesRequest
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.match import LONG_BLOCKS, Matched, Matcher
from inferway.scheduling.idle import idle

A, B = 0, 1
PROMPTS = [np.arange(first, first + 12, dtype=np.uint32) for first in (100, 200, 300)]


class Asked(MemoryIndex):
    """Notes of how many prompts it is asked at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.at_a_time: list[int] = []

    async def match_all(
        self,
        prompts: Sequence[Sequence[BlockKey]],
        places: Sequence[Places | None] | None = None,
    ) -> list[MatchResult]:
        self.at_a_time.append(len(prompts))
        return await super().match_all(prompts, places)


async def test_all_prompts_in_all_block_sizes_are_asked_for_at_once_and_get_what_is_theirs() -> (
    None
):
    index = Asked()
    index.apply([Store(A, BlockHasher(4).keys(PROMPTS[0]))])
    index.apply([Store(A, BlockHasher(4).keys(PROMPTS[2])[:1])])
    index.apply([Store(B, BlockHasher(2).keys(PROMPTS[1])[:5])])
    model = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "these are tokens"), (4, 2))
    matcher = Matcher(index, SpeculativeOverlay())

    found = await matcher.look_up(model, Tokenized(PROMPTS), None)

    held = {
        size: [dict(each.found.blocks) for each in items] for size, items in found.prompts.items()
    }
    assert held == {4: [{A: 3}, {}, {A: 1}], 2: [{}, {B: 5}, {}]}
    assert index.at_a_time == [6]


async def test_of_each_engine_counts_what_it_has_of_the_adapter_from_its_own_place() -> None:
    index = MemoryIndex()
    paths: dict[str | None, frozenset[int]] = {"/a": frozenset({A}), "/b": frozenset({B})}
    keys = {
        path: BlockHasher(4).keys(PROMPTS[0], request_extras("tuned", None, path)) for path in paths
    }
    index.apply([Store(A, keys["/b"]), Store(B, keys["/b"][:2])])
    index.apply([Store(A, keys["/a"][:1]), Store(B, keys["/a"])])
    nothing = NoPrompts(Reason.NO_TOKENIZER, "these are tokens")
    model = ServedModel("tuned", nothing, (4,), lora="tuned", lora_paths=paths)

    found = await Matcher(index, SpeculativeOverlay()).look_up(model, Tokenized(PROMPTS[:1]), None)

    assert dict(found.prompts[4][0].found.blocks) == {A: 1, B: 2}
    assert found.prompts[4][0].prompt.block_keys == keys["/a"]


async def test_messages_that_engines_render_otherwise_keep_no_chat_from_being_matched() -> None:
    nothing = NoPrompts(Reason.NO_TOKENIZER, "none")
    model = ServedModel("m", nothing, (4,), unfaithful_messages="in probe 1 it counts more")
    matcher = Matcher(MemoryIndex(), SpeculativeOverlay())
    said = [{"role": "user", "content": "hi"}]

    messages = await matcher.match_if_possible(model, MessagesRequest(messages=said))
    chat = await matcher.match_if_possible(model, ChatRequest(messages=said))

    assert (messages.reason, chat.reason) == (Reason.UNFAITHFUL, Reason.NO_TOKENIZER)


@pytest.mark.parametrize("salt", [None, "tenant"])
async def test_a_long_prompt_is_keyed_in_pieces_between_which_others_have_a_turn(
    salt: str | None,
) -> None:
    turns = 0

    async def breathe() -> None:
        nonlocal turns
        turns += 1

    ids = np.arange(4 * 50_000 + 3, dtype=np.uint32)
    nothing = NoPrompts(Reason.NO_TOKENIZER, "these are tokens")
    model = ServedModel("tuned", nothing, (4,), lora="tuned", lora_paths={"/a": frozenset({A})})
    matcher = Matcher(MemoryIndex(), SpeculativeOverlay(), breathe=breathe)

    found = await matcher.look_up(model, Tokenized([ids]), salt)

    extras = request_extras("tuned", salt, "/a")
    assert found.prompts[4][0].prompt.block_keys == BlockHasher(4).keys(ids, extras)
    assert turns > 50_000 / LONG_BLOCKS


FULL = CacheGroup(0, "full_attention", 4)


@pytest.mark.parametrize(
    ("groups", "shared"),
    [
        ((FULL,), 2),
        ((FULL, CacheGroup(1, "chunked_local_attention", 4, 8)), 2),
        ((FULL, CacheGroup(1, "sliding_window", 4, 8)), 0),
        ((FULL, CacheGroup(1, "mamba", 4)), 0),
    ],
    ids=["full", "local", "window", "states"],
)
def test_the_beginning_of_a_prompt_on_its_way_counts_unless_layers_keep_what_its_end_needs_alone(
    groups: tuple[CacheGroup, ...], shared: int
) -> None:
    index, overlay, hasher = MemoryIndex(), SpeculativeOverlay(), BlockHasher(4)
    index.apply([Layout(A, CacheLayout(groups))])
    other = np.concatenate([PROMPTS[0][:8], PROMPTS[1][:4]])
    overlay.add(A, hasher.keys(PROMPTS[0]))

    def believed(ids: TokenIds) -> float:
        keys = hasher.keys(ids)
        table = idle([Endpoint("e", "", A)], 4)
        Matcher(index, overlay).fill(table, {4: [Matched(Prompt(ids, keys), MatchResult({}))]})
        return table.matched_blocks.item(0)

    assert (believed(PROMPTS[0]), believed(other)) == (3, shared)


def grouped(held: Mapping[int, int]) -> PrefixLengths:
    """The same by groups."""
    return PrefixLengths(
        [
            (np.array([holder for holder in held if held[holder] == count]), count)
            for count in sorted(set(held.values()))
        ]
    )


@given(
    held=st.dictionaries(st.integers(0, 130), st.integers(1, 7)),
    lower=st.dictionaries(st.integers(0, 130), st.sampled_from([0.5, 1.5])),
    are_grouped=st.booleans(),
)
def test_each_endpoint_gets_what_its_holder_has_in_its_block_size_however_many_hold_some(
    held: dict[int, int], lower: dict[int, float], are_grouped: bool
) -> None:
    discount = {holder: less for holder, less in lower.items() if holder in held}
    table = idle([Endpoint(f"e{i}", "", 2 * i) for i in range(60)], 4)  # odd holders are gone
    table.block_sizes[10:20] = table.cuts[10:20] = 2
    prompt = Prompt(np.zeros(32, np.uint32), range(8))
    found = MatchResult(grouped(held) if are_grouped else held, discount)

    Matcher(MemoryIndex(), SpeculativeOverlay()).fill(table, {4: [Matched(prompt, found)] * 2})

    rows = [(2 * i, not 10 <= i < 20) for i in range(60)]
    blocks = [2.0 * held.get(holder, 0) if fits else 0.0 for holder, fits in rows]
    less = [2 * discount.get(holder, 0.0) if fits else 0.0 for holder, fits in rows]
    assert table.matched_blocks.tolist() == blocks
    assert table.weighted_matched_blocks.tolist() == [
        b - n for b, n in zip(blocks, less, strict=True)
    ]
    assert table.prompt_blocks.tolist() == [16.0 if fits else 0.0 for _, fits in rows]


FULL, STATES = CacheGroup(0, "full_attention", 4), CacheGroup(1, "mamba", 4)
DRAFT = CacheGroup(0, "full_attention", 4, eagle=True)


def on_the_way(groups: Sequence[CacheGroup], coming: Sequence[int], asked: Sequence[int]) -> float:
    """What counts as held of a prompt where another one is on its way."""
    hasher, index, overlay = BlockHasher(4), MemoryIndex(), SpeculativeOverlay()
    index.apply([Layout(A, CacheLayout(tuple(groups)))])
    overlay.add(A, hasher.keys(np.array(coming, np.uint32)))
    ids = np.array(asked, np.uint32)
    table = idle([Endpoint("a", "", A)], 4)

    prompt = Prompt(ids, hasher.keys(ids))
    Matcher(index, overlay).fill(table, {4: [Matched(prompt, MatchResult())]})

    return float(table.matched_blocks[0])


def test_of_a_prompt_on_its_way_state_space_layers_keep_its_end_alone() -> None:
    coming = range(17)

    assert on_the_way([FULL, STATES], coming, coming) == 4
    assert on_the_way([FULL, STATES], coming, range(9)) == 0
    assert on_the_way([FULL], coming, range(9)) == 2


def test_of_a_prompt_on_its_way_a_draft_drops_the_last_block() -> None:
    assert on_the_way([DRAFT], range(17), range(17)) == 3


async def test_a_hit_that_ends_within_a_block_counts_in_part() -> None:
    index, ids = MemoryIndex(), np.arange(10, dtype=np.uint32)
    hasher = BlockHasher(4)
    keys = hasher.keys(ids)
    within = PromptPlaces(hasher, ids, keys).key(6, 2)
    assert within is not None
    layout = CacheLayout((FULL, STATES), hash_size=2)
    index.apply([Layout(A, layout), Store(A, keys[:1]), Store(A, [within], keys[0])])
    index.apply([Store(A, [within], keys[0], group=2)])
    model = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "these are tokens"), (4,))
    matcher, table = Matcher(index, SpeculativeOverlay()), idle([Endpoint("a", "", A)], 4)

    found = await matcher.look_up(model, Tokenized([ids]), None)
    matcher.fill(table, found.prompts)

    assert found.prompts[4][0].found.tokens(A, 4) == 6
    assert table.weighted_matched_blocks.tolist() == [1.5]


async def test_look_ahead_engines_have_keys_of_their_own() -> None:
    index, ids = MemoryIndex(), np.arange(12, dtype=np.uint32)
    cut = cut_of(4, 1)
    index.apply([Store(A, BlockHasher(4, 0, 1).keys(ids)), Store(B, BlockHasher(4).keys(ids))])
    model = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "these are tokens"), (4, cut))

    found = await Matcher(index, SpeculativeOverlay()).look_up(model, Tokenized([ids]), None)

    held = {of: dict(items[0].found.blocks) for of, items in found.prompts.items()}
    assert held == {4: {B: 3}, cut: {A: 2}}
