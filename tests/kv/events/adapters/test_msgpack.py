"""vLLM's and SGLang's forms in; typed events or a reason out; never an exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inferway.kv.events.adapters import vllm
from inferway.kv.events.adapters.sglang import open_batch
from inferway.kv.events.adapters.vllm import normalise
from inferway.kv.events.event import (
    MAX_BLOCKS,
    MAX_PAYLOAD_BYTES,
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    packed,
)

ARRAY: list[Any] = [
    "BlockStored",
    [11, 12],
    10,
    [1, 2, 3, 4],
    2,
    None,
    "GPU",
    "alice",
    [["alice", "salt"], ["alice"]],
    1,
    "full_attention",
    None,
]
MAP: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "alice",
    "extra_keys": [["alice", "salt"], ["alice"]],
    "group_idx": 1,
    "kv_cache_spec_kind": "full_attention",
}
EVENT = BlockStored(
    block_hashes=[11, 12],
    parent_hash=10,
    token_ids=packed([1, 2, 3, 4]),
    block_size=2,
    medium="GPU",
    lora_name="alice",
    extra_keys=[["alice", "salt"], ["alice"]],
    group_idx=1,
    spec_kind="full_attention",
)


def batch(*events: object, ts: float = 1.5, rank: int | None = 0) -> Batch:
    return open_batch(msgspec.msgpack.encode([ts, list(events), rank])).decoded()


def only(event: object) -> object:
    decoded = batch(event)

    assert decoded.errors == []
    assert len(decoded.events) == 1
    return decoded.events[0]


def reason(event: object) -> str:
    decoded = batch(event)

    assert decoded.events == []
    assert len(decoded.errors) == 1
    return decoded.errors[0].reason


def stored(**fields: object) -> dict[str, object]:
    return {**MAP, **fields}


# batches


def test_a_batch_says_when_and_by_which_rank() -> None:
    decoded = batch(ARRAY, ts=2.25, rank=3)

    assert (decoded.ts, decoded.rank) == (2.25, 3)


def test_a_batch_may_end_before_the_rank_or_go_on_after_it() -> None:
    short = open_batch(msgspec.msgpack.encode([1, [ARRAY]])).decoded()
    long = open_batch(msgspec.msgpack.encode([1, [ARRAY], 0, "newer", {}])).decoded()

    assert short == Batch(1.0, [EVENT])
    assert long == Batch(1.0, [EVENT], 0)


def test_a_batch_may_be_a_map() -> None:
    payload = msgspec.msgpack.encode({"ts": 1.0, "events": [MAP], "newer": 1})

    assert open_batch(payload).decoded() == Batch(1.0, [EVENT])


def test_a_map_names_its_rank_as_vllm_does() -> None:
    payload = msgspec.msgpack.encode({"ts": 1.0, "events": [], "data_parallel_rank": 2})

    assert open_batch(payload).decoded().rank == 2


# both forms


def test_arrays_and_maps_say_the_same() -> None:
    assert only(ARRAY) == only(MAP) == EVENT


@pytest.mark.parametrize("length", range(5, len(ARRAY)))
def test_trailing_positions_may_be_absent(length: int) -> None:
    """Each version of vLLM added some."""
    event = only(ARRAY[:length])

    assert isinstance(event, BlockStored)
    assert event.block_hashes == [11, 12]


def test_positions_and_fields_newer_than_us_are_ignored() -> None:
    assert only([*ARRAY, None, "owner", "session", {"newer": 1}]) == EVENT
    assert only({**MAP, "ownership": "x", "session_id": "y", "newer": [1]}) == EVENT


def test_removals_come_in_both_forms() -> None:
    removed = BlockRemoved(block_hashes=[1, 2], medium="CPU", group_idx=3)

    assert only(["BlockRemoved", [1, 2], "CPU", 3]) == removed
    assert (
        only({"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "CPU", "group_idx": 3})
        == removed
    )


def test_clearing_comes_in_both_forms() -> None:
    assert only(["AllBlocksCleared"]) == only({"type": "AllBlocksCleared"}) == AllBlocksCleared()


def test_where_a_block_is_stored_is_kept() -> None:
    event = only(stored(locality="REMOTE"))

    assert isinstance(event, BlockStored)
    assert event.locality == "REMOTE"


# hashes


@pytest.mark.parametrize(
    ("on_wire", "canonical"),
    [
        (7, 7),
        (2**64 - 1, 2**64 - 1),
        (-1, 2**64 - 1),
        (-(2**63), 2**63),
        (bytes(range(32)), int.from_bytes(bytes(range(24, 32)), "big")),
        (b"\x01\x02", 0x0102),
    ],
)
def test_integers_and_bytes_are_the_same_64_bits(on_wire: int | bytes, canonical: int) -> None:
    event = only(["BlockRemoved", [on_wire]])

    assert event == BlockRemoved(block_hashes=[canonical])


def test_a_parent_is_a_hash_like_the_others() -> None:
    event = only(stored(parent_block_hash=b"\xff" * 32))

    assert isinstance(event, BlockStored)
    assert event.parent_hash == 2**64 - 1


@pytest.mark.parametrize("num_events", [1, 2, 15, 16, 40])
@pytest.mark.parametrize("as_sent", [int, lambda h: h - 2**64, lambda h: h.to_bytes(32, "big")])
@pytest.mark.parametrize("num_blocks", [1, 2, 16])
def test_batches_of_any_length_read_the_same_with_any_hashes(
    num_events: int, as_sent: Callable[[int], int | bytes], num_blocks: int
) -> None:
    """What the first of them looks like says which form is tried first, and nothing else."""
    hashes = list(range(2**64 - num_blocks, 2**64))
    sent = list(map(as_sent, hashes))
    tokens = list(range(2 * num_blocks))

    decoded = batch(
        *[stored(block_hashes=sent, token_ids=tokens, extra_keys=None) for _ in range(num_events)]
    )

    expected = replace(EVENT, block_hashes=hashes, token_ids=packed(tokens), extra_keys=None)
    assert decoded.items == [expected] * num_events


# other engines, other shapes


def test_an_older_sglang_event_ends_at_the_adapter() -> None:
    event = only(["BlockStored", [5], None, [1, 2], 2, None])

    assert event == BlockStored(
        block_hashes=[5], parent_hash=None, token_ids=packed([1, 2]), block_size=2
    )


def test_a_map_in_the_place_of_the_adapters_name_carries_the_salt() -> None:
    """A version of SGLang (#37271)."""
    event = only(["BlockStored", [5], None, [1, 2], 2, None, "GPU", {"cache_salt": "s"}])

    assert isinstance(event, BlockStored)
    assert event.lora_name is None
    assert event.extra_keys == [["s"]]


def test_of_bigrams_the_first_tokens_count() -> None:
    event = only(stored(token_ids=[(1, 2), (2, 3), (3, 4), (4, 5)]))

    assert event == EVENT


def test_vllms_own_adapter_reads_no_departures_of_sglang() -> None:
    bigrams = stored(token_ids=[(1, 2), (2, 3), (3, 4), (4, 5)])

    [error] = vllm.open_batch(msgspec.msgpack.encode([1.0, [bigrams], 0])).decoded().errors

    assert (error.reason, error.may_remove) == ("malformed", False)


def test_what_tensorrt_llm_publishes_is_in_vllms_form() -> None:
    """As its ZmqEventPublisher encodes it: signed hashes, and newer fields of its own."""
    published = [
        {
            "type": "BlockStored",
            "block_hashes": [-1, 7],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "mm_keys": [[], []],
        },
        {"type": "BlockRemoved", "block_hashes": [-1], "medium": "GPU"},
        {"type": "AllBlocksCleared"},
    ]

    decoded = batch(*published)

    assert decoded.items == [
        BlockStored(
            block_hashes=[2**64 - 1, 7],
            parent_hash=None,
            token_ids=packed([1, 2, 3, 4]),
            block_size=2,
            medium="GPU",
        ),
        BlockRemoved(block_hashes=[2**64 - 1], medium="GPU"),
        AllBlocksCleared(),
    ]


def test_offloaded_blocks_need_no_tokens() -> None:
    event = only(stored(token_ids=[], block_size=0, extra_keys=None))

    assert isinstance(event, BlockStored)
    assert len(event.token_ids) == 0


# what cannot be read


def test_one_bad_event_never_drops_its_batch() -> None:
    decoded = batch(ARRAY, ["BlockStored", "?"], 5, ["BlockRemoved", [1]], None, MAP)

    assert decoded.events == [EVENT, BlockRemoved(block_hashes=[1]), EVENT]
    assert [error.reason for error in decoded.errors] == ["malformed"] * 3


def test_a_message_names_the_place() -> None:
    decoded = batch(ARRAY, stored(block_hashes=["x"]))

    assert decoded.errors[0].message == (
        "events[1]: expected `int | bytes`, got `str` - at `$.block_hashes[0]`"
    )


def test_a_token_that_cannot_be_leaves_out_its_event_alone() -> None:
    decoded = batch(stored(extra_keys=None), stored(token_ids=[1, 2, 2**32, 4]), MAP)

    assert decoded.events == [replace(EVENT, extra_keys=None), EVENT]
    assert decoded.errors[0].message == (
        "events[1]: expected `int` <= 4294967295 - at `$.token_ids[2]`"
    )


@pytest.mark.parametrize("event", [["BlockPinned", 1], {"type": "BlockPinned", "x": 1}])
def test_types_newer_than_us_are_told_from_garbage(event: object) -> None:
    assert reason(event) == "unknown_type"


@pytest.mark.parametrize("tokens", [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2]])
def test_tokens_that_are_not_those_of_whole_blocks_are_refused(tokens: list[int]) -> None:
    assert reason(stored(token_ids=tokens)) == "non_dense_block_span"


