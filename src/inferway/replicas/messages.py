"""What gateways tell each other, as bytes: 8 bytes that name the sender, then msgpack.

A message that cannot be read is refused as a whole. Of one that can, whatever cannot be true is
left out, and what it tells of engines that are not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from inferway.errors import PeerMessageError
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.learning import (
    TPOT_FEATURES,
    TRANSFER_FEATURES,
    TTFT_FEATURES,
)
from inferway.scheduling.expected_ttft.sharing import Answered, Begins, Comes, Event, Took, Waits
from inferway_structured.decoding import UNREADABLE

VERSION = 1
SENDER_BYTES = 8
MOST_BYTES = 128 * 1024  # of a message
MOST_NAME = 128  # characters of a gateway's name

MOST_PLUGINS = 16
_MOST_ITEMS = 4096  # of a list
_MOST_TOKENS = 1e9
_MOST_MS = 1e9
_MOST_REQUESTS = 1e6
_OLDEST, _LATEST = 24 * 3600.0, -3600.0  # seconds ago; what is assumed lies ahead
_NUM_FEATURES = (len(TTFT_FEATURES), len(TPOT_FEATURES), len(TRANSFER_FEATURES))
_MOST_FEATURE = 1e15  # pairs of tokens

_T = TypeVar("_T")

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Plugin = Annotated[int, Meta(ge=0, lt=MOST_PLUGINS)]


class _PeerTold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields are told by their places; new ones go to the end."""


class Shared(_PeerTold, frozen=True, gc=False):
    """What a plugin that learns tells, by its place among them. Its `at` is seconds ago."""

    plugin: _Plugin
    event: Event


class CountTold(_PeerTold, frozen=True, gc=False):
    """What the sender has on its way to an endpoint now."""

    endpoint: str
    requests: float
    tokens: float


class CountRange(_PeerTold, frozen=True, gc=False):
    """The same of all endpoints whose names come after one and not after the other (None: of all
    that follow): there are no more."""

    after: str
    upto: str | None
    counts: Annotated[list[CountTold], Meta(max_length=_MOST_ITEMS)]


class ComingTold(_PeerTold, frozen=True, gc=False):
    """How many decode legs of the sender's are to come to an endpoint."""

    plugin: _Plugin
    endpoint: str
    legs: float


class WaitingRange(_PeerTold, frozen=True, gc=False):
    """The sender's requests that wait, of those with numbers after one and not after the other:
    there are no more. Those in `assumed` will be taken for begun."""

    plugin: _Plugin
    after: _Number
    upto: _Number
    waits: Annotated[list[Waits], Meta(max_length=_MOST_ITEMS)]
    assumed: Annotated[list[Begins], Meta(max_length=_MOST_ITEMS)]


class KnownTold(_PeerTold, frozen=True, gc=False):
    """What the sender has learned of some engines."""

    plugin: _Plugin
    known: Known


class PeerMessage(_PeerTold, frozen=True, gc=False):
    """`coming`: of these endpoints; `all_coming`: of all, there are no more."""

    version: int
    number: _Number
    name: Annotated[str, Meta(max_length=MOST_NAME)]
    shared: Annotated[list[Shared], Meta(max_length=_MOST_ITEMS)] = []
    counts: Annotated[list[CountTold], Meta(max_length=_MOST_ITEMS)] = []
    coming: Annotated[list[ComingTold], Meta(max_length=_MOST_ITEMS)] = []
    waiting: Annotated[list[WaitingRange], Meta(max_length=64)] = []
    count_ranges: Annotated[list[CountRange], Meta(max_length=64)] = []
    all_coming: Annotated[list[ComingTold], Meta(max_length=_MOST_ITEMS)] | None = None
    known: Annotated[list[KnownTold], Meta(max_length=_MOST_ITEMS)] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PeerMessage)
_raw = msgspec.msgpack.Decoder(list[msgspec.Raw])


def written(sender: int, message: PeerMessage) -> bytes:
    return sender.to_bytes(SENDER_BYTES, "big") + _encoder.encode(message)


def sender_of(payload: bytes) -> int:
    """Raises PeerMessageError."""
    if not SENDER_BYTES < len(payload) <= MOST_BYTES:
        raise PeerMessageError(
            f"{len(payload)} bytes: expected {SENDER_BYTES + 1} to {MOST_BYTES}", reason="size"
        )
    return int.from_bytes(payload[:SENDER_BYTES], "big")


