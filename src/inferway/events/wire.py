"""An engine's KV-event bytes -> typed events. Never raises: what cannot be read is reported.

A batch is `[ts, [event, ...], data_parallel_rank]` in msgpack, or (one version) a map of these.
An event is a positional array `["BlockStored", hashes, ...]` (vLLM before #42892, SGLang) or a
map with `"type"` (since). The first byte tells which; positions and names are in `_Stored`.
Fields and positions newer than us are ignored. One bad event never drops its batch.

Hashes come as unsigned or signed integers or as bytes, by the engine's version and settings; a
hash is here always the 64 bits that vLLM publishes by default: two's complement of an integer,
the last eight bytes of bytes, big-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar, cast

import msgspec
from msgspec import Meta, Raw, Struct

from inferway_structured.decoding import UNREADABLE

MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
MAX_BLOCKS = 100_000  # in one event
SMALL_BYTES = 64 * 1024  # decoded at once: less than a millisecond

# Groups of KV caches that keep a prompt's last blocks only.
WINDOW_KINDS = ("sliding_window", "sliding_window_mla")

_MASK = (1 << 64) - 1

# What is typed


class BlockStored(Struct, frozen=True, gc=False, kw_only=True):
    """The engine now holds these blocks, each the child of the one before it."""

    block_hashes: list[int]
    parent_hash: int | None  # of the first of them; None: they start a prompt
    token_ids: list[int]  # block_size for each hash, or none: only the blocks' place changed
    block_size: int
    lora_name: str | None = None
    lora_id: int | None = None
    medium: str | None = None
    extra_keys: list[object] | None = None  # one entry per hash
    group_idx: int | None = None
    spec_kind: str | None = None
    sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(Struct, frozen=True, gc=False, kw_only=True):
    """The engine dropped one copy of each of these blocks."""

    block_hashes: list[int]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(Struct, frozen=True, gc=False):
    """The engine holds nothing any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventError(Struct, frozen=True):
    """Why a batch or an event was left out. `reason` is a label for a metric: payload_too_large,
    malformed, unknown_type, non_dense_block_span, extra_keys_mismatch."""

    reason: str
    message: str
    kind: str | None = None  # the event's type, if that could be read

    @property
    def may_remove(self) -> bool:
        """Whether it may have said that blocks are gone. An event of a type that we do not know
        is taken for one that tells more of blocks that are there."""
        return self.kind is None or self.kind in _KINDS_THAT_REMOVE


class RawBatch(Struct, frozen=True):
    """A batch whose events are for `decode_event`, for owners that decode a few at a time."""

    ts: float
    events: Sequence[Raw | _Decoded]
    rank: int | None = None  # the data-parallel rank that published it


class Batch(Struct, frozen=True):
    """A decoded batch: the events that could be read, and why the others could not."""

    ts: float
    events: list[Event]
    rank: int | None
    errors: list[EventError]


# What is on the wire

_Hash = int | Annotated[bytes, Meta(min_length=1)]
_Hashes = Annotated[list[_Hash], Meta(max_length=MAX_BLOCKS)]
_Token = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Bigram = tuple[_Token, _Token]  # (token, the next one): with EAGLE drafting
_TokenT = TypeVar("_TokenT")


class _Stored(Struct, Generic[_TokenT]):
    block_hashes: _Hashes
    parent_block_hash: _Hash | None
    token_ids: list[_TokenT]
    block_size: Annotated[int, Meta(ge=0)]
    lora_id: int | None = None
    medium: str | None = None
    # a version of SGLang has a map with "cache_salt" here
    lora_name: str | dict[str, object] | None = None
    extra_keys: list[object] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    cache_salt: str | None = None


class _Removed(Struct):
    block_hashes: _Hashes
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _Cleared(Struct):
    pass


_Decoded = _Stored[_Token] | _Removed | _Cleared
_DECODED = (_Stored, _Removed, _Cleared)  # for isinstance; a union is made anew at each call


class _StoredMap(_Stored[_TokenT], Generic[_TokenT], tag="BlockStored"):
    pass


class _StoredArray(_Stored[_TokenT], Generic[_TokenT], tag="BlockStored", array_like=True):
    pass


class _RemovedMap(_Removed, tag="BlockRemoved"):
    pass


