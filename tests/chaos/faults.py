"""Bytes that nobody can read, made from good ones."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec


def corrupt(payload: bytes, rng: Random) -> bytes:
    """A batch that cannot be read at all, or with one event that cannot. What kind of event it
    was is never changed into another kind: nobody could tell."""
    choice = rng.random()
    if choice < 0.3:
        return b"\xc1" + payload[1:]
    if choice < 0.5:
        return payload[: rng.randrange(len(payload))]
    return _spoil(payload, rng)


def spoilt(payload: bytes, rng: Random) -> bytes:
    """As an engine may send it: like `corrupt`, or with an event of a type nobody knows yet."""
    return _with_news(payload) if rng.random() < 0.3 else corrupt(payload, rng)


def _spoil(payload: bytes, rng: Random) -> bytes:
    """The same batch with one event in it that cannot be read."""
    try:
        ts, events, rank = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError:  # it was broken before
        return b"\xc1" + payload[1:]
    place = rng.randrange(len(events))
    events[place] = _spoilt(events[place], rng)
    return msgspec.msgpack.encode([ts, events, rank])


def _with_news(payload: bytes) -> bytes:
    ts, events, rank = msgspec.msgpack.decode(payload)
    return msgspec.msgpack.encode([ts, [*events, {"type": "BlockPinned"}], rank])


def _spoilt(event: Any, rng: Random) -> Any:
    kind = _kind_of(event)
    if kind in (None, "AllBlocksCleared") or rng.random() < 0.3:
        return rng.choice([7, None, {}, [], {"type": 3}, [None, 1]])
    return {"type": kind, "block_hashes": "none"} if isinstance(event, dict) else [kind, "none"]


def _kind_of(event: Any) -> str | None:
    """None: it is broken already."""
    first = event[0] if isinstance(event, list) and event else None
    kind = event.get("type") if isinstance(event, dict) else first
    return kind if isinstance(kind, str) else None
