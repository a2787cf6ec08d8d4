"""A stream of /v1/messages is cut, and another engine goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import SeamError
from inferway.openai_api.sent_messages import (
    TEXT,
    THINKING,
    LastBlock,
    RestMessages,
    SentMessages,
    ThoughtMarks,
    thought_marks,
)
from inferway.openai_api.sent_stream import Cut

PROMPT = [1, 2, 3]
OPEN, CLOSE = 0x110001, 0x110002  # no characters
MARKS = {"<think>": [OPEN], "</think>": [CLOSE]}


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, separators=(",", ":"), ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def begun(kind: str, index: int) -> bytes:
    return event("content_block_start", content_block={"type": kind, kind: ""}, index=index)


def ended(index: int) -> bytes:
    return event("content_block_stop", index=index)


def piece(kind: str, text: str, index: int) -> bytes:
    delta = {"type": f"{kind}_delta", kind: text}
    return event("content_block_delta", delta=delta, index=index)


def signed(index: int) -> bytes:
    return piece("signature", "5193", index)


START = event("message_start", message={"id": "x", "usage": {"input_tokens": 3}})
BLOCK = begun("text", 0)
END = ended(0)
STOP = event("message_stop")


def delta(text: str) -> bytes:
    return piece("text", text, 0)


def closing(made: int, prompt: int = 3, cached: int = 0) -> bytes:
    usage = {"input_tokens": prompt, "output_tokens": made, "cache_read_input_tokens": cached}
    return event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)


def encode(text: str) -> list[int]:
    return MARKS.get(text) or [ord(letter) for letter in text]


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


TEXTS = st.lists(st.text(st.sampled_from('ab\n"\\é東🚀'), min_size=1, max_size=3), max_size=150)


@given(TEXTS, st.data())
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
    rest = RestMessages(cut, sent.block)
    body = [BLOCK, *map(delta, texts[number:]), END] if texts[number:] else []
    told = b"".join(map(rest.feed, [START, *body, closing(left, 3 + made), STOP]))
    text = [BLOCK, *map(delta, texts), END] if texts else []
    assert b"".join(passed) + told == b"".join([START, *text, closing(made + left), STOP])


def streamed(thought: Sequence[str], text: Sequence[str], made: int, prompt: int) -> list[bytes]:
    """What an engine sends that says this, each event by itself."""
    parts = []
    if thought:
        parts += [begun("thinking", 0), *[piece("thinking", each, 0) for each in thought]]
        parts += [signed(0), ended(0)]
    index = 1 if thought else 0
    if text:
        parts += [begun("text", index), *[piece("text", each, index) for each in text]]
        parts += [ended(index)]
    return [START, *parts, closing(made, prompt), STOP]


def without_signatures(events: bytes) -> bytes:
    return re.sub(rb'"signature":"[0-9a-f]*"', b'"signature":""', events)


@given(TEXTS, TEXTS, st.booleans(), st.data())
def test_a_thought_and_the_text_behind_it_are_those_of_one_engine(
    thought: list[str], text: list[str], is_open: bool, draw: st.DataObject
) -> None:
    """Each character is a token, and so is each mark; `is_open`: the prompt ends with the first."""
    tokens = [] if is_open or not thought else [OPEN]
    tokens += [*encode("".join(thought)), *([CLOSE] if thought else []), *encode("".join(text))]
    prompt = [*PROMPT, OPEN] if is_open else PROMPT
    whole = streamed(thought, text, len(tokens), len(prompt))
    lost_at = draw.draw(st.integers(1, len(whole) - 2))
    sent = SentMessages()

    passed = b"".join([sent.feed(each) for each in whole[:lost_at]])
    cut = sent.cut(prompt, encode, decode)

    if whole[lost_at - 1].startswith(b"event: content_block_stop") and sent.block.number == (
        1 if thought else 0
    ):
        assert cut is None or not text
        if cut is None:
            return
    assert cut is not None
    kept = json.loads(b"[%b]" % cut.ids)
    assert kept == tokens[: cut.num_ids]
    left = tokens[cut.num_ids :]
    at = left.index(CLOSE) if CLOSE in left else 0
    told = decode([each for each in left[:at] if each != OPEN])
    said = decode(left[at + 1 :] if CLOSE in left else left)
    rest = RestMessages(cut, sent.block)
    for each in streamed([*told], [*said], len(left), len(prompt) + cut.num_ids):
        passed += rest.feed(each)
    letters = streamed([*"".join(thought)], [*"".join(text)], len(tokens), len(prompt))
    assert told_by(passed) == told_by(b"".join(letters))


def told_by(events: bytes) -> list[Any]:
    """What a client is told, the pieces of a block put together."""
    found: list[Any] = []
    for each in without_signatures(events).split(b"\n\n")[:-1]:
        data = json.loads(each.partition(b"data: ")[2])
        pieces = data.get("delta", {})
        kind = pieces.get("type", "").removesuffix("_delta")
        if found and kind in ("text", "thinking") and found[-1]["type"] == data["type"]:
            found[-1]["delta"][kind] += pieces[kind]
        else:
            found.append(data)
    return found


def test_a_call_behind_the_text_has_a_block_of_its_own() -> None:
    rest = RestMessages(Cut(b"1,2,3", b"4", 1, "", b"{}"), LastBlock(0, TEXT))
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    call = event("content_block_start", content_block=block, index=0)
    part = event("content_block_delta", delta={"type": "input_json_delta"}, index=0)

    told = b"".join(map(rest.feed, [START, call, part, END, closing(1), STOP]))

    moved = [each.replace(b'"index":0', b'"index":1') for each in (call, part, END)]
    assert told == b"".join([END, *moved, closing(2), STOP])


@pytest.mark.parametrize(
    "block", [LastBlock(0, TEXT), LastBlock(0, THINKING, is_signed=True), LastBlock(0)]
)
def test_an_engine_that_takes_the_text_for_a_thought_does_not_go_on(block: LastBlock) -> None:
    rest = RestMessages(Cut(b"1,2,3", b"4", 1, "", b"{}"), block)

    assert rest.feed(START) == b""
    with pytest.raises(SeamError, match="thought"):
        rest.feed(begun("thinking", 0))


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
        [begun("tool_use", 0)],
        [BLOCK, delta("a"), END],
        [BLOCK, delta("a"), END, closing(1)],
        [BLOCK, delta("a"), END, begun("thinking", 1)],
        [begun("thinking", 0), delta("a")],
        [begun("thinking", 0), piece("thinking", "a", 0), END, begun("tool_use", 1)],
        [BLOCK, *[event("content_block_delta", delta={"type": "input_json_delta"}, index=0)] * 200],
    ],
)
def test_what_is_not_a_text_behind_a_thought_is_not_gone_on_with(events: list[bytes]) -> None:
    sent = SentMessages()
    for each in (START, *events):
        sent.feed(each)

    assert sent.cut(PROMPT, encode, decode) is None


def test_a_text_that_is_not_the_text_of_its_tokens_is_not_gone_on_with() -> None:
    sent = SentMessages()
    for each in (START, BLOCK, delta("a")):
        sent.feed(each)

    assert sent.cut(PROMPT, encode, lambda _: "b") is None


def test_a_thought_is_not_gone_on_with_where_no_token_begins_one() -> None:
    sent = SentMessages()
    for each in (START, begun("thinking", 0), piece("thinking", "a", 0)):
        sent.feed(each)

    assert thought_marks(lambda text: [ord(letter) for letter in text]) is None
    assert sent.cut(PROMPT, lambda text: [ord(letter) for letter in text], decode) is None


def test_a_thought_is_open_behind_the_last_of_its_marks() -> None:
    marks = ThoughtMarks(OPEN, CLOSE)

    assert [marks.is_open(ids) for ids in ([], [1], [OPEN, 1], [OPEN, CLOSE, 1])] == [
        *(False, False, True, False)
    ]


def test_the_usage_tells_what_the_first_engine_had_in_its_cache() -> None:
    rest = RestMessages(Cut(b"1,2,3", b"4", 1, "", b"{}"), LastBlock(0, TEXT), num_cached=2)

    assert rest.feed(closing(5, prompt=0, cached=4)) == END + closing(6, prompt=1, cached=2)
