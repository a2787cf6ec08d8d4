"""How many tokens an engine says it took, made and had cached, read as the answer passes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.openai_api.usage import Usage, UsageReader

CHAT_USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 7,
    "total_tokens": 47,
    "prompt_tokens_details": {"cached_tokens": 32},
}
RESPONSE_USAGE = {
    "input_tokens": 40,
    "output_tokens": 7,
    "total_tokens": 47,
    "input_tokens_details": {"cached_tokens": 32, "cached_tokens_per_turn": []},
    "output_tokens_details": {"reasoning_tokens": 0},
}
MESSAGES_USAGE = {"input_tokens": 8, "output_tokens": 7, "cache_read_input_tokens": 32}
TOLD = Usage(40, 7, 32)
# What a model or a client may say.
LIE = '{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}\ndata: {"usage":{"prompt_tokens":1}}'
SCHEMA = {"properties": {"usage": {"type": "object", "prompt_tokens": 1, "input_tokens": 1}}}
NESTED = {"usage": {"prompt_tokens": 1, "input_tokens": 1}}


def encode(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


def stream(*events: bytes) -> bytes:
    return b"".join([b"data: " + event + b"\n\n" for event in (*events, b"[DONE]")])


def response(**fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": "f", "parameters": SCHEMA}]
    return {"id": "r", "output": [LIE], "tools": tools, "metadata": NESTED, **fields}


DELTA = encode(choices=[{"delta": {"content": LIE}}], metadata=NESTED)
ANSWERS = {
    "chat": encode(
        choices=[{"message": {"content": LIE, "parsed": NESTED}}],
        usage=CHAT_USAGE,
        prompt_logprobs=None,
        kv_transfer_params={"usage": {"prompt_tokens": 3}},
        prompt_token_ids=list(range(1000)),
    ),
    "stream": b": comment\n\n"
    + stream(DELTA, DELTA, encode(choices=[], usage=CHAT_USAGE, nested=NESTED)),
    "stream with the usage all along": stream(
        *[encode(choices=[], usage={**CHAT_USAGE, "completion_tokens": n}) for n in range(8)]
    ),
    "crlf": stream(DELTA, encode(choices=[], usage=CHAT_USAGE)).replace(b"\n", b"\r\n"),
    "messages": encode(
        content=[{"type": "text", "text": LIE}], model="m", usage=MESSAGES_USAGE, nested=NESTED
    ),
    "messages' stream": b"event: content_block_delta\ndata: %b\n\n" % encode(delta={"text": LIE})
    + b"event: message_delta\ndata: %b\n\n" % encode(delta={}, usage=MESSAGES_USAGE)
    + b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "response": encode(**response(usage=RESPONSE_USAGE, user=None)),
    "response's stream": stream(
        encode(type="response.created", response=response(usage=None)),
        encode(type="response.output_text.delta", delta=LIE),
        encode(type="response.completed", response=response(usage=RESPONSE_USAGE, user="u"), n=1),
    ).replace(b"data: {", b"event: e\ndata: {"),
}


GOLDEN = Path(__file__).parents[1] / "golden"
REAL = json.loads((GOLDEN / "vllm" / "responses.json").read_text())
MESSAGES = json.loads((GOLDEN / "openai_api" / "vllm_messages.json").read_text())


def read(*chunks: bytes) -> Usage | None:
    reader = UsageReader()
    for chunk in chunks:
        reader.feed(chunk)
    return reader.usage()


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_figures_are_read_from_every_kind_of_answer(kind: str) -> None:
    assert read(ANSWERS[kind]) == TOLD


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 4000), max_size=12))
def test_it_does_not_matter_where_chunks_are_cut(kind: str, cuts: list[int]) -> None:
    answer = ANSWERS[kind]
    edges = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]

    assert read(*[answer[a:b] for a, b in itertools.pairwise(edges)]) == TOLD


def test_a_real_vllms_responses_are_read() -> None:
    assert read(json.dumps(REAL["whole"]).encode()) == Usage(33, 4, 0)
    assert read(REAL["stream"].encode()) == Usage(33, 3, 32)


def test_so_are_its_answers_to_messages() -> None:
    for kind, output, reason in (("text", 3, "length"), ("agent", 7, "tool_calls")):
        whole, stream = json.dumps(MESSAGES[kind]["whole"]), MESSAGES[kind]["stream"]
        for answer in (whole.encode(), stream.encode()):
            reader = UsageReader()
            reader.feed(answer)

            assert reader.usage() == Usage(40, output, 16)
            assert reader.finish_reasons() == [reason]


def test_a_stream_of_messages_says_at_once_how_long_its_prompt_is() -> None:
    begun = MESSAGES["text"]["stream"].partition("event: content_block_start")[0].encode()

    assert read(begun) == Usage(40, 0, None)


def test_a_stop_string_of_a_client_is_no_reason_of_anthropics() -> None:
    reader = UsageReader()
    reader.feed(b'{"choices":[{"finish_reason":"stop","stop_reason":"max_tokens"}]}')

    assert reader.finish_reasons() == ["stop"]


@pytest.mark.parametrize("kind", ANSWERS)
def test_single_bytes_will_do(kind: str) -> None:
    assert read(*[bytes([byte]) for byte in ANSWERS[kind]]) == TOLD


@pytest.mark.parametrize("kind", ANSWERS)
def test_all_along_the_way_it_says_nothing_that_the_engine_has_not(kind: str) -> None:
    reader, answer = UsageReader(), ANSWERS[kind]
    said = {None, TOLD}
    if kind == "stream with the usage all along":
        said |= {Usage(40, n, 32) for n in range(8)}

    for start in range(0, len(answer), 50):
        reader.feed(answer[start : start + 50])

        assert reader.usage() in said


@pytest.mark.parametrize("spaces", [0, 2])
def test_a_long_answer_is_read_from_its_end(spaces: int) -> None:
    text = LIE * 20_000  # 1.7 MB
    body = encode(choices=[{"message": {"content": text}}], metadata=NESTED, usage=CHAT_USAGE)
    event = encode(type="response.completed", response=response(text=text, usage=RESPONSE_USAGE))
    if spaces:
        body, event = (msgspec.json.format(raw, indent=0) for raw in (body, event))

    for answer in (body, stream(DELTA, event)):
        pieces = [answer[i : i + 65_536] for i in range(0, len(answer), 65_536)]

        assert read(*pieces) == TOLD
        assert read(answer) == TOLD


def test_it_keeps_no_more_than_twice_the_end_that_it_reads() -> None:
    reader = UsageReader()

    for _ in range(10_000):
        reader.feed(b"data: " + DELTA + b"\n\n")

    assert sum(map(len, reader._pieces)) <= 64 * 1024


def test_an_engine_may_not_tell_what_was_cached() -> None:
    bare = {"prompt_tokens": 4, "total_tokens": 4, "prompt_tokens_details": None}

    assert read(encode(data=[{"embedding": [0.5]}], usage=bare)) == Usage(4, 0, None)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        stream(DELTA, DELTA),
        stream(DELTA, encode(choices=[], usage=None)),
        encode(choices=[{"message": {"content": LIE}}], metadata=NESTED, tools=[SCHEMA]),
        encode(error={"message": LIE, "usage": CHAT_USAGE}),
        encode(content="usage", usage="none"),
        b'{"usage": {"prompt_tokens": 4',
        b"\xff\xfe" * 40,
        stream(encode(type="response.created", response=response(usage=None))),
        stream(encode(type="response.failed", response="usage")),
        b'{"usage": ' + b'{"usage": ' * 3_000 + b"1" + b"}" * 3_001,
        stream(b'{"usage": ' + b'{"usage": ' * 3_000 + b"1" + b"}" * 3_001),
    ],
)
def test_what_is_not_the_engines_count_is_not_taken_for_it(answer: bytes) -> None:
    assert read(answer) is None


@given(st.text(max_size=300), st.integers(1, 40))
def test_no_generated_text_is_taken_for_it(text: str, size: int) -> None:
    said = text + LIE
    for answer in (
        encode(choices=[{"message": {"content": said}}]),
        stream(encode(choices=[{"delta": {"content": said}}])),
    ):
        assert read(*[answer[i : i + size] for i in range(0, len(answer), size)]) is None


@pytest.mark.parametrize("first_bytes", [120, 10_000])
def test_a_usage_before_long_answers_is_read(first_bytes: int) -> None:
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 200_000,
        "prompt_tokens_details": {"cached_tokens": 3, "created_cache_tokens": None},
    }
    choices = [{"index": i, "token_ids": [12345] * 50_000} for i in range(4)]
    fields = {"request_id": "g", "model": "m", "created": 1, "usage": usage, "choices": choices}
    answer = msgspec.json.encode(fields)
    reader = UsageReader()
    reader.feed(answer[:first_bytes])
    for start in range(first_bytes, len(answer), 10_000):
        reader.feed(answer[start : start + 10_000])

    whole_usage = first_bytes > len(msgspec.json.encode(usage)) + 60

    assert reader.usage() == (Usage(7, 200_000, 3) if whole_usage else None)


def test_a_usage_within_what_is_nested_is_not_the_answer_s() -> None:
    reader = UsageReader()
    reader.feed(b'{"metadata":{"usage":{"prompt_tokens":7,"completion_tokens":1}},"choices":[')
    for _ in range(60):
        reader.feed(b"1," * 10_000)

    assert reader.usage() is None
