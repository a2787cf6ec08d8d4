"""TensorRT-LLM's own form: JSON, as `trtllm-serve` answers it to POST /kv_cache_events
(tensorrt_llm/_utils.py, KVCacheEventSerializer). What its ZMQ publisher sends is in vLLM's form.

An event is `{"event_id", "data": {"type", ...}, "window_size", "attention_dp_rank"}`, numbered from
0 per process. Types: created (sizes of the pools), stored (a chain of blocks), removed (from all
levels), updated (a block has changed its cache level: 0 GPU, 1 host memory, 2 and above disk).

A block that is not full is no block for us: it is always the last of its event, and what removes it
removes nothing. Models with several attention windows publish each block once per window; the
events of the largest window that was named so far count, for that one decides what can be reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from inferway.kv.events.event import (
    MAX_BLOCKS,
    BlockRemoved,
    BlockStored,
    Event,
    EventError,
    OpenBatch,
    canonical_hash,
    decode_fault,
    packed,
    too_large,
)
from inferway_structured.decoding import UNREADABLE

_PIECE_BLOCKS = 64  # decoded at a time: less than a millisecond
_MEDIUMS = ("GPU", "CPU", "STORAGE")  # by cache level

_Hash = int | str  # its newer SHA-256 hashes are hexadecimal


class _Token(Struct, gc=False):
    token_id: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    token_extra_id: int = 0  # of prompt tuning


class _Picture(Struct, gc=False):
    hash: str
    start_offset: int


class _Block(Struct, gc=False):
    block_hash: _Hash
    tokens: list[_Token] = []
    cache_level: Annotated[int, Meta(ge=0)] = 0
    mm_keys: list[_Picture] = []
    cache_salt: str | int | None = None


class _CreatedData(Struct, tag="created"):
    pass


class _StoredData(Struct, tag="stored"):
    parent_hash: _Hash | None
    blocks: Annotated[list[Raw], Meta(max_length=MAX_BLOCKS)]
    lora_name: str | None = None


class _RemovedData(Struct, tag="removed"):
    block_hashes: Annotated[list[_Hash], Meta(max_length=MAX_BLOCKS)]


class _Change(Struct):
    old_value: Annotated[int, Meta(ge=0)]
    new_value: Annotated[int, Meta(ge=0)]


class _UpdatedData(Struct, tag="updated"):
    block_hash: _Hash
    cache_level: _Change | None = None


class _JsonEvent(Struct):
    event_id: int
    data: _CreatedData | _StoredData | _RemovedData | _UpdatedData
    window_size: int = 0


class NumberedEvent(Struct):
    """The numbers that order an event in its stream. `payload` is for the adapter."""

    event_id: Annotated[int, Meta(ge=0)]
    attention_dp_rank: int | None = None
    payload: bytes = b""


class _Kind(Struct):
    type: str


class _KindOfEvent(Struct):
    data: _Kind


_LIST = msgspec.json.Decoder(list[Raw])
_NUMBER = msgspec.json.Decoder(NumberedEvent)
_EVENT = msgspec.json.Decoder(_JsonEvent)
_BLOCK = msgspec.json.Decoder(_Block)
_KIND = msgspec.json.Decoder(_KindOfEvent)


def split_answer(body: bytes) -> Iterator[NumberedEvent]:
    """Yield the events of one answer. Raises msgspec.DecodeError if it is no list of numbered
    events."""
    for raw in _LIST.decode(body):
        number = _NUMBER.decode(raw)
        yield NumberedEvent(number.event_id, number.attention_dp_rank, bytes(raw))


class TensorRTEvents:
    """Reads the events of one engine, whose blocks have `block_size` tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._last_id = -1
        self._window = 0  # the largest that was named
        self._has_stored = False

    def open_batch(self, payload: bytes) -> OpenBatch:
        """Return a batch of the one event in `payload`."""
        if (error := too_large(payload)) is not None:
            return OpenBatch(0.0, [error])
        try:
            event = _EVENT.decode(payload)
        except UNREADABLE as e:
            return OpenBatch(0.0, [_unreadable(payload, e)])
        return OpenBatch(0.0, self._items(event))

    def _items(self, event: _JsonEvent) -> Iterator[Event | EventError]:
        if event.event_id <= self._last_id:  # a new life of the engine
            self._window, self._has_stored = 0, False
        self._last_id = event.event_id
        if event.window_size < self._window:
            return
        if event.window_size > self._window and self._has_stored:
            yield EventError(
                "window_size",
                f"blocks of a window of {event.window_size} tokens come after those of "
                f"{self._window}; the view of its cache is dropped",
            )
        self._window = event.window_size
        match event.data:
            case _StoredData() as stored:
                self._has_stored = True
                yield from self._stored(stored)
            case _RemovedData(hashes):
                known = [_canonical(block_hash) for block_hash in hashes]
                for medium in _MEDIUMS:
                    yield BlockRemoved(block_hashes=known, medium=medium)
            case _UpdatedData(block_hash, _Change(old, new)) if old != new:
                yield from _moved(_canonical(block_hash), _medium(old), _medium(new))

    def _stored(self, stored: _StoredData) -> Iterator[Event | EventError]:
        """Yield stored blocks in pieces, each of blocks of one cache level."""
        parent = None if stored.parent_hash is None else _canonical(stored.parent_hash)
        piece: list[_Block] = []
        for number, raw in enumerate(stored.blocks, 1):
            try:
                block = _BLOCK.decode(raw)
            except UNREADABLE as e:
                yield EventError("malformed", f"stored: {decode_fault(e)}", may_remove=False)
                break
            if len(block.tokens) != self._block_size:
                if number < len(stored.blocks) or len(block.tokens) > self._block_size:
                    yield self._wrong_size(block)
                break
            is_full = len(piece) == _PIECE_BLOCKS
            if piece and (is_full or block.cache_level != piece[0].cache_level):
                yield self._piece(piece, parent, stored.lora_name)
                parent, piece = _canonical(piece[-1].block_hash), []
            piece.append(block)
        if piece:
            yield self._piece(piece, parent, stored.lora_name)

    def _piece(
        self, blocks: Sequence[_Block], parent: int | None, lora_name: str | None
    ) -> BlockStored:
        extra_keys: list[object] = [
            _extra_keys(block, begins_prompt=parent is None and i == 0)
            for i, block in enumerate(blocks)
        ]
        return BlockStored(
            block_hashes=[_canonical(block.block_hash) for block in blocks],
            parent_hash=parent,
            token_ids=packed([token.token_id for block in blocks for token in block.tokens]),
            block_size=self._block_size,
            lora_name=lora_name,
            medium=_medium(blocks[0].cache_level),
            extra_keys=extra_keys if any(extra_keys) else None,
        )

    def _wrong_size(self, block: _Block) -> EventError:
        message = (
            f"stored: a block of {len(block.tokens)} tokens, expected {self._block_size}; give the "
            "engine's tokens_per_block as block_size"
        )
        return EventError("non_dense_block_span", message, may_remove=False)


