"""A request through the gateway: client, our server, our pool, scripted engines."""

from __future__ import annotations

import asyncio

import pytest
from tests.http.clients import connected, get, post
from tests.http.gateways import DONE, EVENTS, Trip, events, gateway
from tests.upstream.engines import (
    CHUNKED_HEAD,
    LAST_CHUNK,
    SSE_HEAD,
    Engine,
    Flood,
    Seen,
    Talk,
    answer,
    chunk,
    in_loop,
    raw,
    running,
    wait_until,
)

from inferway.http.headers import not_ours_alone
from inferway.model import Headers, Reason

# --------------------------------------------------------------------------------- unchanged


@in_loop
async def test_body_target_and_headers_reach_the_engine_unchanged() -> None:
    async with running(answer()) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        body = b'{ "model" : "m",\n "x": "\xc3\xa4" }'
        await c.ask(post(body, b"X-Other: 1", b"Traceparent: 00-ab-cd-01", target=b"/v1/x?a=%20"))

    seen = engine.seen[0]
    assert (seen.line, seen.body) == (b"POST /v1/x?a=%20 HTTP/1.1", body)
    assert seen.values(b"x-other") == [b"1"]
    assert seen.values(b"traceparent") == [b"00-ab-cd-01"]
    assert seen.values(b"host") == [engine.url[7:].encode()]
    assert seen.values(b"content-length") == [b"%d" % len(body)]


@in_loop
async def test_the_engine_gets_the_body_that_the_journey_has_for_it() -> None:
    async with (
        running(answer()) as engine,
        gateway(engine.url, trip=lambda: Trip(body=b"edited")) as gw,
        connected(gw.server) as c,
    ):
        await c.ask(post(b"{}"))

    assert engine.seen[0].body == b"edited"
    assert engine.seen[0].values(b"content-length") == [b"6"]


@in_loop
async def test_a_chunked_request_reaches_the_engine_with_its_length() -> None:
    request = b"POST / HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n"
    async with running(answer()) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.ask(request + chunk(b"ab") + chunk(b"c") + LAST_CHUNK)

    assert engine.seen[0].body == b"abc"
    assert engine.seen[0].values(b"transfer-encoding") == []


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found", b"429 Too Many", b"500 Oops"])
@in_loop
async def test_the_answer_comes_back_as_it_is(status: bytes) -> None:
    script = answer(b"\x00abc\r\n", b"X-A: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n", status)
    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        got = await c.ask(post())

        assert (got.status, got.body) == (int(status[:3]), b"\x00abc\r\n")
        assert got.values(b"content-length") == [b"6"]
        assert got.values(b"set-cookie") == [b"a", b"b"]
        assert got.values(b"x-inferway-engine") == [b"e0"]
        assert gw.trips[0].outcomes == ["ok"]


@in_loop
async def test_a_stream_passes_byte_for_byte_and_at_once() -> None:
    step = asyncio.Event()

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD)
        for event in (*EVENTS, DONE):
            await talk.write(chunk(event))
            await step.wait()
            step.clear()
        await talk.write(LAST_CHUNK)

    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.send(post())
        head = await c.head()
        got = []
        for _ in (*EVENTS, DONE):  # the engine goes on only when the client has the event
            got.append(await c.chunk())
            step.set()

        assert got == [*EVENTS, DONE]
        assert await c.chunk() == b""
        assert head.values(b"content-type") == [b"text/event-stream; charset=utf-8"]
        assert b"".join(gw.trips[0].chunks) == b"".join(got)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
@in_loop
async def test_a_stream_in_any_pieces_is_the_same_bytes(size: int) -> None:
    body = b": comment\r\n\r\n" + b"".join(EVENTS) + b"data: a\r\ndata: b\r\n\r\n" + DONE + b"tail"
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    async with (
        running(events(*pieces)) as engine,
        gateway(engine.url) as gw,
        connected(gw.server) as c,
    ):
        assert (await c.ask(post())).body == body


@in_loop
async def test_an_event_without_end_is_passed_on_before_it_fills_the_memory() -> None:
    endless = asyncio.Event()

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD + chunk(b"data: " + b"x" * 100_000))
        await endless.wait()

    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.send(post())

        assert (await c.head()).status == 200
        assert (await c.chunk()).startswith(b"data: xxx")


@in_loop
async def test_pipelined_requests_are_answered_in_order_through_the_engine() -> None:
    async def mirror(seen: Seen, talk: Talk) -> None:
        await answer(seen.body)(seen, talk)

    async with running(mirror) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.send(b"".join(post(b"%d" % i) for i in range(20)))

        assert [(await c.answer()).body for _ in range(20)] == [b"%d" % i for i in range(20)]
        assert engine.connections == 1


@in_loop
async def test_head_passes_without_a_body() -> None:
    script = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        got = await c.ask(get().replace(b"GET", b"HEAD"))

        assert (got.status, got.values(b"content-length")) == (200, [b"5"])
        assert gw.trips[0].outcomes == ["ok"]


@in_loop
async def test_an_answer_without_length_is_chunked_for_1_1_and_closed_for_1_0() -> None:
    script = raw(CHUNKED_HEAD, chunk(b"ab"), chunk(b"c"), LAST_CHUNK)
    async with running(script) as engine, gateway(engine.url) as gw:
        async with connected(gw.server) as c:
            new = await c.ask(post())
        async with connected(gw.server) as c:
            old = await c.ask(b"POST / HTTP/1.0\r\ncontent-length: 0\r\n\r\n")

    assert (new.body, new.values(b"transfer-encoding")) == (b"abc", [b"chunked"])
    assert (old.body, old.values(b"transfer-encoding")) == (b"abc", [])


# ----------------------------------------------------------------------------------- headers


