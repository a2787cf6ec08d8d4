"""W3C trace context: which `traceparent` is one."""

from __future__ import annotations

import pytest

from inferway.telemetry.tracing import Parent, read_traceparent, trace_id_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f" 00-{TRACE}-{SPAN}-01 ", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
    ],
)
def test_one_is_read(value: str, flags: int) -> None:
    parent = Parent(int(TRACE, 16), int(SPAN, 16), flags)

    assert read_traceparent(value.encode()) == parent
    assert trace_id_of(value.encode()) == TRACE


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
    ],
)
def test_what_is_none_is_none(value: str) -> None:
    assert read_traceparent(value.encode()) is None
    assert trace_id_of(value.encode()) == ""
    assert trace_id_of(None) == ""
