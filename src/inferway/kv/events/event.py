"""KV events in the form that all adapters turn theirs into. `adapters` has the forms."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
MAX_BLOCKS = 100_000  # in one event
MAX_GROUPS = 64  # of KV caches; their numbers are below it
MAX_LOOKAHEAD = 64  # tokens behind a block that its hash covers
SMALL_BYTES = 64 * 1024  # decoded at once: less than a millisecond

_MASK = (1 << 64) - 1


# The events are decoded as they stand here, without a copy, from what engines send nearly always:
# vLLM's maps with unsigned hashes. So their fields have vLLM's order and, encoded, its names.
Hash = Annotated[int, Meta(ge=0)]
Hashes = Annotated[list[Hash], Meta(max_length=MAX_BLOCKS)]
NumTokens = Annotated[int, Meta(ge=0)]
WIRE_NAMES = {
    "parent_hash": "parent_block_hash",
    "spec_kind": "kv_cache_spec_kind",
    "sliding_window": "kv_cache_spec_sliding_window",
}


class BlockStored(
    Struct, frozen=True, gc=False, kw_only=True, tag="BlockStored", rename=WIRE_NAMES
):
    """The engine now holds these blocks, each the child of the one before it."""

    block_hashes: Hashes
    parent_hash: Hash | None  # of the first of them; None: they start a prompt
    # block_size for each hash; none: only the blocks' tier changed; more: blocks between them were
    # skipped. Adapters give `packed` ones.
    token_ids: Sequence[int]
    block_size: NumTokens
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[object] | None = None  # one entry per hash
    group_idx: int | None = None
    spec_kind: str | None = None
    sliding_window: int | None = None
    locality: str | None = None
    cache_salt: str | None = None  # on the wire alone; adapters put it into `extra_keys`
    # of each block, the tokens behind it that its hash covers as well (vLLM 0.33)
    lookahead_token_ids: list[list[int]] | None = None

    @property
    def has_tokens_alone(self) -> bool:
        """True if nothing but its tokens is hashed into the blocks."""
        extra_keys = self.extra_keys
        return (
            (extra_keys is None or not any(extra_keys))
            and not self.lora_name
            and self.lora_id is None
        )


class BlockRemoved(Struct, frozen=True, gc=False, kw_only=True, tag="BlockRemoved"):
    """The engine dropped one copy of each of these blocks."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(Struct, frozen=True, gc=False, tag="AllBlocksCleared"):
    """The engine holds nothing any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


def is_dense(event: BlockStored) -> bool:
    """Return whether an event has the tokens of its blocks, and of no others between them."""
    return len(event.token_ids) == len(event.block_hashes) * event.block_size


def blocks_of(event: BlockStored, start: int, end: int) -> BlockStored:
    """Return the event with the blocks from `start` to `end` alone, as an engine publishes it that
    computes a prompt in parts. If blocks between them were skipped, the tokens belong to the event
    as a whole: the part that begins it has them."""
    size, extra_keys, ahead = event.block_size, event.extra_keys, event.lookahead_token_ids
    tokens: Sequence[int] = () if start else event.token_ids
    if is_dense(event):
        tokens = event.token_ids[start * size : end * size]
    return replace(
        event,
        block_hashes=event.block_hashes[start:end],
        parent_hash=event.block_hashes[start - 1] if start else event.parent_hash,
        token_ids=tokens,
        extra_keys=None if extra_keys is None else extra_keys[start:end],
        lookahead_token_ids=None if ahead is None else ahead[start:end],
    )


class EventError(Struct, frozen=True):
    """The reason why a batch or an event was left out. `reason` is a label for a metric:
    payload_too_large, malformed, unknown_type, non_dense_block_span, extra_keys_mismatch,
    window_size."""

    reason: str
    message: str
    may_remove: bool = True  # whether it may have said that blocks are gone


class Batch(Struct, frozen=True, gc=False):
    """The content of one message of an engine, in order: the events that could be read, and why the
    others could not."""

    ts: float  # seconds since 1970, by the engine's clock; 0.0: it does not say
    items: Sequence[Event | EventError]
    rank: int | None = None  # the data-parallel rank that published it

    @property
    def events(self) -> list[Event]:
        """The events that could be read."""
        return [item for item in self.items if not isinstance(item, EventError)]

    @property
    def errors(self) -> list[EventError]:
        """The reasons why the other events could not be read."""
        return [item for item in self.items if isinstance(item, EventError)]

    def decoded(self) -> Batch:
        """Return the batch: as `OpenBatch` has it."""
        return self

    @property
    def is_readable(self) -> bool:
        """False if an event that could not be read may have removed blocks."""
        if EventError not in map(type, self.items):
            return True
        return not any(error.may_remove for error in self.errors)


class OpenBatch(Struct, frozen=True):
    """A batch whose events are decoded one by one as they are taken, for owners that decode a few
    at a time. They can be taken once."""

    ts: float
    items: Iterable[Event | EventError]
    rank: int | None = None

    def decoded(self) -> Batch:
        """Decode all events, and return the batch that has them."""
        return Batch(self.ts, list(self.items), self.rank)


# One engine's form: a message's payload -> the batch in it. It never raises: what cannot be read is
# an EventError among the items.
EventAdapter = Callable[[bytes], Batch | OpenBatch]


def too_large(payload: bytes) -> EventError | None:
    """Return the error of a payload that is too large to be read; None if it is not."""
    if len(payload) <= MAX_PAYLOAD_BYTES:
        return None
    message = f"batch of {len(payload)} bytes: at most {MAX_PAYLOAD_BYTES} are read"
    return EventError("payload_too_large", message)


def packed(token_ids: list[int]) -> array[int]:
    """Return token ids in four bytes each. Raises OverflowError if one of them cannot be: it is
    below 0 or above 2**32 - 1."""
    ids = array("I")
    ids.fromlist(token_ids)  # the fastest way by far; it checks as it goes
    return ids


def canonical_hash(block_hash: int | bytes) -> int:
    """Return the 64 bits we know a block hash by: two's complement of an integer, the last eight
    bytes of bytes, big-endian; shorter bytes count as padded on the left."""
    if isinstance(block_hash, int):
        return block_hash & _MASK
    return int.from_bytes(block_hash[-8:], "big")


def decode_fault(error: Exception) -> str:
    """Return a decoder's message such that it can stand behind a colon."""
    text = str(error)
    return text[:1].lower() + text[1:]