def test_tokens_may_be_of_more_blocks_than_are_stored() -> None:
    """vLLM names the tokens of a whole step, and skips blocks of windows and checkpoints."""
    [event] = batch(stored(token_ids=[1, 2, 3, 4, 5, 6], kv_cache_spec_kind="mamba")).events

    assert isinstance(event, BlockStored)
    assert list(event.token_ids) == [1, 2, 3, 4, 5, 6]
    assert len(event.block_hashes) == 2


def test_look_ahead_tokens_are_those_of_each_block() -> None:
    [event] = batch(stored(lookahead_token_ids=[[7], [8]])).events

    assert isinstance(event, BlockStored)
    assert event.lookahead_token_ids == [[7], [8]]
    assert reason(stored(lookahead_token_ids=[[7]])) == "lookahead_mismatch"
    assert reason(stored(lookahead_token_ids=[[7], [8, 9]])) == "lookahead_mismatch"


def test_extra_keys_belong_to_one_block_each() -> None:
    assert reason(stored(extra_keys=[None])) == "extra_keys_mismatch"


@pytest.mark.parametrize(
    "fields",
    [
        {"block_size": -1},
        {"token_ids": [-1, 2, 3, 4]},
        {"token_ids": [2**32, 2, 3, 4]},
        {"token_ids": [(1, 2), 3, 4, 5]},
        {"block_hashes": [b"", 1]},
        {"block_hashes": None},
        {"block_hashes": [1.5, 2]},
        {"parent_block_hash": "x"},
    ],
)
def test_values_that_cannot_be_are_refused(fields: dict[str, object]) -> None:
    assert reason(stored(**fields)) == "malformed"


