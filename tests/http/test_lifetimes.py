"""Clients who go away or do not read, timeouts, the end, and what is written down."""

from __future__ import annotations

import asyncio
import gc
import logging
import re

import pytest
from tests.http.clients import Gate, connected, echo, get, post, serving
from tests.http.gateways import gateway
from tests.upstream.engines import (
    SSE_HEAD,
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

from inferway.config import LimitSettings, TimeoutSettings
from inferway.errors import ConfigError
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import HttpServer
from inferway.telemetry.access_log import AccessLog
from inferway.upstream.exchange import UpstreamRequest

# ----------------------------------------------------------------------- clients who go away


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@in_loop
async def test_a_source_hears_at_once_that_the_client_has_gone(reset: bool) -> None:
    source = CountingSource()

    async def endless(_: Request, responder: Responder) -> None:
        responder.attach(source)
        responder.start(200, ())
        responder.write(b"a")

    async with serving(endless) as server, connected(server) as client:
        await client.send(get())
        await client.head()
        if reset:
            client.reset()
        else:
            client.close()

        await source.gone.wait()
        assert (server.stats.answering, server.stats.open) == (0, 0)


class CountingSource:
    """A source that notes what it is told."""

    def __init__(self) -> None:
        self.paused = 0
        self.resumed = 0
        self.gone = asyncio.Event()

    def pause(self) -> None:
        self.paused += 1

    def resume(self) -> None:
        self.resumed += 1

    def client_gone(self) -> None:
        self.gone.set()


@in_loop
async def test_answering_a_client_who_has_gone_does_nothing() -> None:
    gate = Gate()
    async with serving(gate) as server, connected(server) as client:
        await client.send(get())
        await wait_until(lambda: gate.waiting == 1)
        client.reset()
        await wait_until(lambda: server.stats.open == 0)
        gate.open.set()

        assert server.statuses == {499: 1}
        assert server.stats.crashed == 0


@in_loop
async def test_a_source_is_paused_while_the_client_does_not_read() -> None:
    source = CountingSource()
    responders: list[Responder] = []

    async def endless(_: Request, responder: Responder) -> None:
        responder.attach(source)
        responder.start(200, ())
        responders.append(responder)

    async with serving(endless) as server, connected(server) as client:
        await client.send(get())
        await wait_until(lambda: bool(responders))
        pieces = 0
        while not source.paused:
            responders[0].write(b"x" * 65536)
            pieces += 1
            await asyncio.sleep(0)
        responders[0].end()
        answer = await client.answer()

        assert len(answer.body) == pieces * 65536
        assert source.resumed == 0 or source.resumed == 1


@in_loop
async def test_a_client_who_never_reads_is_cut_off() -> None:
    source = CountingSource()
    responders: list[Responder] = []

    async def endless(_: Request, responder: Responder) -> None:
        responder.attach(source)
        responder.start(200, ())
        responders.append(responder)

    timeouts = TimeoutSettings(idle_stream=0.05)
    async with serving(endless, timeouts=timeouts) as server, connected(server) as client:
        await client.send(get())
        await wait_until(lambda: bool(responders))
        while not source.paused:
            responders[0].write(b"x" * 65536)
            await asyncio.sleep(0)

        await source.gone.wait()
        assert server.stats.timed_out == 1


@in_loop
async def test_a_client_who_never_reads_and_has_begun_another_request_is_cut_off() -> None:
    async def large(_: Request, responder: Responder) -> None:
        responder.send(200, (), b"x" * 2**23)

    timeouts = TimeoutSettings(idle_stream=0.05, request_body=0.05)
    async with serving(large, timeouts=timeouts) as server, connected(server) as client:
        await client.send(get() + get() + get()[:-1])

        await wait_until(lambda: server.stats.timed_out == 1)
        await wait_until(lambda: server.stats.open == 0)


# ----------------------------------------------------------------------- timeouts and the end


@in_loop
async def test_an_idle_connection_is_closed_silently() -> None:
    timeouts = TimeoutSettings(keep_alive=0.02)
    async with serving(echo, timeouts=timeouts) as server, connected(server) as client:
        await client.ask(get())

        assert await client.closed() == b""


@pytest.mark.parametrize("part", [b"P", post(b"hello")[:-1]], ids=["head", "body"])
@in_loop
async def test_a_request_that_does_not_end_is_408(part: bytes) -> None:
    timeouts = TimeoutSettings(request_body=0.02)
    async with serving(echo, timeouts=timeouts) as server, connected(server) as client:
        answer = await client.ask(part)

        assert (answer.status, answer.values(b"connection")) == (408, [b"close"])
        assert await client.closed() == b""


@in_loop
async def test_a_request_that_trickles_in_does_not_gain_time() -> None:
    timeouts = TimeoutSettings(request_body=0.05)
    async with serving(echo, timeouts=timeouts) as server, connected(server) as client:
        answering = asyncio.create_task(client.answer())
        for byte in post(b"x" * 100_000):
            if answering.done():
                break
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.005)

        assert answering.result().status == 408