def read(payload: bytes) -> tuple[PeerMessage, list[PeerMessageError]]:
    """Return the message without the things in it that cannot be true, and an error for each of
    these. Raises PeerMessageError for a message that cannot be read."""
    body = memoryview(payload)[SENDER_BYTES:]
    try:
        message = _decoder.decode(body)
    except UNREADABLE as e:
        raise _unreadable(body, e) from e
    if message.version != VERSION:
        raise _other_version(message.version)
    if not message.name.isprintable():
        raise _false("name", message.name[:MOST_NAME], "printable characters")
    sieve = _Sieve()
    true = PeerMessage(
        *(message.version, message.number, message.name),
        shared=sieve.true(message.shared, _check_shared),
        counts=sieve.true(message.counts, _check_count),
        coming=sieve.true(message.coming, _check_coming),
        waiting=[sieve.waiting(each) for each in message.waiting],
        count_ranges=[
            replace(each, counts=sieve.true(each.counts, _check_count))
            for each in message.count_ranges
        ],
        all_coming=message.all_coming and sieve.true(message.all_coming, _check_coming),
        known=sieve.true(message.known, _check_known),
    )
    return true, sieve.faults


@dataclass(slots=True)
class _Sieve:
    """Drops the items of a message that cannot be true, and keeps an error for each."""

    faults: list[PeerMessageError] = field(default_factory=list)

    def true(self, items: list[_T], check: Callable[[_T], None]) -> list[_T]:
        return [item for item in items if self._is_true(item, check)]

    def waiting(self, told: WaitingRange) -> WaitingRange:
        return replace(
            told,
            waits=self.true(told.waits, partial(_check_waits_in, told)),
            assumed=self.true(told.assumed, _check_begins),
        )

    def _is_true(self, item: _T, check: Callable[[_T], None]) -> bool:
        try:
            check(item)
        except PeerMessageError as e:
            self.faults.append(e)
            return False
        return True


def _unreadable(body: memoryview, error: Exception) -> PeerMessageError:
    try:
        version = msgspec.msgpack.decode(_raw.decode(body)[0], type=int)
    except (IndexError, *UNREADABLE):
        version = VERSION
    if version != VERSION:
        return _other_version(version)
    return PeerMessageError(f"it cannot be read: {error}", reason="unreadable")


def _other_version(version: int) -> PeerMessageError:
    return PeerMessageError(
        f"its messages have version {version}, ours {VERSION}: gateways of one release understand "
        "each other",
        reason="version",
    )


def _check_count(count: CountTold) -> None:
    _between("counts.requests", count.requests, 0.0, _MOST_REQUESTS)
    _between("counts.tokens", count.tokens, 0.0, _MOST_TOKENS)


def _check_coming(coming: ComingTold) -> None:
    _between("coming.legs", coming.legs, 0.0, _MOST_REQUESTS)


def _check_known(told: KnownTold) -> None:
    if not told.known.is_sound(_NUM_FEATURES):
        raise _false("known", told.plugin, "sums that observations can add up to")


def _check_shared(shared: Shared) -> None:
    _CHECKS[type(shared.event)](shared.event)


def _check_waits_in(told: WaitingRange, waits: Waits) -> None:
    _check_waits(waits)
    if not told.after < waits.number <= told.upto:
        raise _false("waiting.number", waits.number, f"{told.after + 1} to {told.upto}")


def _check_waits(waits: Waits) -> None:
    _between("number", waits.number, 0, 2**63)
    _between("tokens", waits.tokens, 0.0, _MOST_TOKENS)
    _between("alone_ms", waits.alone_ms, 0.0, _MOST_MS)
    _between("at", waits.at, _LATEST, _OLDEST)
    _between("work", waits.work, 0.0, _MOST_MS)
    _between("new_tokens", waits.new_tokens, 0.0, _MOST_TOKENS)
    if waits.prompt_tokens is not None:
        _between("prompt_tokens", waits.prompt_tokens, 1.0, _MOST_TOKENS)
        _between("new_tokens", waits.new_tokens, 0.0, waits.prompt_tokens)


def _check_begins(begins: Begins) -> None:
    _between("at", begins.at, _LATEST, _OLDEST)


def _check_took(took: Took) -> None:
    features = took.features
    if len(features) != _NUM_FEATURES[took.kind] or features[0] != 1.0:
        raise _false("features", len(features), f"{_NUM_FEATURES[took.kind]}, the first of them 1")
    for each in features:
        _between("features", each, 0.0, _MOST_FEATURE)
    _between("ms", took.ms, 1e-3, _MOST_MS)
    _between("at", took.at, _LATEST, _OLDEST)


def _check_answered(answered: Answered) -> None:
    _between("tokens", answered.tokens, 1, _MOST_TOKENS)


def _check_comes(comes: Comes) -> None:
    raise _false("event", type(comes).__name__, "counts of what is to come, in `coming`")


_CHECKS: dict[type[Event], Callable[[Event], None]] = {
    Waits: _check_waits,  # type: ignore[dict-item]
    Begins: _check_begins,  # type: ignore[dict-item]
    Took: _check_took,  # type: ignore[dict-item]
    Answered: _check_answered,  # type: ignore[dict-item]
    Comes: _check_comes,  # type: ignore[dict-item]
}


def _between(place: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # nor is NaN
        raise _false(place, value, f"{least:g} to {most:g}")


def _false(place: str, value: object, expected: str) -> PeerMessageError:
    return PeerMessageError(f"{place}: {value!r}: expected {expected}", reason="false")
