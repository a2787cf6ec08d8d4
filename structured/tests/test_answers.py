"""Answers as they pass: what is held back, what they say, what is known without a judgement."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_structured.answers import AnswerJudge
from inferway_structured.texts import AnswerText

JSON = [(b"content-type", b"application/json")]
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
DONE = b"data: [DONE]\n\n"
LOOKALIKE = "data: [DONE]\n\n: x-inferway-valid false\n\n"
WORD = b": x-inferway-valid true\n\n"


def delta(text: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


def whole(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


class Judged:
    """One answer and what was counted of it."""

    def __init__(self, *, reports: bool = False, most: int = 1000) -> None:
        self.counted: list[bool | None] = []
        self.judge = AnswerJudge(most, most, count=self.counted.append, reports=reports)


@pytest.mark.parametrize("reports", [True, False])
@given(st.sets(st.integers(0, 300)))
def test_wherever_a_stream_is_cut_it_passes_with_a_word_before_its_end(
    reports: bool, places: set[int]
) -> None:
    answer = delta("a") + b": comment\n\n" + delta(LOOKALIKE) + DONE
    borders = [0, *sorted(place for place in places if place < len(answer)), len(answer)]
    found = Judged(reports=reports)
    judge = found.judge
    judge.start(200, STREAM)

    passed = [judge.feed(answer[a:b]) for a, b in pairwise(borders)]
    said = judge.said()
    rest = judge.rest(b"true")

    assert said == [AnswerText("a" + LOOKALIKE)]
    word = WORD if reports else b""
    assert b"".join(passed) + rest == answer.removesuffix(DONE) + word + DONE
    assert found.counted == []


@pytest.mark.parametrize("kind", [JSON, STREAM])
def test_a_compressed_answer_passes_and_cannot_be_judged(kind: list[tuple[bytes, bytes]]) -> None:
    found = Judged(reports=True)
    found.judge.start(200, [*kind, (b"content-encoding", b"gzip")])

    assert found.judge.feed(b"\x1f\x8b") == b"\x1f\x8b"
    assert not found.judge.is_read
    assert found.counted == [None]


def test_a_whole_answer_is_held_back_until_it_is_judged() -> None:
    judge = Judged().judge
    judge.start(200, JSON)

    assert judge.holds_all
    assert judge.feed(whole("{}")) == b""
    assert judge.said() == [AnswerText("{}")]
    assert judge.rest(b"true") == whole("{}")
    assert not judge.is_read


@pytest.mark.parametrize("length", [None, 2000])
def test_a_whole_answer_that_is_too_long_passes_and_cannot_be_told(length: int | None) -> None:
    found = Judged()
    found.judge.start(200, JSON, length)

    passed = [found.judge.feed(b"{" * 800) for _ in range(2)]

    assert b"".join(passed) == b"{" * 1600
    assert found.counted == [None]
    assert not found.judge.is_read


@pytest.mark.parametrize(("told", "valid"), [(b"true", True), (b"false", False), (b"x", None)])
def test_the_word_of_its_engine_counts(told: bytes, valid: bool | None) -> None:
    in_head, in_stream = Judged(), Judged(reports=True)
    in_head.judge.start(200, [*JSON, (b"x-inferway-valid", told)])
    in_stream.judge.start(200, STREAM)

    passed = in_stream.judge.feed(delta("a") + b": x-inferway-valid %b\n\n" % told + DONE + b"dat")

    assert passed == delta("a") + b": x-inferway-valid %b\n\n" % told + DONE + b"dat"
    assert in_head.counted == in_stream.counted == [valid]
    assert not in_head.judge.is_read
    assert not in_stream.judge.is_read


@pytest.mark.parametrize(
    ("status", "headers"), [(500, JSON), (400, STREAM), (200, [(b"content-type", b"text/html")])]
)
def test_an_error_and_what_is_no_answer_is_not_read(
    status: int, headers: list[tuple[bytes, bytes]]
) -> None:
    found = Judged()
    found.judge.start(status, headers)

    assert not found.judge.is_read
    assert found.judge.feed(b"anything") == b"anything"
    assert found.counted == []


def test_a_stream_that_cannot_be_judged_says_so_or_nothing() -> None:
    for word, told in ((b"unknown", b": x-inferway-valid unknown\n\n"), (None, b"")):
        judge = Judged(reports=True, most=3).judge
        judge.start(200, STREAM)
        judge.feed(delta("a long text"))

        assert judge.said() is None
        assert judge.rest(word) == told
