"""Streams cut at any place -> whole events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.frontends.http.sse import MAX_HELD_BYTES, WholeEvents, is_event_stream

COMMENT = b": keep-alive\n\n"
EVENT = b"data: x\n\n"
DONE = b"data: [DONE]\n\n"


@given(
    st.lists(st.sampled_from([COMMENT, EVENT, b"data: y\r\n\r\n", DONE, b"event: e\ndata: z\n\n"])),
    st.lists(st.integers(0, 200)),
    st.booleans(),
)
def test_wherever_it_is_cut_not_a_byte_is_changed_and_only_whole_events_pass(
    events: list[bytes], cuts: list[int], comments_wait: bool
) -> None:
    stream = b"".join(events)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    held = WholeEvents()

    passed = [held.whole(stream[start:end], comments_wait) for start, end in pairwise(places)]

    assert b"".join(passed) + held.rest() == stream
    assert all(not piece or piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in passed)


def test_comments_wait_for_the_first_event_while_it_matters_who_answers() -> None:
    held = WholeEvents()

    assert held.whole(COMMENT, comments_wait=True) == b""
    assert held.whole(COMMENT + b"data", comments_wait=True) == b""
    assert held.whole(b": x\n\n", comments_wait=True) == COMMENT + COMMENT + EVENT
    assert held.whole(COMMENT, comments_wait=False) == COMMENT


@pytest.mark.parametrize("piece", [b": no end " * 64, b"data: no end " * 64, COMMENT * 64])
def test_what_is_held_has_a_limit(piece: bytes) -> None:
    held, passed = WholeEvents(), 0
    for _ in range(4 * MAX_HELD_BYTES // len(piece)):
        passed += len(held.whole(piece, comments_wait=True))

    assert passed > 2 * MAX_HELD_BYTES
    assert len(held.rest()) <= MAX_HELD_BYTES


@pytest.mark.parametrize(
    ("pieces", "done"),
    [
        ([EVENT, DONE], True),
        ([EVENT + DONE], True),
        ([DONE, b""], True),
        ([DONE, b"data: "], True),
        ([DONE, EVENT], False),
        ([EVENT], False),
        ([], False),
    ],
)
def test_a_stream_that_has_said_so_is_whole(pieces: list[bytes], done: bool) -> None:
    held = WholeEvents()
    for piece in pieces:
        held.whole(piece, comments_wait=False)

    assert held.are_done == done


def test_a_stream_says_what_it_is() -> None:
    assert is_event_stream([(b"content-type", b"text/event-stream; charset=utf-8")])
    assert not is_event_stream([(b"content-type", b"application/json")])
    assert not is_event_stream([])
