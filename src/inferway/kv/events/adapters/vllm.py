"""vLLM's form: msgpack over ZMQ. TensorRT-LLM's ZMQ publisher has it as well.

A batch is `[ts, [event, ...], data_parallel_rank]`, or (one version) a map of these. An event is a
positional array `["BlockStored", hashes, ...]` (before vLLM #42892) or a map with `"type"` (since).
The first byte tells which; positions and names are in `_Stored`. Fields and positions newer than us
are ignored. One bad event never drops its batch.

Hashes come as unsigned or signed integers or as bytes, by the engine's version and settings
(`event.canonical_hash`). Maps with unsigned ones are `event`'s own classes, and need no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, repeat
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import force_setattr, replace

from inferway.kv.events.event import (
    MAX_BLOCKS,
    MAX_LOOKAHEAD,
    SMALL_BYTES,
    WIRE_NAMES,
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    Event,
    EventError,
    NumTokens,
    OpenBatch,
    canonical_hash,
    decode_fault,
    packed,
    too_large,
)
from inferway_structured.decoding import UNREADABLE

_MASK = (1 << 64) - 1

# Reads an event that is not in vLLM's form: its bytes and its position in the batch -> the event;
# None if it cannot be read either.
OtherForm = Callable[[Raw, int], Event | EventError | None]

# What is on the wire

_Hash = int | Annotated[bytes, Meta(min_length=1)]
_Hashes = Annotated[list[_Hash], Meta(max_length=MAX_BLOCKS)]
_Token = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class StoredFields(Struct):
    """The fields of a BlockStored, in their order in arrays."""

    block_hashes: _Hashes
    parent_block_hash: _Hash | None
    token_ids: list[_Token]
    block_size: NumTokens
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
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


_Decoded = StoredFields | _Removed | _Cleared
_DECODED = (StoredFields, _Removed, _Cleared)  # for isinstance; a union is made anew at each call


class StoredMap(StoredFields, tag="BlockStored"):
    """A BlockStored as newer engines send it."""

    lookahead_token_ids: list[list[_Token]] | None = None


class _StoredArray(StoredFields, tag="BlockStored", array_like=True):
    pass


class _RemovedMap(_Removed, tag="BlockRemoved"):
    pass


class _RemovedArray(_Removed, tag="BlockRemoved", array_like=True):
    pass


class _ClearedMap(_Cleared, tag="AllBlocksCleared"):
    pass


class _ClearedArray(_Cleared, tag="AllBlocksCleared", array_like=True):
    pass


_DecodedMap = StoredMap | _RemovedMap | _ClearedMap
_DecodedArray = _StoredArray | _RemovedArray | _ClearedArray


class _RawBatch(Struct, frozen=True):
    ts: float
    events: Sequence[Raw | _Decoded]
    rank: int | None = None


class _BatchMap(_RawBatch, frozen=True):
    events: list[Raw]
    rank: int | None = msgspec.field(default=None, name="data_parallel_rank")


class _BatchArray(_RawBatch, frozen=True, array_like=True):
    events: list[Raw]


class _BatchOfMaps(_RawBatch, frozen=True, array_like=True):
    events: list[_DecodedMap]


class _BatchOfArrays(_RawBatch, frozen=True, array_like=True):
    events: list[_DecodedArray]


class _PlainBatch(Struct, frozen=True, array_like=True):
    """The form of nearly all batches that vLLM sends."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    rank: int | None = None


_KINDS_THAT_REMOVE = ("BlockRemoved", "AllBlocksCleared")
_KNOWN_TYPES = ("BlockStored", *_KINDS_THAT_REMOVE)

_FIRST_EVENT, _FIRST_HASH = 11, 43  # in a batch as vLLM encodes it: where their first bytes are

_BATCH_ARRAY = msgspec.msgpack.Decoder(_BatchArray)
_BATCH_MAP = msgspec.msgpack.Decoder(_BatchMap)
_PLAIN_BATCH = msgspec.msgpack.Decoder(_PlainBatch)
_SMALL_BATCHES: tuple[
    msgspec.msgpack.Decoder[_BatchOfArrays], msgspec.msgpack.Decoder[_BatchOfMaps]
] = (msgspec.msgpack.Decoder(_BatchOfArrays), msgspec.msgpack.Decoder(_BatchOfMaps))
_ARRAY: msgspec.msgpack.Decoder[_DecodedArray] = msgspec.msgpack.Decoder(_DecodedArray)
_MAP: msgspec.msgpack.Decoder[_DecodedMap] = msgspec.msgpack.Decoder(_DecodedMap)


