"""Connections to engines, on real sockets."""

from __future__ import annotations

import asyncio
import socket
import sys
import time

import pytest
from tests.upstream.engines import (
    CHUNKED_HEAD,
    LAST_CHUNK,
    SSE_HEAD,
    Flood,
    Script,
    Seen,
    Talk,
    answer,
    chunk,
    in_loop,
    raw,
    refusing,
    running,
    wait_until,
)
from tests.upstream.pause import stand_still
from tests.upstream.sinks import Collected, ask, pool_of, start

from inferway.config import TimeoutSettings
from inferway.errors import ConfigError, UpstreamError, UpstreamTimeoutError
from inferway.upstream.pool import Pool, watch_host


@pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's options")
def test_a_silent_host_and_a_slow_reader_have_a_minute() -> None:
    with socket.socket() as sock:
        watch_host(sock)

        def option(name: int) -> int:
            return sock.getsockopt(socket.IPPROTO_TCP, name)

        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option(socket.TCP_KEEPIDLE) + 3 * option(socket.TCP_KEEPINTVL) == 25
        assert option(socket.TCP_USER_TIMEOUT) == 60_000


async def answered_by(script: Script, method: str = "POST") -> Collected:
    async with running(script) as engine, pool_of() as pool:
        return await ask(pool, engine.url, method)


@in_loop
async def test_the_engine_gets_the_body_its_length_and_its_own_name_as_host() -> None:
    async with running(answer()) as engine, pool_of() as pool:
        await ask(pool, engine.url, headers=b"x-a: 1\r\n", body=b"\x00\r\n\xff")

    assert engine.seen == [
        Seen(
            b"POST /v1/x?a=b HTTP/1.1",
            [(b"host", engine.url[7:].encode()), (b"x-a", b"1"), (b"content-length", b"4")],
            b"\x00\r\n\xff",
        )
    ]


@in_loop
async def test_a_get_without_a_body_has_no_content_length() -> None:
    async with running(answer()) as engine, pool_of() as pool:
        await ask(pool, engine.url, "GET", body=b"")

    assert engine.seen[0].values(b"content-length") == []


@in_loop
async def test_one_connection_serves_exchanges_that_follow_each_other() -> None:
    async with running(answer()) as engine, pool_of() as pool:
        for _ in range(5):
            await ask(pool, engine.url)

        assert (engine.connections, len(engine.seen)) == (1, 5)
        assert pool.idle(engine.url) == 1
        assert (pool.stats.sent, pool.stats.connected, pool.stats.open) == (5, 1, 1)


@in_loop
async def test_it_is_told_when_an_engine_closes_an_idle_connection() -> None:
    closed: list[str] = []
    pool = Pool(on_closed=closed.append)
    async with running(answer()) as engine:
        await ask(pool, engine.url)
        assert pool.idle(engine.url) == 1
    await wait_until(lambda: bool(closed))
    await pool.close()

    assert closed == [engine.url]


@in_loop
async def test_connections_that_are_closed_here_are_not_told() -> None:
    closed: list[str] = []
    pool = Pool(idle_keep_alive=0.02, on_closed=closed.append)
    async with running(answer()) as engine:
        await ask(pool, engine.url)
        await wait_until(lambda: pool.stats.open == 0)
        await ask(pool, engine.url)
        await pool.close()
        await wait_until(lambda: engine.open == 0)

    assert closed == []


@in_loop
async def test_exchanges_at_the_same_time_have_connections_of_their_own() -> None:
    async with running(answer()) as engine, pool_of() as pool:
        await asyncio.gather(*(ask(pool, engine.url) for _ in range(4)))

        assert engine.connections == 4


@in_loop
async def test_the_head_names_status_headers_and_length() -> None:
    sink = await answered_by(answer(b"abc", b"X-Thing: 1\r\n", b"404 Not Found"))

    assert (sink.status, sink.headers, sink.length) == (404, [(b"x-thing", b"1")], 3)
    assert sink.body == b"abc"