class _RemovedArray(_Removed, tag="BlockRemoved", array_like=True):
    pass


class _ClearedMap(_Cleared, tag="AllBlocksCleared"):
    pass


class _ClearedArray(_Cleared, tag="AllBlocksCleared", array_like=True):
    pass


_DecodedMap = _StoredMap[_Token] | _RemovedMap | _ClearedMap
_DecodedArray = _StoredArray[_Token] | _RemovedArray | _ClearedArray


class _BatchMap(RawBatch, frozen=True):
    events: list[Raw]
    rank: int | None = msgspec.field(default=None, name="data_parallel_rank")


class _BatchArray(RawBatch, frozen=True, array_like=True):
    events: list[Raw]


class _SmallBatch(RawBatch, frozen=True, array_like=True):
    """What vLLM sends nearly always."""

    events: list[_DecodedMap]


_RENAMED = {
    "spec_kind": "kv_cache_spec_kind",
    "sliding_window": "kv_cache_spec_sliding_window",
}
_KINDS_THAT_REMOVE = ("BlockRemoved", "AllBlocksCleared")
_KNOWN_TYPES = ("BlockStored", *_KINDS_THAT_REMOVE)

_BATCH_ARRAY = msgspec.msgpack.Decoder(_BatchArray)
_BATCH_MAP = msgspec.msgpack.Decoder(_BatchMap)
_SMALL_BATCH = msgspec.msgpack.Decoder(_SmallBatch)
_ARRAY: msgspec.msgpack.Decoder[_DecodedArray] = msgspec.msgpack.Decoder(_DecodedArray)
_MAP: msgspec.msgpack.Decoder[_DecodedMap] = msgspec.msgpack.Decoder(_DecodedMap)
_BIGRAM_ARRAY = msgspec.msgpack.Decoder(_StoredArray[_Bigram])
_BIGRAM_MAP = msgspec.msgpack.Decoder(_StoredMap[_Bigram])


def decode_batch(payload: bytes) -> Batch:
    """Everything in `payload` that can be read; the rest is in `errors`."""
    raw = open_batch(payload)
    if isinstance(raw, EventError):
        return Batch(0.0, [], None, [raw])
    decoded = [decode_event(event, i) for i, event in enumerate(raw.events)]
    events = [event for event in decoded if not isinstance(event, EventError)]
    errors = [event for event in decoded if isinstance(event, EventError)]
    return Batch(raw.ts, events, raw.rank, errors)


def open_batch(payload: bytes) -> RawBatch | EventError:
    """The batch's frame. The events of a small one are decoded on the way, which saves going
    over their bytes twice; those of others stay bytes."""
    if len(payload) <= SMALL_BYTES:
        try:
            return _SMALL_BATCH.decode(payload)
        except UNREADABLE:
            pass  # it is of another form, or one event in it is bad
    elif len(payload) > MAX_PAYLOAD_BYTES:
        return EventError(
            "payload_too_large",
            f"batch of {len(payload)} bytes: at most {MAX_PAYLOAD_BYTES} are read",
        )
    decoder: msgspec.msgpack.Decoder[_BatchArray] | msgspec.msgpack.Decoder[_BatchMap]
    decoder = _BATCH_ARRAY if _is_array(payload) else _BATCH_MAP
    try:
        return decoder.decode(payload)
    except UNREADABLE as e:
        return EventError("malformed", f"batch: {_lower(e)}")


def decode_event(raw: Raw | bytes | _Decoded, place: int = 0) -> Event | EventError:
    """One event; `place` is its position in the batch, for the message."""
    if isinstance(raw, _DECODED):
        return _typed(raw, place)
    decoder = _ARRAY if _is_array(raw) else _MAP
    try:
        return _typed(decoder.decode(raw), place)
    except UNREADABLE as e:
        return _second_look(raw, place, e)


def normalise(event: Event) -> dict[str, object]:
    """`event` in vLLM's map form, whatever form it came in. Fields without a value are absent,
    but for the parent."""
    fields = {k: v for k, v in msgspec.structs.asdict(event).items() if v is not None}
    if isinstance(event, BlockStored):
        fields.pop("parent_hash", None)
        fields["parent_block_hash"] = event.parent_hash
        for ours, theirs in _RENAMED.items():
            if ours in fields:
                fields[theirs] = fields.pop(ours)
    return {"type": type(event).__name__, **fields}


