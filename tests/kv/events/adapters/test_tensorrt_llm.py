"""TensorRT-LLM's JSON in, as its KVCacheEventSerializer writes it; typed events out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.adapters.tensorrt_llm import TensorRTEvents, split_answer
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import MAX_PAYLOAD_BYTES, BlockRemoved, BlockStored, packed
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import CPU, GPU

SIZE = 4
FIRST, SECOND = 10385249491213107555, 6338905736856950139  # unsigned, of 64 bits

CREATED = {
    "event_id": 0,
    "data": {"type": "created", "num_blocks_per_cache_level": [101230, 2231]},
    "window_size": 256,
}


def block(block_hash: int | str, *tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "type": "stored_block",
        "block_hash": block_hash,
        "tokens": [
            {"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in tokens
        ],
        "cache_level": 0,
        "priority": 35,
        "mm_keys": [],
        **fields,
    }


def stored(parent: int | str | None, *blocks: object, **fields: Any) -> dict[str, Any]:
    data = {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}
    return {"event_id": 1, "data": data, "window_size": 256, **fields}


def removed(*hashes: int | str) -> dict[str, Any]:
    return {
        "event_id": 2,
        "data": {"type": "removed", "block_hashes": list(hashes)},
        "window_size": 256,
    }


def updated(block_hash: int, old: int, new: int) -> dict[str, Any]:
    diff = {"type": "event_diff", "new_value": new, "old_value": old}
    data = {"type": "updated", "block_hash": block_hash, "cache_level": diff, "priority": None}
    return {"event_id": 3, "data": data, "window_size": 256}


# A prompt of two blocks and a half.
TWO_BLOCKS = stored(None, block(FIRST, 1, 2, 3, 4), block(SECOND, 5, 6, 7, 8), block(7, 9, 10))


def read(*events: object, size: int = SIZE) -> list[object]:
    adapter = TensorRTEvents(size)
    return [
        item
        for event in events
        for item in adapter.open_batch(msgspec.json.encode(event)).decoded().items
    ]


def reasons(*events: object, size: int = SIZE) -> list[str]:
    return [getattr(item, "reason", "read") for item in read(*events, size=size)]


def test_stored_blocks_are_a_chain_that_ends_before_one_that_is_not_full() -> None:
    assert read(CREATED, TWO_BLOCKS) == [
        BlockStored(
            block_hashes=[FIRST, SECOND],
            parent_hash=None,
            token_ids=packed([1, 2, 3, 4, 5, 6, 7, 8]),
            block_size=SIZE,
            medium="GPU",
        )
    ]


def test_a_long_chain_comes_in_pieces_that_follow_each_other() -> None:
    blocks = [block(i, *range(SIZE)) for i in range(1, 151)]

    pieces = read(stored(500, *blocks))

    assert all(isinstance(piece, BlockStored) for piece in pieces)
    assert [(piece.parent_hash, len(piece.block_hashes)) for piece in pieces] == [  # type: ignore[attr-defined]
        (500, 64),
        (64, 64),
        (128, 22),
    ]


def test_hashes_may_be_negative_or_hexadecimal() -> None:
    digest = "00" * 24 + "00000000000000ff"

    [event] = read(stored(-1, block(digest, 1, 2, 3, 4)))

    assert isinstance(event, BlockStored)
    assert (event.parent_hash, event.block_hashes) == (2**64 - 1, [255])


def test_a_removed_block_is_removed_from_all_levels() -> None:
    assert read(removed(FIRST, 7)) == [
        BlockRemoved(block_hashes=[FIRST, 7], medium=medium) for medium in ("GPU", "CPU", "STORAGE")
    ]


def test_a_change_of_priority_changes_nothing() -> None:
    data = {"type": "updated", "block_hash": 1, "cache_level": None, "priority": None}

    assert read({"event_id": 3, "data": data}) == []


def test_what_is_hashed_beside_the_tokens_sets_blocks_apart() -> None:
    picture = {"type": "mm_key", "hash": "0102", "start_offset": 3}
    [event] = read(
        stored(
            None,
            block(1, 1, 2, 3, 4, cache_salt="tenant"),
            block(2, 5, 6, 7, 8, mm_keys=[picture], cache_salt="tenant"),
        )
    )

    assert isinstance(event, BlockStored)
    assert event.extra_keys == [["tenant"], [["0102", 3]]]


def test_an_adapter_is_named_where_the_engine_names_it() -> None:
    event = stored(None, block(1, 1, 2, 3, 4))
    event["data"]["lora_name"] = "alice"

    [read_event] = read(event)

    assert isinstance(read_event, BlockStored)
    assert read_event.lora_name == "alice"


def test_blocks_are_matched_moved_and_removed() -> None:
    """The engine's events in, what the index answers for the prompt out."""
    index = MemoryIndex()
    blocks = EngineBlocks(0, SIZE, holdings=index)
    keys = BlockHasher(SIZE).keys(np.arange(1, 9, dtype=np.uint32))
    tiers = []

    for event in (TWO_BLOCKS, updated(SECOND, 0, 1), removed(SECOND), removed(FIRST, 7)):
        for item in read(event):
            index.apply(blocks.apply(item))  # type: ignore[arg-type]
        found = index.match_now(keys)
        tiers.append((found.within(0, GPU), found.within(0, CPU)))

    assert tiers == [(2, 2), (1, 2), (1, 1), (0, 0)]