def _moved(block_hash: int, old: str, new: str) -> Iterator[Event]:
    """Stored first: its key is known as long as it is somewhere."""
    yield BlockStored(
        block_hashes=[block_hash], parent_hash=None, token_ids=packed([]), block_size=0, medium=new
    )
    yield BlockRemoved(block_hashes=[block_hash], medium=old)


def _extra_keys(block: _Block, *, begins_prompt: bool) -> list[object] | None:
    """Return what else sets the block apart: pictures, the salt, tokens of prompt tuning."""
    keys: list[object] = [[picture.hash, picture.start_offset] for picture in block.mm_keys]
    if begins_prompt and block.cache_salt is not None:
        keys.append(block.cache_salt)
    extra_ids = [token.token_extra_id for token in block.tokens]
    if any(extra_ids):
        keys.append({"token_extra_ids": extra_ids})
    return keys or None


def _medium(cache_level: int) -> str:
    return _MEDIUMS[min(cache_level, len(_MEDIUMS) - 1)]


def _canonical(block_hash: _Hash) -> int:
    """Return the last 64 bits of a hash in hexadecimal, or those of another text's bytes."""
    if isinstance(block_hash, int):
        return canonical_hash(block_hash)
    try:
        return canonical_hash(bytes.fromhex(block_hash))
    except ValueError:
        return canonical_hash(block_hash.encode())


def _unreadable(payload: bytes, error: Exception) -> EventError:
    """An event of a type that we do not know is taken for one that tells more of blocks that are
    there."""
    try:
        kind = _KIND.decode(payload).data.type
    except UNREADABLE:
        return EventError("malformed", decode_fault(error))
    if kind in ("created", "stored", "removed", "updated"):
        return EventError(
            "malformed", decode_fault(error), may_remove=kind in ("removed", "updated")
        )
    return EventError("unknown_type", f"unknown type {kind[:40]!r}", may_remove=False)
