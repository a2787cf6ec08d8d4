"""What is read of an answer's bytes and their times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from bench.tests.loading.servers import USAGE, delta

from inferway_bench.loading.answers import Answer, Piece, Sample, read_answer

EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}
DONE = b"data: [DONE]\n\n"


def sse(*values: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


@dataclass
class Read:
    text: str
    sample: Sample

    @property
    def times(self) -> list[float]:
        first = self.sample.first
        return [] if first is None else list(accumulate(self.sample.gaps, initial=first))


def read(*pieces: bytes, **changes: Any) -> Read:
    """Pieces that came at 1.0, 2.0, …"""
    timed = [Piece(float(at), data) for at, data in enumerate(pieces, start=1)]
    fields: dict[str, Any] = {"status": 200, "headers": EVENT_STREAM, "ended": 9.0, **changes}
    sample = Sample(session=0, turn=0, intended=0.0)
    return Read(read_answer(Answer(pieces=timed, **fields), sample), sample)


def test_the_first_token_is_the_first_delta_with_text_not_the_one_that_says_who_speaks() -> None:
    found = read(sse(delta(role="assistant", content="")), sse(delta(content="a")), DONE)

    assert found.times == [2.0]
    assert found.text == "a"


def test_a_first_delta_that_says_who_speaks_and_something_is_a_token() -> None:
    assert read(sse(delta(role="assistant", content="a")), DONE).times == [1.0]


@pytest.mark.parametrize(
    "said",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0}]},
        {"refusal": "no"},
        {"content": ""},  # half a character
    ],
)
def test_what_is_not_content_is_a_token_too(said: dict[str, Any]) -> None:
    assert read(sse(delta(**said)), DONE).times == [1.0]


def test_a_last_delta_that_says_nothing_is_no_token() -> None:
    last = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}

    assert read(sse(delta(content="a")), sse(last), DONE).times == [1.0]


def test_an_event_counts_when_its_end_arrives() -> None:
    event = sse(delta(content="a"))

    assert read(event[:20], event[20:], DONE).times == [2.0]


def test_events_that_arrive_together_have_the_same_time() -> None:
    assert read(sse(delta(content="a"), delta(content="b")), DONE).times == [1.0, 1.0]


def test_lines_that_end_with_carriage_returns_and_comments_are_read() -> None:
    event = b": keep-alive\r\n\r\n" + sse(delta(content="a")).replace(b"\n", b"\r\n")

    assert read(event, DONE).text == "a"


def test_a_completions_chunks_are_tokens() -> None:
    chunk = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}

    assert read(sse(chunk), sse(chunk), DONE).text == "aa"


def test_usage_is_what_the_server_says() -> None:
    found = read(sse(delta(content="a"), {"choices": [], "usage": USAGE}), DONE)

    assert (
        found.sample.prompt_tokens,
        found.sample.completion_tokens,
        found.sample.cached_tokens,
    ) == (40, 3, 30)


def test_an_answer_that_is_no_stream_has_its_tokens_at_its_end() -> None:
    value = {"choices": [{"message": {"role": "assistant", "content": "all"}}], "usage": USAGE}
    found = read(json.dumps(value).encode(), headers={"content-type": "application/json"})

    assert (found.times, found.text, found.sample.cached_tokens) == ([9.0], "all", 30)


def test_a_status_that_is_no_success_is_an_error_with_what_was_said() -> None:
    found = read(b'{"error": "busy"}', status=503)

    assert (found.sample.error, found.sample.detail) == ("status 503", '{"error": "busy"}')


def test_a_stream_without_its_end_is_cut() -> None:
    assert read(sse(delta(content="a"))).sample.error == "cut"


def test_an_error_in_a_stream_is_one() -> None:
    found = read(sse(delta(content="a"), {"error": {"message": "engine died"}}), DONE)

    assert found.sample.error == "in stream"
    assert "engine died" in str(found.sample.detail)


def test_a_stream_without_a_token_is_an_error() -> None:
    assert read(DONE).sample.error == "no tokens"


def test_what_is_not_json_is_an_error() -> None:
    assert read(b"data: {oops\n\n", DONE).sample.error == "not readable"
