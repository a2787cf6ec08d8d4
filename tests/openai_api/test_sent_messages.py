"""A stream of /v1/messages is cut, and another engine goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.openai_api.sent_messages import RestMessages, SentMessages
from inferway.openai_api.sent_stream import Cut

PROMPT = [1, 2, 3]


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, separators=(",", ":"), ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


START = event("message_start", message={"id": "x", "usage": {"input_tokens": 3}})
BLOCK = event("content_block_start", content_block={"type": "text", "text": ""}, index=0)
END = event("content_block_stop", index=0)
STOP = event("message_stop")


def delta(text: str) -> bytes:
    return event("content_block_delta", delta={"type": "text_delta", "text": text}, index=0)


def closing(made: int, prompt: int = 3) -> bytes:
    usage = {"input_tokens": prompt, "output_tokens": made, "cache_read_input_tokens": 0}
    return event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


@given(
    st.lists(st.text(st.sampled_from('ab\n"\\é東🚀'), min_size=1, max_size=3), max_size=150),
    st.data(),
)
def test_the_client_gets_the_events_of_one_engine(texts: list[str], draw: st.DataObject) -> None:
    number = draw.draw(st.integers(0, len(texts)))
    sent = SentMessages()
    first = [START, *([BLOCK] if number else []), *map(delta, texts[:number])]

    passed = [sent.feed(each) for each in first]
    cut = sent.cut(PROMPT, encode, decode)

    assert passed == first
    assert cut is not None
    assert decode(json.loads(b"[%b]" % cut.ids)) == "".join(texts[:number])
    made, left = cut.num_ids, sum(map(len, texts[number:]))
    rest = RestMessages(cut, has_block=sent.has_block)
    body = [BLOCK, *map(delta, texts[number:]), END] if texts[number:] else []
    told = b"".join(map(rest.feed, [START, *body, closing(left, 3 + made), STOP]))
    text = [BLOCK, *map(delta, texts), END] if texts else []
    assert b"".join(passed) + told == b"".join([START, *text, closing(made + left), STOP])


def test_a_call_behind_the_text_has_a_block_of_its_own() -> None:
    rest = RestMessages(Cut(b"1,2,3", b"4", 1, "", b"{}"), has_block=True)
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    call = event("content_block_start", content_block=block, index=0)
    piece = event("content_block_delta", delta={"type": "input_json_delta"}, index=0)

    told = b"".join(map(rest.feed, [START, call, piece, END, closing(1), STOP]))

    moved = [each.replace(b'"index":0', b'"index":1') for each in (call, piece, END)]
    assert told == b"".join([END, *moved, closing(2), STOP])


def test_what_came_before_an_error_can_be_gone_on_with() -> None:
    error = event("error", error={"type": "internal_error", "message": "gone"})
    sent = SentMessages()

    assert sent.feed(START + BLOCK + delta("a") + error) == START + BLOCK + delta("a")
    assert sent.is_broken
    assert sent.cut(PROMPT, encode, decode) is not None
    assert sent.give_up() == error


@pytest.mark.parametrize(
    "events",
    [
        [BLOCK.replace(b'"text"', b'"thinking"', 1)],
        [BLOCK, delta("a"), END],
        [BLOCK, delta("a"), END, closing(1)],
        [BLOCK, *[event("content_block_delta", delta={"type": "input_json_delta"}, index=0)] * 200],
    ],
)
def test_what_is_not_one_text_is_not_gone_on_with(events: list[bytes]) -> None:
    sent = SentMessages()
    for each in (START, *events):
        sent.feed(each)

    assert sent.cut(PROMPT, encode, decode) is None


def test_a_text_that_is_not_the_text_of_its_tokens_is_not_gone_on_with() -> None:
    sent = SentMessages()
    for each in (START, BLOCK, delta("a")):
        sent.feed(each)

    assert sent.cut(PROMPT, encode, lambda _: "b") is None