@in_loop
async def test_headers_of_the_connection_end_here() -> None:
    head = b"Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nX-On: 2\r\n"

    sink = await answered_by(answer(b"", head))

    assert sink.headers == [(b"x-on", b"2")]


@in_loop
async def test_chunks_are_decoded_and_trailers_dropped() -> None:
    sink = await answered_by(
        raw(CHUNKED_HEAD, b"3;ext=1\r\nabc\r\n", chunk(b"de"), b"0\r\nX-Trailer: 1\r\n\r\n")
    )

    assert (sink.length, sink.body) == (None, b"abcde")
    assert (b"x-trailer", b"1") not in sink.headers


@in_loop
async def test_what_came_in_one_read_is_handed_on_as_one_piece() -> None:
    sink = await answered_by(raw(CHUNKED_HEAD + chunk(b"a") + chunk(b"b") + LAST_CHUNK))

    assert sink.calls == ["head", "end"]
    assert sink.body == b"ab"


@in_loop
async def test_without_length_and_chunks_the_connection_s_end_is_the_body_s_end() -> None:
    sink = await answered_by(raw(b"HTTP/1.1 200 OK\r\n\r\n", b"abc", close=True))

    assert (sink.body, sink.error) == (b"abc", None)


@in_loop
async def test_informational_answers_are_skipped() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"

    sink = await answered_by(raw(early, b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na"))

    assert (sink.status, sink.headers, sink.body) == (200, [], b"a")


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("POST", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
    ],
)
@in_loop
async def test_an_answer_without_a_body_ends_with_its_head(method: str, head: bytes) -> None:
    async with running(raw(head)) as engine, pool_of() as pool:
        first = await ask(pool, engine.url, method)
        second = await ask(pool, engine.url, method)

        assert (first.calls, second.calls) == (["head", "end"], ["head", "end"])
        assert engine.connections == 1


@pytest.mark.parametrize(
    "cut",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc",
        CHUNKED_HEAD + chunk(b"abc"),
        CHUNKED_HEAD + b"5\r\nabc",
        CHUNKED_HEAD + chunk(b"abc") + b"0\r\n",
    ],
)
@in_loop
async def test_an_answer_that_is_cut_off_is_an_error(cut: bytes) -> None:
    sink = await answered_by(raw(cut, close=True))

    assert sink.body == b"abc"
    assert "in the middle of its answer" in str(sink.error)


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        CHUNKED_HEAD + b"zz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 300_000,
    ],
)
@in_loop
async def test_what_is_not_an_answer_is_an_error(garbage: bytes) -> None:
    sink = await answered_by(raw(garbage))

    assert "what is not HTTP/1.1" in str(sink.error)
    assert sink.calls[-1] == "error"


@in_loop
async def test_a_kept_alive_connection_that_died_is_replaced_unseen() -> None:
    async def close_at_second(seen: Seen, talk: Talk) -> None:
        if talk.number == 1 and len(engine.seen) == 2:
            talk.writer.close()
            return
        await answer(b"%d" % talk.number)(seen, talk)

    async with running(close_at_second) as engine, pool_of() as pool:
        first, second = await ask(pool, engine.url), await ask(pool, engine.url)

        assert (first.body, second.body, second.error) == (b"1", b"2", None)
        assert pool.stats.retried == 1


@in_loop
async def test_an_exchange_is_sent_a_second_time_only_once() -> None:
    async def answer_once(seen: Seen, talk: Talk) -> None:
        if len(engine.seen) == 1:
            await answer()(seen, talk)
        else:
            talk.writer.close()

    async with running(answer_once) as engine, pool_of() as pool:
        await ask(pool, engine.url)
        second = await ask(pool, engine.url)

    assert "closed the connection before its answer" in str(second.error)
    assert len(engine.seen) == 3


@in_loop
async def test_a_fresh_connection_that_dies_is_an_error() -> None:
    async with running(raw(close=True)) as engine, pool_of() as pool:
        sink = await ask(pool, engine.url)

    assert "closed the connection before its answer" in str(sink.error)
    assert len(engine.seen) == 1


