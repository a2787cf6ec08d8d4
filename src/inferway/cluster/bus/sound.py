"""Messages of other gateways as bytes: 8 bytes that name the sender, then msgpack.

A message that cannot be read is refused as a whole. Of one that can, whatever cannot be true is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from inferway.cluster.bus.peer_messages import (
    MOST_NAME,
    VERSION,
    KnownTold,
    PeerMessage,
    Shared,
    decode_peer,
    encode,
)
from inferway.errors import PeerMessageError
from inferway.fleet.elsewhere import Count
from inferway.scheduling.expected_ttft.learning import (
    ENCODE_FEATURES,
    TPOT_FEATURES,
    TRANSFER_FEATURES,
    TTFT_FEATURES,
)
from inferway.scheduling.expected_ttft.sharing import Answered, Begins, Comes, Took, Waits
from inferway_structured.decoding import UNREADABLE

SENDER_BYTES = 8
MOST_BYTES = 128 * 1024  # of a message

_TOKENS = (0.0, 1e9)
_MS = (0.0, 1e9)
_REQUESTS = (0.0, 1e6)
_AGO = (-3600.0, 24 * 3600.0)  # seconds; what is assumed lies ahead
_FEATURE = (0.0, 1e15)  # pairs of tokens
_NUM_FEATURES = tuple(map(len, (TTFT_FEATURES, TPOT_FEATURES, TRANSFER_FEATURES, ENCODE_FEATURES)))

# What the fields of each type lie between.
_LIMITS: Mapping[type, Mapping[str, tuple[float, float]]] = {
    Waits: {
        **{"number": (0, 2**63 - 1), "tokens": _TOKENS, "alone_ms": _MS, "at": _AGO},
        **{"work": _MS, "new_tokens": _TOKENS},
    },
    Begins: {"at": _AGO},
    Took: {"ms": (1e-3, 1e9), "at": _AGO},
    Answered: {"tokens": (1, 1e9)},
    Comes: {"legs": _REQUESTS},
    Count: {"requests": _REQUESTS, "tokens": _TOKENS},
}

_Item = TypeVar("_Item", Shared, Count, KnownTold)


def written(sender: int, message: PeerMessage) -> bytes:
    """Return the bytes that `read` reads."""
    return sender.to_bytes(SENDER_BYTES, "big") + encode(message)


def sender_of(payload: bytes) -> int:
    """Return who has sent it. Raises PeerMessageError."""
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
        message = decode_peer(body)
    except UNREADABLE as e:
        raise _unreadable(body, e) from e
    if message.version != VERSION:
        raise _other_version(message.version)
    if not message.name.isprintable():
        raise _false("name", message.name[:MOST_NAME], "printable characters")
    faults: list[PeerMessageError] = []
    true = replace(
        message,
        shared=_true(message.shared, faults),
        counts=_true(message.counts, faults),
        known=_true(message.known, faults),
    )
    return true, faults


def _true(items: Sequence[_Item], faults: list[PeerMessageError]) -> list[_Item]:
    true = []
    for item in items:
        fault = _fault(item.event if isinstance(item, Shared) else item)
        if fault is None:
            true.append(item)
        else:
            faults.append(fault)
    return true


def _fault(item: object) -> PeerMessageError | None:
    """Return what of it cannot be true."""
    for name, (least, most) in _LIMITS.get(type(item), {}).items():
        value = getattr(item, name)
        if not least <= value <= most:  # nor is NaN
            return _false(name, value, f"{least:g} to {most:g}")
    match item:
        case Waits(prompt_tokens=float(tokens)) if not max(1.0, item.new_tokens) <= tokens <= 1e9:
            return _false("prompt_tokens", tokens, f"{max(1.0, item.new_tokens):g} to 1e+09")
        case Took(features=features):
            size, (least, most) = _NUM_FEATURES[item.kind], _FEATURE
            if len(features) != size or features[0] != 1.0:
                return _false("features", len(features), f"{size}, the first of them 1")
            for each in features:
                if not least <= each <= most:
                    return _false("features", each, f"{least:g} to {most:g}")
        case KnownTold() if not item.known.is_sound(_NUM_FEATURES):
            return _false("known", item.plugin, "sums that observations can add up to")
    return None


def _unreadable(body: memoryview, error: Exception) -> PeerMessageError:
    try:
        raw = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        version = msgspec.msgpack.decode(raw[0], type=int)
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


def _false(place: str, value: object, expected: str) -> PeerMessageError:
    return PeerMessageError(f"{place}: {value!r}: expected {expected}", reason="false")