def _is_array(raw: Raw | bytes) -> bool:
    """msgpack: 0x90-0x9f fixarray, 0xdc array 16, 0xdd array 32."""
    view = memoryview(raw)
    return len(view) > 0 and (0x90 <= view[0] <= 0x9F or view[0] in (0xDC, 0xDD))


def _second_look(raw: Raw | bytes, place: int, error: Exception) -> Event | EventError:
    """Rare shapes, tried only when the usual one has failed."""
    bigrams = _BIGRAM_ARRAY if _is_array(raw) else _BIGRAM_MAP
    try:
        return _typed(bigrams.decode(raw), place)
    except UNREADABLE:
        kind = _type_of(raw)
    if kind is not None and kind not in _KNOWN_TYPES:
        return EventError("unknown_type", f"events[{place}]: unknown type {kind[:40]!r}", kind)
    return EventError("malformed", f"events[{place}]: {_lower(error)}", kind)


def _type_of(raw: Raw | bytes) -> str | None:
    try:
        event = msgspec.msgpack.decode(raw)
    except UNREADABLE:
        return None
    if isinstance(event, dict):
        kind = event.get("type")
    else:
        kind = event[0] if isinstance(event, list) and event else None
    return kind if isinstance(kind, str) else None


def _typed(
    event: _Stored[_Token] | _Stored[_Bigram] | _Removed | _Cleared, place: int
) -> Event | EventError:
    if isinstance(event, _Stored):
        return _stored(event, place)
    if isinstance(event, _Removed):
        return BlockRemoved(
            block_hashes=_canonical(event.block_hashes),
            medium=event.medium,
            group_idx=event.group_idx,
            locality=event.locality,
        )
    return AllBlocksCleared()


def _stored(event: _Stored[int] | _Stored[_Bigram], place: int) -> BlockStored | EventError:
    num_blocks = len(event.block_hashes)
    tokens = _tokens(event.token_ids)
    if tokens and len(tokens) != num_blocks * event.block_size:
        if event.kv_cache_spec_kind not in WINDOW_KINDS:
            return EventError(
                "non_dense_block_span",
                f"events[{place}]: {len(tokens)} tokens are not {num_blocks} blocks of "
                f"{event.block_size}",
                "BlockStored",
            )
        tokens = []  # they are of blocks outside the window as well
    extra_keys = event.extra_keys
    if extra_keys is not None and len(extra_keys) != num_blocks:
        return EventError(
            "extra_keys_mismatch",
            f"events[{place}]: {len(extra_keys)} extra keys for {num_blocks} blocks",
            "BlockStored",
        )
    parent = event.parent_block_hash
    lora_name = event.lora_name
    salt: object = event.cache_salt
    if isinstance(lora_name, dict):
        metadata, lora_name = lora_name, None
        salt = salt or metadata.get("cache_salt")
    if extra_keys is None and parent is None and salt and num_blocks:
        extra_keys = [[salt], *[None] * (num_blocks - 1)]
    return BlockStored(
        block_hashes=_canonical(event.block_hashes),
        parent_hash=None if parent is None else canonical_hash(parent),
        token_ids=tokens,
        block_size=event.block_size,
        lora_name=lora_name,
        lora_id=event.lora_id,
        medium=event.medium,
        extra_keys=extra_keys,
        group_idx=event.group_idx,
        spec_kind=event.kv_cache_spec_kind,
        sliding_window=event.kv_cache_spec_sliding_window,
        locality=event.locality,
    )


def _tokens(token_ids: list[int] | list[_Bigram]) -> list[int]:
    """Of bigrams the first tokens."""
    if token_ids and isinstance(token_ids[0], tuple):
        return [first for first, _ in token_ids]
    return cast("list[int]", token_ids)


def canonical_hash(block_hash: int | bytes) -> int:
    """The 64 bits we know a block hash by; shorter bytes count as padded on the left."""
    if isinstance(block_hash, int):
        return block_hash & _MASK
    return int.from_bytes(block_hash[-8:], "big")


def _canonical(hashes: list[_Hash]) -> list[int]:
    try:
        return [block_hash & _MASK for block_hash in hashes]  # type: ignore[operator]
    except TypeError:
        return [canonical_hash(block_hash) for block_hash in hashes]


def _lower(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
