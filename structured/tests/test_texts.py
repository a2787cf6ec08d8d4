from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferway_structured.texts import AnswerText, StreamTexts, said_in

_json = msgspec.json.encode


def event(value: Any) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def delta(index: int = 0, **fields: Any) -> bytes:
    return event({"choices": [{"index": index, "delta": fields}]})


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    return {"index": index, "function": {"name": name, "arguments": arguments}}


def read(*pieces: bytes, max_chars: int = 1000) -> list[AnswerText] | None:
    texts = StreamTexts(max_chars)
    for piece in pieces:
        texts.feed(piece)
    return texts.said()


def test_a_whole_chat_says_each_choices_content_and_not_what_was_reasoned_before() -> None:
    body = _json(
        {
            "choices": [
                {"index": 0, "message": {"content": "{}", "reasoning": "hm"}},
                {"index": 1, "message": {"content": "[]"}},
            ]
        }
    )

    assert said_in(body) == [AnswerText("{}"), AnswerText("[]")]


def test_a_call_says_its_arguments_and_empty_content_beside_it_nothing() -> None:
    message = {
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}],
    }

    assert said_in(_json({"choices": [{"message": message}]})) == [AnswerText('{"a":1}', "f")]


def test_a_chat_without_an_answer_says_an_empty_text() -> None:
    body = _json({"choices": [{"message": {"content": None, "reasoning": "and on and on"}}]})

    assert said_in(body) == [AnswerText("")]


def test_a_completion_says_each_choices_text() -> None:
    assert said_in(_json({"choices": [{"text": "a"}, {"text": "b"}]})) == [
        AnswerText("a"),
        AnswerText("b"),
    ]


def test_a_response_says_its_messages_and_calls() -> None:
    output = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "{}"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
    ]

    assert said_in(_json({"output": output})) == [AnswerText("{}"), AnswerText("{}", "f")]


DEEP = b'{"choices":[{"message":{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"data":[]}', b'{"error":{}}', DEEP])
def test_what_is_no_answer_says_nothing(body: bytes) -> None:
    assert said_in(body) is None


def test_a_streamed_chat_is_put_together_by_choice() -> None:
    pieces = [
        delta(role="assistant", content=""),
        delta(reasoning="hm"),
        delta(content='{"a"'),
        delta(1, content="[]"),
        delta(content=":1}"),
        b"data: [DONE]\n\n",
    ]

    assert read(*pieces) == [AnswerText('{"a":1}'), AnswerText("[]")]


def test_streamed_calls_are_put_together_by_index() -> None:
    pieces = [
        delta(content=""),
        delta(tool_calls=[call(0, "", "f")]),
        delta(tool_calls=[call(0, '{"a"'), call(1, "{}", "g")]),
        delta(tool_calls=[call(0, ":1}")]),
    ]

    assert read(*pieces) == [AnswerText('{"a":1}', "f"), AnswerText("{}", "g")]


def test_a_stream_may_be_cut_anywhere() -> None:
    whole = delta(content="a") + b": comment\n\n" + delta(content="b") + b"data: [DONE]\n\n"

    for cut in range(len(whole)):
        assert read(whole[:cut], whole[cut:]) == [AnswerText("ab")], cut


def test_a_streamed_response_is_read_from_its_last_event() -> None:
    response = {"output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}]}
    pieces = [
        event({"type": "response.output_text.delta", "delta": "x"}),
        b"event: response.completed\n"
        + event({"type": "response.completed", "response": response}),
    ]

    assert read(*pieces) == [AnswerText("x")]


def test_a_stream_that_broke_says_nothing() -> None:
    assert read(delta(content="a"), event({"error": {"message": "lost"}})) is None


def test_a_stream_that_is_not_to_be_read_says_nothing() -> None:
    assert read(b"data: " + DEEP + b"\n\n", delta(content="a")) is None


def test_a_stream_that_never_began_says_nothing() -> None:
    assert read(b"data: [DONE]\n\n") is None


def test_of_a_text_that_is_too_long_nothing_is_kept() -> None:
    texts = StreamTexts(max_chars=5)
    texts.feed(delta(content="abc"))
    assert not texts.failed
    texts.feed(delta(content="def"))

    assert texts.failed
    assert texts.said() is None


def test_an_anthropic_message_says_its_text_and_what_its_tools_are_handed() -> None:
    text = {"type": "text", "text": "{}"}
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Rome"}}

    assert said_in(_json({"type": "message", "content": [text]})) == [AnswerText("{}")]
    assert said_in(_json({"type": "message", "content": [call]})) == [
        AnswerText('{"city":"Rome"}', "weather")
    ]


def test_an_anthropic_stream_says_the_same() -> None:
    block = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    pieces = [
        event({"type": "message_start", "message": {"role": "assistant", "content": []}}),
        event({"type": "content_block_start", "index": 1, "content_block": block}),
        *(
            event({"type": "content_block_delta", "index": 1, "delta": {"partial_json": part}})
            for part in ('{"city":', '"Rome"}')
        ),
        event({"type": "message_stop"}),
    ]
    texts = [{"type": "text_delta", "text": "{"}, {"type": "text_delta", "text": "}"}]

    assert read(*pieces) == [AnswerText('{"city":"Rome"}', "weather")]
    assert read(
        *(event({"type": "content_block_delta", "index": 0, "delta": text}) for text in texts)
    ) == [AnswerText("{}")]
