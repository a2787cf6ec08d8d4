"""W3C trace context, level 1: what a `traceparent` says. Both its headers travel on to the engine
as they came, unless spans of our own stand between (`tracing`)."""

from __future__ import annotations

import re
from typing import NamedTuple

# version - trace id - parent id - flags; later versions may have more behind (section 3.2.2)
_TRACEPARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Parent(NamedTuple):
    """Who has called."""

    trace_id: int
    span_id: int
    flags: int


def read_traceparent(value: bytes | None) -> Parent | None:
    """None where there is none that is valid: then a trace begins here."""
    found = None if value is None else _TRACEPARENT.fullmatch(value.strip())
    if found is None or (found[1] == b"00" and found[5] is not None):
        return None
    parent = Parent(int(found[2], 16), int(found[3], 16), int(found[4], 16))
    return parent if parent.trace_id and parent.span_id else None


def trace_id_of(value: bytes | None) -> str:
    """As it is written; empty where there is none."""
    parent = read_traceparent(value)
    return "" if parent is None else f"{parent.trace_id:032x}"
