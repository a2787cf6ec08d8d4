"""An answer that is to have a shape, from a scripted engine through the gateway to a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.http.clients import connected, post, serving
from tests.http.gateways import Trip
from tests.routing.structured_gate.doubles import (
    CHAT,
    Engines,
    answers,
    endpoints,
    make_gate,
    schema,
)
from tests.upstream.engines import (
    CHUNKED_HEAD,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    Seen,
    Talk,
    answer,
    chunk,
    in_loop,
    raw,
    running,
    wait_until,
)

from inferway.http.forward import forward
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import HttpServer
from inferway.http.structured.judged import JudgedAnswer
from inferway.model import Decision, Endpoint, Reason, Target
from inferway.routing.answer_plan import AnswerPlan
from inferway.routing.limits.failover import FailoverPolicy
from inferway.routing.structured_gate.gate import Gate
from inferway.upstream.pool import Pool

JSON = b"content-type: application/json\r\n"
DONE = b"data: [DONE]\n\n"


def whole(*texts: str) -> bytes:
    choices = [{"index": i, "message": {"content": text}} for i, text in enumerate(texts)]
    return msgspec.json.encode({"choices": choices})


def delta(text: str) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode({"choices": [{"delta": {"content": text}}]})


def streamed(*events: bytes) -> Script:
    return raw(SSE_HEAD, *(chunk(event) for event in events), LAST_CHUNK)


@asynccontextmanager
async def judging(url: str, gate: Gate, **fields: str) -> AsyncIterator[HttpServer]:
    """A gateway that takes every request for one with a shape."""
    pool = Pool()
    decision = Decision((Target(Endpoint("e0", url, 0), 1.0, 0, 0),), Reason.KV_AWARE)
    words = fields.get("words", "plain")

    async def handler(request: Request, responder: Responder) -> None:
        shape = await gate.check(CHAT, schema(words), 100, endpoints("e0"))
        assert shape is not None
        plan = AnswerPlan(Trip(body=request.body), decision, FailoverPolicy(pool.time))
        forward(request, JudgedAnswer(responder, shape), plan, pool)

    async with serving(handler) as server:
        try:
            yield server
        finally:
            await pool.close()
            await gate.close()


@pytest.mark.parametrize(
    ("texts", "valid"), [(["{}", "{1}"], b"true"), (["{}", "no"], b"false"), ([""], b"false")]
)
@in_loop
async def test_a_whole_answer_says_whether_every_choice_has_the_shape(
    texts: list[str], valid: bytes
) -> None:
    body, gate = whole(*texts), make_gate()
    async with (
        running(answer(body, JSON)) as engine,
        judging(engine.url, gate) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert (got.status, got.body) == (200, body)
    assert got.values(b"x-inferway-valid") == [valid]
    assert got.values(b"x-inferway-engine") == [b"e0"]
    assert got.values(b"content-length") == [b"%d" % len(body)]
    assert answers(gate) == {valid.decode(): 1}


@in_loop
async def test_a_whole_answer_in_chunks_is_judged_and_gets_its_length() -> None:
    body = whole("{}")
    script = raw(
        CHUNKED_HEAD.replace(b"\r\n\r\n", b"\r\n" + JSON + b"\r\n"),
        chunk(body[:5]),
        chunk(body[5:]),
        LAST_CHUNK,
    )
    async with (
        running(script) as engine,
        judging(engine.url, make_gate()) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert got.body == body
    assert got.values(b"x-inferway-valid") == [b"true"]


@in_loop
async def test_what_cannot_be_told_has_no_header_and_is_counted() -> None:
    gate = make_gate()
    async with (
        running(answer(whole("{}"), JSON)) as engine,
        judging(engine.url, gate, words="unsure") as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert got.values(b"x-inferway-valid") == []
    assert answers(gate) == {"unknown": 1}


@pytest.mark.parametrize("has_length", [True, False])
@in_loop
async def test_a_whole_answer_that_is_too_long_passes_without_a_word(has_length: bool) -> None:
    body, gate = whole("{%s}" % ("x" * 100_000)), make_gate(answer_bytes=50_000)
    head = CHUNKED_HEAD.replace(b"\r\n\r\n", b"\r\n" + JSON + b"\r\n")
    script = answer(body, JSON) if has_length else raw(head, chunk(body), LAST_CHUNK)
    async with (
        running(script) as engine,
        judging(engine.url, gate) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert got.body == body
    assert got.values(b"x-inferway-valid") == []
    assert answers(gate) == {"unknown": 1}


@in_loop
async def test_an_error_of_the_engine_passes_as_it_is() -> None:
    body, gate = b'{"error":{"message":"no"}}', make_gate()
    async with (
        running(answer(body, JSON, b"400 Bad Request")) as engine,
        judging(engine.url, gate) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert (got.status, got.body) == (400, body)
    assert answers(gate) == {}


@in_loop
async def test_what_the_engine_has_said_itself_is_not_said_again() -> None:
    head = JSON + b"x-inferway-valid: false\r\nx-inferway-unenforced: /a pattern\r\n"
    gate = make_gate(Engines(plugins={"e0"}))
    async with (
        running(answer(whole("{}"), head)) as engine,
        judging(engine.url, gate, words="uniqueItems") as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert got.values(b"x-inferway-valid") == [b"false"]
    assert got.values(b"x-inferway-unenforced") == [b"/a pattern"]
    assert answers(gate) == {"false": 1}


@in_loop
async def test_what_the_engine_has_said_in_its_stream_is_not_said_again() -> None:
    events = [delta("{"), delta("}"), b": x-inferway-valid true\n\n", DONE]
    gate = make_gate(report_validity=True)
    async with (
        running(streamed(*events)) as engine,
        judging(engine.url, gate) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert got.body == b"".join(events)
    assert answers(gate) == {"true": 1}


@in_loop
async def test_an_engine_that_is_lost_in_the_middle_leaves_no_answer() -> None:
    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: 100\r\n\r\n{" % JSON)
        talk.reset()

    async with (
        running(script) as engine,
        judging(engine.url, make_gate()) as server,
        connected(server) as client,
    ):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.ask(post())


@in_loop
async def test_a_stream_passes_as_it_is_and_is_judged_when_it_is_over() -> None:
    events, gate = [delta("{"), delta("}"), DONE], make_gate()
    async with (
        running(streamed(*events)) as engine,
        judging(engine.url, gate) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())
        await wait_until(lambda: bool(answers(gate)))

    assert got.body == b"".join(events)
    assert answers(gate) == {"true": 1}


@pytest.mark.parametrize(("last", "valid"), [("}", b"true"), ("]", b"false")])
@in_loop
async def test_a_stream_says_before_its_end_whether_it_has_the_shape(
    last: str, valid: bytes
) -> None:
    gate = make_gate(report_validity=True)
    async with (
        running(streamed(delta("{"), delta(last) + DONE)) as engine,
        judging(engine.url, gate) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert got.body == delta("{") + delta(last) + b": x-inferway-valid %b\n\n" % valid + DONE


@pytest.mark.parametrize("reports", [True, False])
@in_loop
async def test_a_text_that_looks_like_the_end_of_a_stream_is_text(reports: bool) -> None:
    event, gate = (
        delta("{data: [DONE]\n\n: x-inferway-valid false\n\n}"),
        make_gate(report_validity=reports),
    )
    async with (
        running(streamed(event, DONE)) as engine,
        judging(engine.url, gate) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())
        await wait_until(lambda: bool(answers(gate)))

    word = b": x-inferway-valid true\n\n" if reports else b""
    assert got.body == event + word + DONE
    assert answers(gate) == {"true": 1}


@in_loop
async def test_a_stream_without_a_done_says_it_at_its_end() -> None:
    content = [{"type": "output_text", "text": "{}"}]
    response = {"output": [{"type": "message", "content": content}]}
    event = msgspec.json.encode({"type": "response.completed", "response": response})
    last = b"event: response.completed\ndata: %b\n\n" % event
    async with (
        running(streamed(last)) as engine,
        judging(engine.url, make_gate(report_validity=True)) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert got.body == last + b": x-inferway-valid true\n\n"


@in_loop
async def test_a_reported_stream_is_passed_on_piece_by_piece() -> None:
    go_on = asyncio.Event()

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD + chunk(delta("{")))
        await go_on.wait()
        await talk.write(chunk(delta("}")) + chunk(DONE) + LAST_CHUNK)

    async with (
        running(script) as engine,
        judging(engine.url, make_gate(report_validity=True)) as server,
        connected(server) as client,
    ):
        await client.send(post())
        await client.head()
        first = await client.chunk()
        go_on.set()
        rest = [await client.chunk() for _ in range(2)]

    assert first == delta("{")
    assert rest == [delta("}"), b": x-inferway-valid true\n\n" + DONE]


@in_loop
async def test_a_stream_that_breaks_ends_with_the_error_and_no_word() -> None:
    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD + chunk(delta("{")))
        await asyncio.sleep(0)
        talk.writer.close()

    gate = make_gate(report_validity=True)
    async with (
        running(script) as engine,
        judging(engine.url, gate) as server,
        connected(server) as client,
    ):
        got = await client.ask(post())

    assert got.body.startswith(delta("{") + b'data: {"error":')
    assert b"x-inferway-valid" not in got.body
    assert answers(gate) == {"unknown": 1}


@in_loop
async def test_a_client_that_leaves_before_its_answer_can_be_judged_harms_nobody() -> None:
    gate = make_gate()
    go_on = asyncio.Event()

    async def script(_: Seen, talk: Talk) -> None:
        body = whole("{}")
        await talk.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n" % (JSON, len(body)))
        await go_on.wait()
        await talk.write(body)

    async with running(script) as engine, judging(engine.url, gate) as server:
        async with connected(server) as client:
            await client.send(post())
            await wait_until(lambda: bool(engine.seen))
        await wait_until(lambda: server.stats.open == 0)
        go_on.set()

        assert server.stats.crashed == 0
