"""Streams cut at any place -> whole events."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_structured.sse import (
    MAX_HELD_BYTES,
    WholeEvents,
    comment_in,
    data_in,
    done_at,
    is_event_stream,
    last_data,
    num_events,
    with_data,
)

COMMENT = b": keep-alive\n\n"
EVENT = b"data: x\n\n"
DONE = b"data: [DONE]\n\n"
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'  # Anthropic's


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


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 2_000_000, COMMENT * 100_000])
def test_each_byte_is_looked_at_once_however_small_the_pieces_are(stream: bytes) -> None:
    """Looked at again with each, they would take minutes."""
    held, began = WholeEvents(8 << 20), time.thread_time()
    for at in range(0, len(stream), 10):
        held.whole(stream[at : at + 10], comments_wait=True)

    assert time.thread_time() - began < 20


@pytest.mark.parametrize(
    ("pieces", "done"),
    [
        ([EVENT, DONE], True),
        ([EVENT + DONE], True),
        ([DONE, b""], True),
        ([DONE, b"data: "], True),
        ([DONE, EVENT], False),
        ([EVENT, STOP], True),
        ([EVENT + STOP], True),
        ([STOP, EVENT], False),
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


LOOKALIKE = b'data: {"text":"\\ndata: [DONE]\\n\\n: x true"}\n\n'


def test_a_text_that_looks_like_the_end_of_a_stream_is_text() -> None:
    text = LOOKALIKE.removeprefix(b"data: ").strip()

    assert done_at(LOOKALIKE) == -1
    assert done_at(LOOKALIKE + DONE) == len(LOOKALIKE)
    assert num_events(LOOKALIKE + COMMENT + LOOKALIKE) == 2
    assert list(data_in(LOOKALIKE + DONE)) == [text, b"[DONE]"]
    assert [data.strip() for data in last_data(LOOKALIKE + DONE, 4)] == [b"[DONE]", text]
    assert comment_in(LOOKALIKE, b"x") == b""


def test_the_end_of_a_stream_may_begin_in_the_middle_of_an_event() -> None:
    assert list(last_data(b'"b":1}\n\ndata: x\n\n', 4)) == [b" x", b'"b":1}']


def test_a_comment_is_read_wherever_it_stands() -> None:
    assert comment_in(b": x true\n\n" + DONE, b"x") == b"true"
    assert comment_in(EVENT + b": x false\r\n\r\n", b"x") == b"false"
    assert comment_in(EVENT, b"x") == b""


def test_only_the_data_of_events_is_edited() -> None:
    events = b": a\n\nevent: a\r\ndata: a\r\n\r\ndata: a"

    assert with_data(events, bytes.upper) == b": a\n\nevent: a\r\ndata: A\r\n\r\ndata: A"