@in_loop
async def test_nothing_is_sent_twice_once_a_byte_of_the_answer_has_come() -> None:
    async def half_a_head(seen: Seen, talk: Talk) -> None:
        if len(engine.seen) == 1:
            await answer()(seen, talk)
        else:
            await raw(b"HTTP/1.1 2", close=True)(seen, talk)

    async with running(half_a_head) as engine, pool_of() as pool:
        await ask(pool, engine.url)
        second = await ask(pool, engine.url)

    assert isinstance(second.error, UpstreamError)
    assert len(engine.seen) == 2


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\na",
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\n",
    ],
    ids=["asked to close", "HTTP/1.0", "surplus bytes"],
)
@in_loop
async def test_a_connection_that_cannot_be_kept_is_not(reply: bytes) -> None:
    async with running(raw(reply)) as engine, pool_of() as pool:
        sink = await ask(pool, engine.url)

        assert sink.body == b"a"
        assert pool.idle(engine.url) == 0
        await wait_until(lambda: engine.open == 0)


@in_loop
async def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    talks: list[Talk] = []

    async def script(seen: Seen, talk: Talk) -> None:
        talks.append(talk)
        await answer()(seen, talk)

    async with running(script) as engine, pool_of() as pool:
        await ask(pool, engine.url)
        await talks[0].write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

        await wait_until(lambda: pool.idle(engine.url) == 0)


@in_loop
async def test_an_idle_connection_is_dropped_before_the_engine_would() -> None:
    async with running(answer()) as engine, pool_of(idle_keep_alive=0.02) as pool:
        await ask(pool, engine.url)

        await wait_until(lambda: engine.open == 0)
        assert pool.stats.open == 0


@in_loop
async def test_after_a_pause_of_the_gateway_no_old_connection_is_used() -> None:
    async with running(answer()) as engine, pool_of(idle_keep_alive=0.1) as pool:
        await ask(pool, engine.url)
        stand_still(0.15)  # the sweep has not had its turn
        await ask(pool, engine.url)

        assert engine.connections == 2


@in_loop
async def test_what_must_not_be_sent_twice_gets_no_connection_that_was_idle_for_a_second() -> None:
    async with running(answer()) as engine, pool_of(idle_keep_alive=60) as pool:
        await ask(pool, engine.url)
        stand_still(1.01)
        await ask(pool, engine.url, once=True)
        assert engine.connections == 2

        await ask(pool, engine.url)
        assert engine.connections == 2


@in_loop
async def test_what_must_not_be_sent_twice_is_not() -> None:
    async def close_at_second(seen: Seen, talk: Talk) -> None:
        if len(engine.seen) == 1:
            await answer()(seen, talk)
        else:
            talk.writer.close()

    async with running(close_at_second) as engine, pool_of() as pool:
        await ask(pool, engine.url)
        second = await ask(pool, engine.url, once=True)

    assert "closed the connection before its answer" in str(second.error)
    assert len(engine.seen) == 2


@in_loop
async def test_an_engine_that_gets_no_more_requests_is_forgotten_and_one_that_does_is_not() -> None:
    async with (
        running(answer()) as gone,
        running(raw(SSE_HEAD, chunk(b"data: x\n\n"))) as busy,
        pool_of(idle_keep_alive=0.02) as pool,
    ):
        await ask(pool, gone.url)
        exchange, sink = start(pool, busy.url)
        await wait_until(lambda: "chunk" in sink.calls)
        await wait_until(lambda: gone.url not in pool._origins)

        assert list(pool._origins) == [busy.url]
        assert (await ask(pool, gone.url)).status == 200
        exchange.abort()


@in_loop
async def test_an_engine_that_is_not_there_is_an_error() -> None:
    async with refusing() as url, pool_of() as pool:
        sink = await ask(pool, url)

    assert "cannot connect" in str(sink.error)
    assert not isinstance(sink.error, UpstreamTimeoutError)


@in_loop
async def test_an_engine_that_says_nothing_times_out() -> None:
    async with running(raw()) as engine, pool_of(TimeoutSettings(first_byte=0.02)) as pool:
        sink = await ask(pool, engine.url)

        assert isinstance(sink.error, UpstreamTimeoutError)
        await wait_until(lambda: engine.open == 0)


