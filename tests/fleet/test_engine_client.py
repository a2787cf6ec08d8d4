"""Questions to a real HTTP server, again and again."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import web
from tests.fleet.servers import serving

from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.fleet.engine_client import MAX_PAGE_BYTES, EngineClient, StatusError


async def test_a_page_comes_whole_over_a_connection_that_is_kept() -> None:
    ports = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        said = f"{request.path_qs} {request.headers['authorization']} " + "é" * 100_000
        return web.Response(text=said)

    async with serving(answer) as url, EngineClient() as client:
        found = [
            await client.metrics(url, "/metrics/?name%5B%5D=a", [(b"authorization", b"Bearer k")])
            for _ in range(3)
        ]

    assert set(found) == {"/metrics/?name%5B%5D=a Bearer k " + "é" * 100_000}
    assert len(set(ports)) == 1


async def test_what_is_posted_is_json_and_any_status_is_an_answer() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response([request.content_type, await request.json()], status=409)

    async with serving(answer) as url, EngineClient() as client:
        status, body = await client.post(url, "/v1/x", b'{"a": 1}', [], 10.0)

    assert (status, body) == (409, b'["application/json", {"a": 1}]')


async def test_another_status_is_an_error_that_says_which() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=503)

    async with serving(answer) as url, EngineClient() as client:
        with pytest.raises(StatusError, match=r"/metrics/ answered 503") as error:
            await client.get(url, "/metrics/?name%5B%5D=a", [])

    assert error.value.answered == 503


async def test_silence_is_told_from_absence() -> None:
    left = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    async with serving(answer) as url, EngineClient(seconds=0.2) as client:
        with pytest.raises(UpstreamTimeoutError, match=r"/metrics did not answer within 0\.2 s"):
            await client.get(url, "/metrics", [])
        await asyncio.wait_for(left.wait(), 10)  # nobody waits for it any more

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        async with EngineClient() as client:
            with pytest.raises(
                UpstreamError, match=rf"^{url}/health: Connection refused$"
            ) as error:
                await client.get(url, "/health", [])
    assert not isinstance(error.value, UpstreamTimeoutError)
    assert isinstance(error.value.__cause__, ConnectionRefusedError)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"of_some 1\n" * 100_000)


async def test_a_page_without_end_is_cut_behind_a_line_or_refused() -> None:
    async with serving(endless) as url, EngineClient() as client:
        page = await client.metrics(url, "/metrics", [])
        with pytest.raises(UpstreamError, match=rf"/health: .* more than {MAX_PAGE_BYTES} bytes"):
            await client.get(url, "/health", [])

    assert MAX_PAGE_BYTES - 10 < len(page) <= MAX_PAGE_BYTES
    assert page.endswith("of_some 1\n")


async def test_an_engine_may_have_no_metrics() -> None:
    async def answer(_: web.Request) -> web.Response:
        raise web.HTTPNotFound

    async with serving(answer) as url, EngineClient() as client:
        assert await client.metrics(url, "/metrics", []) == ""


async def test_nobody_is_asked_where_an_engine_sends_us() -> None:
    asked = []

    async def redirect(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with serving(redirect) as url, EngineClient() as client:
        with pytest.raises(StatusError, match="answered 302"):
            await client.get(url, "/health", [])

    assert asked == ["/health"]


async def test_a_server_without_tls_that_is_asked_by_tls_is_named_as_such() -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, EngineClient() as client:
        with pytest.raises(UpstreamError, match=r"speaks plain http; write http:// in its URL"):
            await client.get(url, "/health", [])


async def test_a_closed_client_asks_no_more() -> None:
    client = EngineClient()
    await client.close()

    with pytest.raises(UpstreamError, match="shutting down"):
        await client.get("http://127.0.0.1:9", "/health", [])