@pytest.mark.parametrize(
    "header",
    [
        b"Connection: X-Mine",
        b"Keep-Alive: timeout=5",
        b"Proxy-Authorization: Basic x",
        b"TE: trailers",
        b"X-Inferway-Engine: e9",
        b"x-inferway-anything: 1",
        b"X-Gateway-Destination-Endpoint: 10.0.0.1:80",
        b"x-llm-d-inference-objective: a",
        b"x-data-parallel-rank: 3",
        b"x-prefiller-host-port: a:1",
        b"x-session-token: abc",
    ],
)
@in_loop
async def test_headers_that_are_not_the_client_s_to_say_are_dropped(header: bytes) -> None:
    name = header.partition(b":")[0].lower()
    async with running(answer()) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.ask(post(b"{}", header, b"X-Kept: 1"))

    assert engine.seen[0].values(name) == []
    assert engine.seen[0].values(b"x-kept") == [b"1"]


@in_loop
async def test_headers_that_connection_names_are_dropped() -> None:
    async with running(answer()) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.ask(post(b"{}", b"Connection: keep-alive, X-Mine", b"X-Mine: 1"))

    assert engine.seen[0].values(b"x-mine") == []


@in_loop
async def test_the_engine_s_key_replaces_the_client_s() -> None:
    key = ((b"authorization", b"Bearer engine"),)
    async with (
        running(answer()) as engine,
        gateway(engine.url, engine_headers=key) as gw,
        connected(gw.server) as c,
    ):
        await c.ask(post(b"{}", b"Authorization: Bearer client"))

    assert engine.seen[0].values(b"authorization") == [b"Bearer engine"]


@in_loop
async def test_engine_and_client_see_the_same_request_id() -> None:
    script = answer(b"", b"x-request-id: the engine's\r\n")
    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        given = await c.ask(post(b"{}", b"x-request-id: mine"))
        made = await c.ask(post())

    assert given.values(b"x-request-id") == engine.seen[0].values(b"x-request-id") == [b"mine"]
    assert made.values(b"x-request-id") == engine.seen[1].values(b"x-request-id")


# ------------------------------------------------------------------------------ lost clients


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("script_head", [b"", SSE_HEAD, SSE_HEAD + chunk(EVENTS[0])])
@in_loop
async def test_a_client_who_goes_away_ends_its_engine_s_work(
    script_head: bytes, reset: bool
) -> None:
    closed = asyncio.Event()

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(script_head)
        await talk.until_closed()
        closed.set()

    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.send(post())
        await wait_until(lambda: bool(engine.seen))
        if reset:
            c.reset()
        else:
            c.close()
        await closed.wait()

        assert gw.trips[0].outcomes == ["client_gone"]


@in_loop
async def test_a_client_who_goes_at_done_has_a_whole_answer() -> None:
    """OpenAI's client closes the connection then; the end of the body may come later."""

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD + chunk(EVENTS[0] + DONE))
        await talk.until_closed()

    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.send(post())
        await c.head()
        assert await c.chunk() == EVENTS[0] + DONE
        c.close()
        await wait_until(lambda: bool(gw.trips[0].outcomes))

        assert gw.trips[0].outcomes == ["ok"]
        assert gw.pool.stats.aborted == 1


@in_loop
async def test_a_client_who_does_not_read_holds_its_engine_back() -> None:
    flood = Flood(512)
    async with running(flood) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        c.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await c.send(post())
        await wait_until(lambda: flood.written > 0)
        await flood.stalled()

        assert flood.written < flood.size
        assert gw.server.buffered_bytes() < 1_000_000
        c.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await c.answer()).body) == flood.size
        assert gw.trips[0].outcomes == ["ok"]


@in_loop
async def test_many_streams_at_once_keep_their_bytes_apart() -> None:
    async def mirror(seen: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD)
        for i in range(20):
            await talk.write(chunk(b"data: %b %d\n\n" % (seen.body, i)))
            await asyncio.sleep(0)
        await talk.write(LAST_CHUNK)

    async def one(engine: Engine, number: int) -> None:
        async with connected(gw.server) as c:
            for round_ in range(3):
                nonce = b"%d.%d" % (number, round_)
                got = await c.ask(post(nonce))
                assert got.body == b"".join(b"data: %b %d\n\n" % (nonce, i) for i in range(20))
        assert engine.connections <= 50

    # connections are kept for longer than a busy machine pauses
    async with running(mirror) as engine, gateway(engine.url, idle_keep_alive=60) as gw:
        await asyncio.gather(*(one(engine, i) for i in range(50)))

        assert gw.pool.stats.sent == 150
        assert gw.server.stats.answering == 0


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        (b"model, vllm_xargs, cache_salt", ((b"x-inferway-edited", b"model, cache_salt"),)),
        (b"vllm_xargs", ()),
    ],
)
def test_a_client_who_is_no_admin_is_told_what_settings_have_changed(
    edits: bytes, told: Headers
) -> None:
    decided = ((b"x-inferway-engine", b"e"), (b"x-inferway-edited", edits), (b"x-odd", b"1"))

    assert not_ours_alone(decided) == (*told, (b"x-odd", b"1"))


@pytest.mark.parametrize("reason", Reason)
def test_a_client_who_is_no_admin_is_told_reasons_that_lie_in_its_request(reason: Reason) -> None:
    of_the_fleet = ("load-only", "no-block-size", "unfaithful", "tokenizer-loading")
    told = ((b"x-inferway-reason", reason.encode()),)

    if reason in (
        "response-items",
        "message-blocks",
        "unread",
        "many-prompts",
        "media",
        "request-template",
    ):
        assert not_ours_alone(told) == told
    if reason in of_the_fleet or not reason.is_by_load:
        assert not_ours_alone(told) == ()
    assert reason.is_by_load or not reason.is_of_request
