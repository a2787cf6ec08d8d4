"""A request and the engine's event about it come to the same extras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.kv.blocks.extra_keys import BlockExtras, encode, event_extras, request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.model import MediaSpan

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden/blocks/vllm_hashes.json").read_text()
)


def published(case: str) -> list[object]:
    """`extra_keys` of an event, by vLLM's own function."""
    entries: list[object] = GOLDEN["runs"][0]["cases"][case]["event_extras"]
    return entries


def test_tokens_alone_have_no_extras() -> None:
    assert request_extras() is None
    assert event_extras(None, None) is None
    assert event_extras(None, [None, None]) is None
    assert event_extras(None, published("plain")) is None


def test_an_adapter_is_on_every_block_once() -> None:
    request = request_extras(lora="alice")

    assert request is not None
    assert event_extras("alice", published("lora")) == request


def test_a_salt_is_on_block_0_of_both_sides() -> None:
    request = request_extras(cache_salt="tenant ü")

    assert request is not None
    assert event_extras(None, published("salt")) == request


def test_adapter_and_salt_together() -> None:
    assert event_extras("alice", published("lora_salt")) == request_extras("alice", "s")


def test_an_adapter_is_known_from_engines_that_publish_no_extra_keys() -> None:
    assert event_extras("alice", None) == request_extras("alice")


def test_only_the_first_entry_that_is_the_adapter_is_the_adapter() -> None:
    """A tenant whose salt is the adapter's name stays apart from one without a salt."""
    assert event_extras("alice", [["alice", "alice"]]) == request_extras("alice", "alice")
    assert request_extras("alice", "alice") != request_extras("alice")


def test_a_picture_counts_with_its_place_in_the_block() -> None:
    extras = event_extras(None, [[["pic", 4]], [["pic", -12]]])

    assert extras == BlockExtras((), {0: (("mm", "pic", 4),), 1: (("mm", "pic", -12),)})


PICTURES = [MediaSpan("a" * 64, 4, 6), MediaSpan("b" * 64, 12, 20)]


def test_a_requests_pictures_are_in_all_blocks_that_their_tokens_touch() -> None:
    request = request_extras("alice", "s") or BlockExtras()

    assert event_extras("alice", published("pictures")) == request.with_media(PICTURES, 16, 0)


@pytest.mark.parametrize(
    ("lookahead", "blocks_of_a", "blocks_of_b"),
    [
        (2, {1: 2}, {2: 8, 3: -8}),
        (3, {0: 18, 1: 2}, {2: 8, 3: -8}),
        (9, {0: 18, 1: 2}, {1: 24, 2: 8, 3: -8}),
    ],
)
def test_a_picture_behind_a_block_counts_as_far_as_the_blocks_hash_reaches(
    lookahead: int, blocks_of_a: dict[int, int], blocks_of_b: dict[int, int]
) -> None:
    """By vLLM 0.33.0's generate_lookahead_block_hash_extra_keys."""
    media = [MediaSpan("a", 18, 3), MediaSpan("b", 40, 24)]

    extras = BlockExtras().with_media(media, 16, lookahead)

    found = {name: {i: at for i, items in extras.at.items() for _, of, at in items if of == name}
             for name in "ab"}  # fmt: skip
    assert found == {"a": blocks_of_a, "b": blocks_of_b}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=5),
    st.booleans(),
    st.integers(0, 12),
    st.integers(0, 5),
)
def test_extras_of_a_piece_of_a_prompt_are_those_of_the_whole(
    gaps: list[tuple[int, int]], has_salt: bool, start: int, lookahead: int
) -> None:
    media, end = [], 0
    for number, (gap, length) in enumerate(gaps):
        media.append(MediaSpan(str(number), end + gap, length))
        end += gap + length
    size, ids = 4, np.arange(80, dtype=np.uint32)
    salted = request_extras(None, "s" if has_salt else None, None) or BlockExtras()
    extras = salted.with_media(media, size, lookahead)
    hasher = BlockHasher(size, lookahead=lookahead)

    keys = hasher.keys(ids, extras)
    first = hasher.keys(ids[: start * size + lookahead], extras)
    rest = hasher.keys(ids[start * size :], extras.behind(start), first[-1] if first else None)

    assert first + rest == keys


def test_an_adapter_known_by_number_only_is_not_the_base_model() -> None:
    assert event_extras(None, None, lora_id=3) not in (None, event_extras(None, None, lora_id=4))


@pytest.mark.parametrize("entry", [5, "text", 1.5, {"a": 1}])
def test_entries_of_a_strange_shape_do_no_harm(entry: object) -> None:
    assert event_extras(None, [entry]) is None


@pytest.mark.parametrize("value", [7, None, [1, 2, 3], ["id", "x"], {"a": 1}])
def test_values_of_a_strange_shape_still_tell_blocks_apart(value: object) -> None:
    assert event_extras(None, [[value]]) is not None


items = st.lists(st.tuples(st.sampled_from(["key", "mm"]), st.text(), st.integers()), max_size=4)


@given(items, items)
def test_different_items_never_encode_alike(a: list[Any], b: list[Any]) -> None:
    assert (encode(tuple(a)) == encode(tuple(b))) == (a == b)


def test_an_adapter_from_elsewhere_is_another_one() -> None:
    request = request_extras("alice", "s", "/a")

    assert request == event_extras("alice", published("lora_salt"), lora_path="/a")
    assert request not in (request_extras("alice", "s"), request_extras("alice", "s", "/b"))


def test_without_an_adapter_there_is_no_path() -> None:
    assert request_extras(cache_salt="s", lora_path="/a") == request_extras(cache_salt="s")
    assert event_extras(None, None, lora_path="/a") is None