def test_an_event_of_too_many_blocks_is_refused() -> None:
    assert reason(["BlockRemoved", list(range(MAX_BLOCKS + 1))]) == "malformed"
    assert isinstance(only(["BlockRemoved", list(range(MAX_BLOCKS))]), BlockRemoved)


def test_a_payload_too_large_is_not_looked_at() -> None:
    decoded = open_batch(bytes(MAX_PAYLOAD_BYTES + 1)).decoded()

    assert [error.reason for error in decoded.errors] == ["payload_too_large"]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",
        b"\x91" * 100_000,  # nested too deep
        b"\x93\x01\x91" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff\x01",  # says that it has 4 billion items
        b"\x92\x01\xdd\xff\xff\xff\xff",
        b"\x92\x01\x91\x81\xa4type\xa2\xff\xff",  # not utf-8
    ],
)
def test_hostile_bytes_are_reported(payload: bytes) -> None:
    decoded = open_batch(payload).decoded()

    assert decoded.events == []
    assert [error.reason for error in decoded.errors] == ["malformed"]


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(payload: bytes) -> None:
    assert isinstance(open_batch(payload).decoded(), Batch)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)
kinds = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockPinned"])
almost_arrays = st.tuples(kinds, st.lists(values, max_size=12)).map(lambda e: [e[0], *e[1]])
almost_maps = st.dictionaries(st.sampled_from(list(MAP)), values).flatmap(
    lambda fields: kinds.map(lambda kind: {**MAP, **fields, "type": kind})
)


@given(st.lists(values | almost_arrays | almost_maps, max_size=5))
def test_each_event_is_either_read_or_reported(events: list[object]) -> None:
    decoded = batch(*events)

    assert len(decoded.events) + len(decoded.errors) == len(events)


@given(almost_arrays | almost_maps)
def test_what_was_read_has_values_that_can_be(event: object) -> None:
    for decoded in batch(event).events:
        if isinstance(decoded, BlockStored):
            hashes = decoded.block_hashes

            assert all(0 <= h < 2**64 for h in hashes)
            assert len(decoded.token_ids) in (0, len(hashes) * decoded.block_size)
            assert all(0 <= token < 2**32 for token in decoded.token_ids)


# out again


@pytest.mark.parametrize(
    "event",
    [
        ARRAY,
        MAP,
        ["BlockStored", [-5], None, [(1, 2), (2, 3)], 2, 4],
        stored(kv_cache_spec_sliding_window=7, locality="LOCAL"),
        ["BlockRemoved", [b"12345678"], "CPU"],
        ["AllBlocksCleared"],
    ],
)
def test_normalised_events_read_as_the_same_event(event: object) -> None:
    original = only(event)
    assert isinstance(original, BlockStored | BlockRemoved | AllBlocksCleared)

    assert only(normalise(original)) == original


def test_a_normalised_event_is_a_plain_map_in_vllms_words() -> None:
    event = only(["BlockStored", [b"\x01" * 32], None, [1, 2], 2, None])
    assert isinstance(event, BlockStored)

    assert normalise(event) == {
        "type": "BlockStored",
        "block_hashes": [0x0101010101010101],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
    }