@in_loop
async def test_the_time_for_a_request_does_not_count_while_it_is_answered() -> None:
    gate = Gate()
    timeouts = TimeoutSettings(request_body=0.02, keep_alive=0.02)
    async with serving(gate, timeouts=timeouts) as server, connected(server) as client:
        await client.send(get())
        await asyncio.sleep(0.1)  # the time that must pass is what is tested
        gate.open.set()

        assert (await client.answer()).status == 200


@in_loop
async def test_stop_lets_the_answer_under_way_finish() -> None:
    gate = Gate()
    async with serving(gate) as server, connected(server) as busy, connected(server) as idle:
        await busy.send(get(b"/last"))
        await wait_until(lambda: gate.waiting == 1)
        stopping = asyncio.create_task(server.stop(10))
        assert await idle.closed() == b""
        gate.open.set()
        answer = await busy.answer()
        await stopping

        assert (answer.body, answer.values(b"connection")) == (b"GET /last ", [b"close"])
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", server.port)


@in_loop
async def test_stop_cuts_off_what_does_not_finish_in_time() -> None:
    gate = Gate()
    async with serving(gate) as server, connected(server) as client:
        await client.send(get())
        await wait_until(lambda: gate.waiting == 1)
        await server.stop(0.01)

        assert await client.closed() == b""
        assert server.stats.open == 0


@in_loop
async def test_a_stream_that_does_not_finish_in_time_ends_with_an_error_event() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    script = raw(SSE_HEAD, chunk(event))  # and never its end
    async with (
        running(script) as engine,
        gateway(engine.url) as gw,
        connected(gw.server) as client,
    ):
        await client.send(post())
        await client.head()
        assert await client.chunk() == event
        await gw.server.stop(0.01)

        last = await client.chunk()
        assert last.startswith(b'data: {"error":')
        assert b'"code":"shutting_down"' in last
        assert await client.chunk() == b""  # the body has its end
        assert gw.trips[0].outcomes == ["client_gone"]
        assert gw.server.stats.open == 0
        await wait_until(lambda: engine.open == 0)


@in_loop
async def test_a_stream_whose_client_does_not_read_is_cut_off_at_last() -> None:
    flood = Flood(1_000)

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD)
        while True:
            await talk.write(chunk(b": %b\n\n" % (b"x" * 65_536)))
            flood.written += 1

    async with (
        running(script) as engine,
        gateway(engine.url) as gw,
        connected(gw.server) as client,
    ):
        await client.send(post())
        await flood.stalled()
        await gw.server.stop(0.01)

        assert gw.server.stats.open == 0


@in_loop
async def test_a_port_in_use_is_named() -> None:
    async with serving(echo) as server:
        with pytest.raises(ConfigError, match=f"port {server.port} on 127.0.0.1 is in use"):
            await HttpServer(echo, port=server.port).start()


@in_loop
async def test_connections_over_the_limit_are_closed() -> None:
    limits = LimitSettings(connections=1)
    async with serving(echo, limits=limits) as server, connected(server) as first:
        await first.ask(get())
        async with connected(server) as second:
            assert await second.closed() == b""

        assert (await first.ask(get())).status == 200
        assert server.stats.over_limit == 1


# --------------------------------------------------------------------------------- access log


@in_loop
async def test_the_access_log_has_a_line_for_each_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inferway.access")
    async with serving(echo, extensions=[AccessLog()]) as server, connected(server) as client:
        await client.ask(get(b"/a?secret", b"x-request-id: id1"))
        await client.ask(post(b"prompt", b"x-request-id: id2", target=b"/b"))
        client.close()
        await server.stop(1)

    lines = [line for r in caplog.records for line in r.getMessage().splitlines()]
    assert [
        re.findall(r" (?:method|path|status|bytes|request_id)=(\S+)", line) for line in lines
    ] == [
        ["GET", "/a", "200", "14", "id1"],
        ["POST", "/b", "200", "14", "id2"],
    ]
    assert "secret" not in caplog.text
    assert "prompt" not in caplog.text


# ------------------------------------------------------------------------------------- memory


@in_loop
async def test_a_request_that_is_over_leaves_nothing_for_the_garbage_collector() -> None:
    async with (
        running(answer()) as engine,
        gateway(engine.url) as gw,
        connected(gw.server) as client,
    ):
        gc.collect()  # what other tests have left
        gc.disable()
        try:
            for _ in range(20):
                await client.ask(post())
            left = [o for o in gc.get_objects() if type(o) in (Request, Responder, UpstreamRequest)]
        finally:
            gc.enable()

    assert left == []