@in_loop
async def test_the_wait_for_the_first_byte_of_a_body_is_not_the_idle_time_of_a_stream() -> None:
    timeouts = TimeoutSettings(first_byte=0.5, idle_stream=600)
    async with running(raw(CHUNKED_HEAD)) as engine, pool_of(timeouts) as pool:
        sink = await ask(pool, engine.url)

    assert isinstance(sink.error, UpstreamTimeoutError)
    assert sink.calls == ["head", "error"]


@in_loop
async def test_a_stream_that_stops_times_out() -> None:
    timeouts = TimeoutSettings(idle_stream=0.02)
    async with running(raw(CHUNKED_HEAD, chunk(b"a"))) as engine, pool_of(timeouts) as pool:
        sink = await ask(pool, engine.url)

    assert (sink.body, type(sink.error)) == (b"a", UpstreamTimeoutError)


@in_loop
async def test_a_paused_exchange_does_not_time_out() -> None:
    timeouts = TimeoutSettings(idle_stream=0.02)
    async with running(raw(CHUNKED_HEAD, chunk(b"a"))) as engine, pool_of(timeouts) as pool:
        exchange, sink = start(pool, engine.url)
        await wait_until(lambda: sink.body == b"a")
        exchange.pause()
        await asyncio.sleep(0.1)  # the time that must pass is what is tested

        assert not sink.over.is_set()


@in_loop
async def test_abort_closes_the_engine_s_connection() -> None:
    closed = asyncio.Event()

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(CHUNKED_HEAD + chunk(b"a"))
        await talk.until_closed()
        closed.set()

    async with running(script) as engine, pool_of() as pool:
        exchange, sink = start(pool, engine.url)
        await wait_until(lambda: sink.body == b"a")
        exchange.abort()
        await closed.wait()

        assert sink.calls == ["head", "chunk"]


@in_loop
async def test_abort_while_connecting_sends_nothing() -> None:
    async with running(answer()) as engine, pool_of() as pool:
        exchange, sink = start(pool, engine.url)
        exchange.abort()
        await wait_until(lambda: pool.idle(engine.url) == 1)

        assert (engine.seen, sink.calls) == ([], [])


@in_loop
async def test_a_paused_exchange_holds_the_engine_back() -> None:
    flood = Flood(256)
    async with running(flood) as engine, pool_of() as pool:
        exchange, sink = start(pool, engine.url)
        await wait_until(lambda: sink.body != b"")
        exchange.pause()
        taken = len(sink.body)
        await flood.stalled()

        assert len(sink.body) == taken
        assert flood.written < flood.size
        exchange.resume()
        await sink.over.wait()
        assert len(sink.body) == flood.size


@in_loop
async def test_closing_the_pool_fails_what_is_under_way() -> None:
    async with running(raw(CHUNKED_HEAD, chunk(b"a"))) as engine, pool_of() as pool:
        _, sink = start(pool, engine.url)
        await wait_until(lambda: sink.body == b"a")
        await pool.close()

        assert "shutting down" in str(sink.error)
        await wait_until(lambda: engine.open == 0)


@in_loop
async def test_a_url_that_is_none_is_named() -> None:
    async with pool_of() as pool:
        with pytest.raises(ConfigError, match="'ftp://x'"):
            start(pool, "ftp://x")


@in_loop
async def test_closing_the_pool_fails_what_is_still_connecting() -> None:
    async with running(answer()) as engine, pool_of() as pool:
        _, sink = start(pool, engine.url)
        await asyncio.sleep(0)
        await pool.close()

        assert "shutting down" in str(sink.error)


@in_loop
async def test_after_a_standstill_what_is_read_may_have_been_there_for_as_long() -> None:
    stood = 0.05
    pool = Pool(idle_keep_alive=0.04)
    time.sleep(stood)  # the whole process stands still
    await asyncio.sleep(0)  # timers that are due come first, then what sockets have
    assert pool.unread >= stood
    await pool.close()