def open_batch(payload: bytes, other_form: OtherForm | None = None) -> Batch | OpenBatch:
    """Return the batch in `payload`. The events of a small one are decoded at once, which saves
    going over their bytes twice. `other_form` is asked for events that are not in vLLM's form."""
    if len(payload) <= SMALL_BYTES and _may_be_plain(payload):
        try:
            return _plain(_PLAIN_BATCH.decode(payload))
        except (OverflowError, *UNREADABLE):
            pass  # it is of another form, or one event in it is bad
    raw = _open(payload)
    if isinstance(raw, EventError):
        return OpenBatch(0.0, [raw])
    decoded = map(_decode_event, raw.events, count(), repeat(other_form))
    return OpenBatch(raw.ts, decoded, raw.rank)


def _plain(batch: _PlainBatch) -> Batch:
    items: list[Event | EventError] = [*batch.events]
    for path, event in enumerate(batch.events):
        if type(event) is BlockStored:
            items[path] = _checked(event, path)
    return Batch(batch.ts, items, batch.rank)


def _may_be_plain(payload: bytes) -> bool:
    """Return False if the first event is an array, or its first hash bytes or negative. To try in
    vain takes as long as to read some blocks, so this is only looked at where vLLM has it in a
    batch of fewer than 16 events, for an event of fewer than 16 blocks."""
    if len(payload) <= _FIRST_HASH:
        return True
    return payload[_FIRST_EVENT] <= 0x8F and payload[_FIRST_HASH] not in (0xC4, 0xD3)


def _open(payload: bytes) -> _RawBatch | EventError:
    if len(payload) <= SMALL_BYTES:
        # from 16 events on, the head of their array is longer by two bytes
        first = payload[13:14] if payload[10:11] == b"\xdc" else payload[11:12]
        is_map = b"\x80" <= first <= b"\x8f"
        for small in _SMALL_BATCHES[::-1] if is_map else _SMALL_BATCHES:
            with suppress(*UNREADABLE):
                return small.decode(payload)
    elif (error := too_large(payload)) is not None:
        return error
    decoder: msgspec.msgpack.Decoder[_BatchArray] | msgspec.msgpack.Decoder[_BatchMap]
    decoder = _BATCH_ARRAY if _is_array(payload) else _BATCH_MAP
    try:
        return decoder.decode(payload)
    except UNREADABLE as e:
        return EventError("malformed", f"batch: {decode_fault(e)}")


def _decode_event(
    raw: Raw | _Decoded, path: int, other_form: OtherForm | None
) -> Event | EventError:
    """`path` is the event's position in the batch, for the message."""
    if isinstance(raw, _DECODED):
        return typed(raw, path)
    decoder = _ARRAY if _is_array(raw) else _MAP
    try:
        return typed(decoder.decode(raw), path)
    except UNREADABLE as e:
        other = None if other_form is None else other_form(raw, path)
        return _unreadable(raw, path, e) if other is None else other


# Fields known of events in maps; the last four say nothing of a block's hash or place.
_KNOWN_FIELDS = {
    *("type", *StoredMap.__struct_fields__, *_Removed.__struct_fields__),
    *("ownership", "session_id", "metadata", "storage_tier"),
}


def unknown_fields(payload: bytes) -> Sequence[str]:
    """Return the names of fields that events in `payload` have, in vLLM's form, and that are newer
    than this gateway. It decodes all of them, so it is for samples."""
    with suppress(*UNREADABLE):
        batch = msgspec.msgpack.decode(payload)
        events = batch[1] if isinstance(batch, list) and len(batch) > 1 else ()
        known = [each for each in events if isinstance(each, dict) and _is_known(each)]
        return sorted({str(name)[:40] for each in known for name in each} - _KNOWN_FIELDS)
    return ()


def _is_known(event: dict[object, object]) -> bool:
    return event.get("type") in _KNOWN_TYPES


def normalise(event: Event) -> dict[str, object]:
    """Return `event` in vLLM's map form, whatever form it came in. Fields without a value are
    absent, but for the parent."""
    fields = {k: v for k, v in msgspec.structs.asdict(event).items() if v is not None}
    if isinstance(event, BlockStored):
        fields |= {"parent_hash": event.parent_hash, "token_ids": list(event.token_ids)}
        fields = {WIRE_NAMES.get(name, name): value for name, value in fields.items()}
    return {"type": type(event).__name__, **fields}


def _is_array(raw: Raw | bytes) -> bool:
    """msgpack: 0x90-0x9f fixarray, 0xdc array 16, 0xdd array 32."""
    view = memoryview(raw)
    return len(view) > 0 and (0x90 <= view[0] <= 0x9F or view[0] in (0xDC, 0xDD))


