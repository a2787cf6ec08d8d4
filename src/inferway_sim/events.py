"""KV events as vLLM writes them. Nothing here is shared with the room that reads events, so that
one mistake cannot hide in both.

Field names, order and which defaults are omitted: vLLM 0.32, distributed/kv_events.py (maps,
tagged by class name). The array form is the same struct laid flat, as vLLM wrote it before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from inferway.kv.blocks.dialects import HashExtra, published_extras, wire_hash
from inferway_sim.config import EventFormat

MEDIUM = "GPU"
# What vLLM says of a model's only KV group when all its layers attend to everything.
GROUP = 0
SPEC_KIND = "full_attention"


@dataclass(frozen=True, slots=True)
class CacheStored:
    """Blocks, a chain hanging on `parent`, that can be reused from now on."""

    hashes: tuple[bytes, ...]
    parent: bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    extra_keys: tuple[tuple[HashExtra, ...] | None, ...]  # per block, as hashed
    lora_id: int | None = None
    lora_name: str | None = None
    group: int = GROUP
    spec_kind: str = SPEC_KIND
    window: int | None = None  # tokens
    lookahead: tuple[tuple[int, ...], ...] | None = None  # per block, the tokens after it as hashed


@dataclass(frozen=True, slots=True)
class CacheRemoved:
    """A physical copy of this block is gone; another copy may still be there."""

    hash: bytes
    group: int = GROUP


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """The engine holds nothing any more."""


Event = CacheStored | CacheRemoved | CacheCleared


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """The event as a map, as vLLM writes it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[object] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class GroupBlockStored(BlockStored, tag="BlockStored", omit_defaults=True):
    """The event with what vLLM adds for groups that are not full attention, and what 0.33 adds for
    hashes that cover tokens after their block."""

    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """The event as a map, as vLLM writes it."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True):
    """The event as a map, as vLLM writes it."""


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared


def encode_batch(
    events: Iterable[Event], *, timestamp: float, rank: int, format: EventFormat
) -> bytes:
    """Return the payload of one message: `[timestamp, events, rank]` in msgpack."""
    wire: list[object] = [_to_wire(event) for event in events]
    if format == "array":
        wire = [_flat(event) for event in wire]
    return msgspec.msgpack.encode([timestamp, wire, rank])


def _to_wire(event: Event) -> WireEvent:
    if isinstance(event, CacheStored):
        stored = BlockStored(
            block_hashes=[wire_hash(block_hash) for block_hash in event.hashes],
            parent_block_hash=None if event.parent is None else wire_hash(event.parent),
            token_ids=list(event.token_ids),
            block_size=event.block_size,
            lora_id=event.lora_id,
            medium=MEDIUM,
            lora_name=event.lora_name,
            extra_keys=[published_extras(extra) for extra in event.extra_keys] or None,
            group_idx=event.group,
            kv_cache_spec_kind=event.spec_kind,
        )
        is_plain = event.window is None and event.lookahead is None
        return stored if is_plain else _of_group(event, stored)
    if isinstance(event, CacheRemoved):
        return BlockRemoved([wire_hash(event.hash)], MEDIUM, event.group)
    return AllBlocksCleared()


def _of_group(event: CacheStored, stored: BlockStored) -> GroupBlockStored:
    lookahead = event.lookahead
    return GroupBlockStored(
        **msgspec.structs.asdict(stored),
        kv_cache_spec_sliding_window=event.window,
        lookahead_token_ids=None if lookahead is None else [list(each) for each in lookahead],
    )


def _flat(event: object) -> list[object]:
    assert isinstance(event, msgspec.Struct)
    tag = type(event).__struct_config__.tag
    return [tag, *msgspec.structs.astuple(event)]