# several attention windows


def test_events_of_smaller_windows_are_left_out() -> None:
    small = stored(None, block(3, 1, 2, 3, 4), window_size=128)

    assert read(CREATED, small) == []


def test_a_larger_window_that_comes_late_ends_what_was_believed() -> None:
    large = stored(None, block(3, 1, 2, 3, 4), event_id=2, window_size=1024)

    assert reasons(TWO_BLOCKS, large) == ["read", "window_size", "read"]


def test_an_engine_that_has_restarted_may_have_smaller_windows() -> None:
    smaller = stored(None, block(3, 1, 2, 3, 4), event_id=0, window_size=128)

    assert reasons(TWO_BLOCKS, smaller) == ["read", "read"]


def test_before_blocks_are_stored_a_larger_window_costs_nothing() -> None:
    large = stored(None, block(3, 1, 2, 3, 4), window_size=1024)

    assert reasons(CREATED, large) == ["read"]


# what cannot be read


def test_blocks_of_another_size_than_given_are_reported() -> None:
    assert reasons(TWO_BLOCKS, size=8) == ["non_dense_block_span"]
    assert reasons(TWO_BLOCKS, size=2) == ["non_dense_block_span"]


def test_a_bad_block_ends_its_event() -> None:
    event = stored(None, block(1, 1, 2, 3, 4), block(2, 5, 6, 7, -8), block(3, 1, 2, 3, 4))

    assert reasons(event) == ["malformed", "read"]


@pytest.mark.parametrize(
    ("event", "reason", "may_remove"),
    [
        ({"event_id": 1, "data": {"type": "pinned"}}, "unknown_type", False),
        ({"event_id": 1, "data": {"type": "removed"}}, "malformed", True),
        ({"event_id": 1, "data": {"type": "stored"}}, "malformed", False),
        ({"event_id": 1}, "malformed", True),
        (5, "malformed", True),
    ],
)
def test_what_cannot_be_read_is_reported(event: object, reason: str, may_remove: bool) -> None:
    [error] = TensorRTEvents(SIZE).open_batch(msgspec.json.encode(event)).decoded().errors

    assert (error.reason, error.may_remove) == (reason, may_remove)


def test_a_payload_too_large_is_not_looked_at() -> None:
    batch = TensorRTEvents(SIZE).open_batch(bytes(MAX_PAYLOAD_BYTES + 1)).decoded()

    assert [error.reason for error in batch.errors] == ["payload_too_large"]


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(payload: bytes) -> None:
    assert TensorRTEvents(SIZE).open_batch(payload).decoded().events == []


def test_an_answer_is_split_into_numbered_events() -> None:
    rank = {**TWO_BLOCKS, "attention_dp_rank": 1}

    events = list(split_answer(msgspec.json.encode([CREATED, rank])))

    assert [(event.event_id, event.attention_dp_rank) for event in events] == [(0, None), (1, 1)]
    assert msgspec.json.decode(events[1].payload) == rank


@pytest.mark.parametrize("body", [b"", b"{}", b"[5]", b'[{"event_id": -1}]', b"[\xff]"])
def test_an_answer_that_is_no_list_of_events_is_refused(body: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        list(split_answer(body))
