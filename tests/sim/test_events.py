"""The bytes of a batch, read by msgpack alone."""

from __future__ import annotations

import msgspec

from inferway_sim.events import CacheCleared, CacheRemoved, CacheStored, Event, encode_batch

H1, H2 = bytes(24) + b"\x00\x00\x00\x00\x00\x00\x00\x07", b"\xff" * 32
STORED = CacheStored(
    (H2,), H1, (1, 2), 2, ((("lora", "l", "/l"), ("cache_salt", "salt")),), lora_id=1, lora_name="l"
)


def decoded(event: Event, format: str = "map") -> object:
    payload = encode_batch([event], timestamp=1.5, rank=0, format=format)  # type: ignore[arg-type]
    timestamp, [found], rank = msgspec.msgpack.decode(payload)
    assert (timestamp, rank) == (1.5, 0)
    return found


def test_a_stored_block_has_the_fields_of_vllm_032() -> None:
    assert decoded(STORED) == {
        "type": "BlockStored",
        "block_hashes": [2**64 - 1],
        "parent_block_hash": 7,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": 1,
        "medium": "GPU",
        "lora_name": "l",
        "extra_keys": [["l", "salt"]],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_a_removed_block_and_a_reset_have_the_fields_of_vllm_032() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0}

    assert decoded(CacheRemoved(H1)) == removed
    assert decoded(CacheCleared()) == {"type": "AllBlocksCleared"}


def test_the_array_form_is_positional_and_begins_with_the_type() -> None:
    stored = ["BlockStored", [2**64 - 1], 7, [1, 2], 2, 1, "GPU", "l", [["l", "salt"]], 0]

    assert decoded(STORED, "array") == [*stored, "full_attention"]
    assert decoded(CacheRemoved(H1), "array") == ["BlockRemoved", [7], "GPU", 0]
    assert decoded(CacheCleared(), "array") == ["AllBlocksCleared"]
