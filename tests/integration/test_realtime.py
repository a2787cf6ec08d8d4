"""WebSockets of /v1/realtime, carried to an engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from tests.http.clients import Client
from tests.integration.conftest import until
from tests.integration.recorders import Front, Recorder, in_front_of

from inferway.config import FlowSettings, ModelRewrite, RewriteTarget
from inferway.routing.limits.callers import hash_of

MIB = 1024 * 1024


@dataclass
class Talker(Recorder):
    """An engine that says of each WebSocket which model it is for, and then all that it hears."""

    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    drops: bool = False  # the connection, without an answer

    async def handle(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        if request.path != "/v1/realtime":
            return await super().handle(request)
        self.asked.append(request.query_string)
        if self.drops:
            assert request.transport is not None
            request.transport.abort()
        if self.status != 200:
            return web.Response(status=self.status, body=b"no")
        socket = web.WebSocketResponse(max_msg_size=64 * MIB)
        await socket.prepare(request)
        self.sockets.append(socket)
        await socket.send_json({"model": request.query.getall("model", [""])[-1] or None})
        async for message in socket:
            if message.type is WSMsgType.TEXT and message.data == "end":
                break
            await socket.send_bytes(message.data)
        await socket.close()
        return socket


@asynccontextmanager
async def talking(
    front: Front, query: str = "?model=m"
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    url = front.url + "/v1/realtime" + query
    async with front.http.ws_connect(url, max_msg_size=64 * MIB) as socket:
        yield socket


async def test_what_both_sides_say_passes_as_it_is() -> None:
    engine = Talker()
    async with in_front_of(engine) as front, talking(front) as socket:
        assert await socket.receive_json() == {"model": "m"}
        for data in (b"", b"a", b"x" * 70_000, b"y" * 8 * MIB):
            await socket.send_bytes(data)
            assert await socket.receive_bytes() == data
        await socket.send_str("end")
        assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == 1000

    assert engine.asked == ["model=m"]


async def test_an_end_of_the_client_ends_the_engine_s_side_and_frees_its_place() -> None:
    engine = Talker()
    async with in_front_of(engine, flow=FlowSettings(in_flight=1)) as front:
        for _ in range(3):  # one place, three times
            async with talking(front) as socket:
                await socket.receive_json()

            async def ended() -> bool:
                return all(each.closed for each in engine.sockets)

            await until(ended)

    assert len(engine.sockets) == 3


async def test_a_client_that_is_cut_off_ends_the_engine_s_side() -> None:
    engine = Talker()
    async with in_front_of(engine) as front:
        async with talking(front) as socket:
            await socket.receive_json()
            assert socket._response.connection is not None
            transport = socket._response.connection.transport
            assert transport is not None
            transport.abort()

        async def ended() -> bool:
            return engine.sockets[0].closed

        await until(ended)


async def test_the_engine_is_one_of_the_model_in_the_query() -> None:
    small, large = Talker(("small",)), Talker(("large",))
    rules = [ModelRewrite(models=["best"], targets=[RewriteTarget(model="large")])]
    async with in_front_of(small, large, model_rewrites=rules) as front:
        for query, model in (
            ("?model=large&model=small", "small"),
            ("?a=1&model=best&b=2", "large"),
        ):
            async with talking(front, query) as socket:
                assert await socket.receive_json() == {"model": model}
        with pytest.raises(aiohttp.WSServerHandshakeError, match="404"):
            async with talking(front, "?model=nobody"):
                raise AssertionError

    assert (small.asked, large.asked) == (["model=large&model=small"], ["a=1&model=large&b=2"])


async def test_an_answer_that_is_no_switch_is_the_client_s_answer() -> None:
    engine = Talker(status=403)
    async with in_front_of(engine) as front:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            async with talking(front):
                raise AssertionError


async def test_another_engine_is_asked_for_one_that_drops_the_connection() -> None:
    first, second = Talker(drops=True), Talker()
    async with in_front_of(first, second) as front:
        while not first.asked:
            async with talking(front) as socket:
                assert await socket.receive_json() == {"model": "m"}


async def test_a_key_is_wanted_where_keys_are(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n- {{name: ann, hash: '{hash_of('k' * 40)}'}}\n")
    engine = Talker()
    async with in_front_of(engine, api_keys=str(keys)) as front:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            async with talking(front):
                raise AssertionError
        headers = {"authorization": "Bearer " + "k" * 40}
        url = front.url + "/v1/realtime"
        async with front.http.ws_connect(url, headers=headers) as socket:
            assert await socket.receive_json() == {"model": None}

    assert len(engine.asked) == 1


async def test_a_web_page_needs_an_origin_that_is_allowed() -> None:
    engine = Talker()
    async with in_front_of(engine, cors_origins=["https://app.example"]) as front:
        url = front.url + "/v1/realtime"
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await front.http.ws_connect(url, origin="https://evil.example")
        async with front.http.ws_connect(url, origin="https://app.example") as socket:
            await socket.receive_json()


@pytest.mark.parametrize(
    ("path", "upgrade", "status"),
    [
        ("/v1/models", "websocket", 501),
        ("/v1/realtime", "something", 501),
        ("/v1/realtime", "h2c, something", 501),
        ("/v1/models", "h2c", 200),
        ("/v1/models", "TLS/1.2, HTTP/2.0", 200),
        ("/v1/realtime", "h2c", 426),
    ],
)
async def test_what_is_not_carried_is_refused_and_never_answered_as_something_else(
    path: str, upgrade: str, status: int
) -> None:
    async with in_front_of(Talker()) as front:
        client = Client(*await asyncio.open_connection("127.0.0.1", front.gateway.port))
        answer = await client.ask(
            b"GET %b HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n"
            % (path.encode(), upgrade.encode())
        )
        client.close()

    assert answer.status == status
    if status == 501:
        assert "upgrade" in json.loads(answer.body)["error"]["message"]


async def test_what_a_client_says_behind_its_head_reaches_the_engine() -> None:
    engine = Talker()
    head = (
        b"GET /v1/realtime HTTP/1.1\r\nhost: h\r\nconnection: Upgrade\r\nupgrade: WebSocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: %b\r\n\r\n" % (b"A" * 22 + b"==")
    )
    frame = b"\x82\x83\0\0\0\0abc"  # binary, masked by zeros
    async with in_front_of(engine) as front:
        client = Client(*await asyncio.open_connection("127.0.0.1", front.gateway.port))
        await client.send(head + frame)
        answer = await client.head()
        assert answer.status == 101
        assert answer.values(b"upgrade") == [b"websocket"]
        assert len(answer.values(b"sec-websocket-accept")) == 1
        await client.reader.readexactly(2 + len(b'{"model": null}'))
        assert await client.reader.readexactly(5) == b"\x82\x03abc"
        client.close()
