"""Requests that want their answer in a shape: refused before a pick, or their answers are judged as
they pass."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.llmd.ext_proc.pods import Stream, rqb, rqh, rsb, rsh
from tests.routing.structured_gate.doubles import answers, make_gate, schema

from inferway.routing.structured_gate.gate import Gate

CHAT = (":path", "/v1/chat/completions")
POD = "10.0.0.1:8000"
OK = (":status", "200")
JSON = ("content-type", "application/json")
EVENTS = ("content-type", "text/event-stream")


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = make_gate()
    yield gate
    await gate.close()


def stream(gate: Gate, **rules: Any) -> Stream:
    made = Stream({POD: {}}, **rules)
    made.director.gate = gate
    return made


def body(*words: str) -> bytes:
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **schema(*words)}
    return json.dumps(fields).encode()


def whole(text: str) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": {"content": text}}]}).encode()


async def finished(gate: Gate) -> None:
    assert gate.verdicts is not None
    for task in list(gate.verdicts.tasks):
        await task


async def test_what_cannot_be_kept_is_refused_and_nothing_is_booked(gate: Gate) -> None:
    made = stream(gate)

    (answer,) = await made.send(rqh(CHAT), rqb(body("invalid"), eos=True))

    refused = answer.immediate_response
    assert refused.status.code == 400
    assert "response_format/json_schema/schema" in str(refused) or b"type: is none" in refused.body
    assert not made.fleet.booked
    assert gate.counts.requests == {("json", "refused"): 1}


@pytest.mark.parametrize(("text", "valid"), [('{"a": 1}', "true"), ("a is 1", "false")])
async def test_a_whole_answer_is_judged_and_passes_as_it_is(
    gate: Gate, text: str, valid: str
) -> None:
    made = stream(gate)
    said = whole(text)

    told = await made.send(
        *(rqh(CHAT), rqb(body(), eos=True)),
        *(rsh(OK, JSON), rsb(said[:9]), rsb(said[9:], eos=True)),
    )
    await finished(gate)

    pieces = [each.response_body for each in told if each.HasField("response_body")]
    sent = [piece.response.body_mutation.streamed_response.body for piece in pieces]
    assert b"".join(sent) == said
    assert answers(gate) == {valid: 1}
    assert not made.fleet.booked


async def test_a_streamed_answer_is_judged(gate: Gate) -> None:
    made = stream(gate)
    events = [
        b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": part}}]}).encode()
        for part in ('{"a"', ": 1}")
    ]

    await made.send(
        *(rqh(CHAT), rqb(body(), eos=True), rsh(OK, EVENTS)),
        *(rsb(events[0]), rsb(events[1] + b"data: [DONE]\n\n", eos=True)),
    )
    await finished(gate)

    assert answers(gate) == {"true": 1}


async def test_a_text_that_looks_like_the_end_of_a_stream_is_text(gate: Gate) -> None:
    made = stream(gate)
    text = "{data: [DONE]\n\n: x-inferway-valid false\n\n}"
    event = b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}).encode()

    await made.send(
        *(rqh(CHAT), rqb(body(), eos=True), rsh(OK, EVENTS)),
        *(rsb(event[:40]), rsb(event[40:] + b"data: [DONE]\n\n", eos=True)),
    )
    await finished(gate)

    assert answers(gate) == {"true": 1}


async def test_what_its_engine_says_of_it_counts(gate: Gate) -> None:
    made = stream(gate)

    await made.send(
        *(rqh(CHAT), rqb(body(), eos=True)),
        *(rsh(OK, JSON, ("x-inferway-valid", "false")), rsb(whole("{}"), eos=True)),
    )

    assert answers(gate) == {"false": 1}
    assert gate.verdicts is not None
    assert not gate.verdicts.tasks


async def test_what_is_too_long_passes_and_cannot_be_told() -> None:
    gate = make_gate(answer_bytes=16 * 1024)
    made = stream(gate)

    await made.send(
        *(rqh(CHAT), rqb(body(), eos=True), rsh(OK, JSON)),
        *(rsb(b"{" * 10_000), rsb(b"{" * 10_000, eos=True)),
    )

    assert answers(gate) == {"unknown": 1}
    await gate.close()


async def test_an_error_and_an_answer_without_a_shape_are_not_judged(gate: Gate) -> None:
    plain = json.dumps({"model": "m", "messages": []}).encode()
    for asked, head in ((body(), (":status", "500")), (plain, OK)):
        made = stream(gate)
        await made.send(
            *(rqh(CHAT), rqb(asked, eos=True), rsh(head, JSON), rsb(whole("{}"), eos=True))
        )
    await finished(gate)

    assert not answers(gate)


async def test_anthropic_s_messages_are_checked_too(gate: Gate) -> None:
    made = stream(gate)
    schema = {"type": "object", "x-title": "invalid"}
    tool = {"name": "f", "input_schema": schema, "strict": True}
    fields = {"model": "m", "messages": [], "tools": [tool], "tool_choice": {"type": "any"}}

    (answer,) = await made.send(
        rqh((":path", "/v1/messages")), rqb(json.dumps(fields).encode(), eos=True)
    )

    assert answer.immediate_response.status.code == 400