def _unreadable(raw: Raw, path: int, error: Exception) -> EventError:
    """An event of a type that we do not know is taken for one that tells more of blocks that are
    there."""
    kind = _type_of(raw)
    if kind is not None and kind not in _KNOWN_TYPES:
        message = f"events[{path}]: unknown type {kind[:40]!r}"
        return EventError("unknown_type", message, may_remove=False)
    message = f"events[{path}]: {decode_fault(error)}"
    return EventError("malformed", message, kind is None or kind in _KINDS_THAT_REMOVE)


def _type_of(raw: Raw) -> str | None:
    try:
        event = msgspec.msgpack.decode(raw)
    except UNREADABLE:
        return None
    if isinstance(event, dict):
        kind = event.get("type")
    else:
        kind = event[0] if isinstance(event, list) and event else None
    return kind if isinstance(kind, str) else None


def typed(event: _Decoded, path: int) -> Event | EventError:
    """Return the event that a decoded one stands for. `path` is its position in the batch."""
    if isinstance(event, StoredFields):
        return _checked(_stored(event), path)
    if isinstance(event, _Removed):
        return BlockRemoved(
            block_hashes=_canonical(event.block_hashes),
            medium=event.medium,
            group_idx=event.group_idx,
            locality=event.locality,
        )
    return AllBlocksCleared()


def _stored(event: StoredFields) -> BlockStored:
    parent = event.parent_block_hash
    return BlockStored(
        block_hashes=_canonical(event.block_hashes),
        parent_hash=None if parent is None else canonical_hash(parent),
        token_ids=event.token_ids,
        block_size=event.block_size,
        lora_id=event.lora_id,
        medium=event.medium,
        lora_name=event.lora_name,
        extra_keys=event.extra_keys,
        group_idx=event.group_idx,
        spec_kind=event.kv_cache_spec_kind,
        sliding_window=event.kv_cache_spec_sliding_window,
        locality=event.locality,
        cache_salt=event.cache_salt,
        lookahead_token_ids=event.lookahead_token_ids if isinstance(event, StoredMap) else None,
    )


def _checked(event: BlockStored, path: int) -> BlockStored | EventError:
    """`event` with its tokens packed, if its lists go together. Raises OverflowError for an event
    of `_PlainBatch` whose tokens cannot be."""
    num_blocks, extra_keys = len(event.block_hashes), event.extra_keys
    tokens = packed(event.token_ids)  # type: ignore[arg-type]  # decoded just now: a list
    is_whole = extra_keys is None or len(extra_keys) == num_blocks
    has_more = event.cache_salt is not None or event.lookahead_token_ids is not None
    if is_whole and not has_more and len(tokens) == num_blocks * event.block_size:
        # nobody else has seen it yet, and a copy takes ten times as long
        force_setattr(event, "token_ids", tokens)
        return event
    if tokens and not _spans(len(tokens), num_blocks, event.block_size):
        message = (
            f"events[{path}]: {len(tokens)} tokens are not {num_blocks} blocks of "
            f"{event.block_size}, nor blocks with others skipped between them"
        )
        return EventError("non_dense_block_span", message, may_remove=False)
    behind = event.lookahead_token_ids
    if behind is not None and not _fits(behind, num_blocks):
        message = (
            f"events[{path}]: look-ahead tokens of {len(behind)} blocks for {num_blocks}; expected"
            f" those of each block, as many of each, at most {MAX_LOOKAHEAD}"
        )
        return EventError("lookahead_mismatch", message, may_remove=False)
    if extra_keys is not None and len(extra_keys) != num_blocks:
        message = f"events[{path}]: {len(extra_keys)} extra keys for {num_blocks} blocks"
        return EventError("extra_keys_mismatch", message, may_remove=False)
    if extra_keys is None and event.parent_hash is None and event.cache_salt and num_blocks:
        extra_keys = [[event.cache_salt], *[None] * (num_blocks - 1)]
    return replace(event, token_ids=tokens, extra_keys=extra_keys, cache_salt=None)


def _fits(behind: Sequence[Sequence[int]], num_blocks: int) -> bool:
    lengths = set(map(len, behind))
    return (
        len(behind) == num_blocks and len(lengths) < 2 and max(lengths, default=0) <= MAX_LOOKAHEAD
    )


def _spans(num_tokens: int, num_blocks: int, block_size: int) -> bool:
    """Return whether so many tokens are those of whole blocks, of which some may not be stored."""
    return block_size > 0 and not num_tokens % block_size and num_tokens >= num_blocks * block_size


def _canonical(hashes: list[_Hash]) -> list[int]:
    is_bytes = bool(hashes) and isinstance(hashes[0], bytes)  # nearly always all of them or none
    try:
        if is_bytes:
            return list(map(int.from_bytes, [block_hash[-8:] for block_hash in hashes]))  # type: ignore
        return [block_hash & _MASK for block_hash in hashes]  # type: ignore[operator]
    except TypeError:
        return [canonical_hash(block_hash) for block_hash in hashes]
