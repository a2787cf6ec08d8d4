"""Connections to engines beside those of requests, against a server that counts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from inferway.errors import UpstreamError
from inferway.fleet.http_client import EngineConnector, fetch

AT_ONCE = 3


class Engine:
    """Answers on each connection as often as it is asked, once `AT_ONCE` have asked it."""

    def __init__(self) -> None:
        self.url = ""
        self.num_opened = 0
        self.num_open = 0
        self.all_closed = asyncio.Event()
        self._asked = asyncio.Barrier(AT_ONCE)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/health"
        async with server:
            yield
            async with asyncio.timeout(20):
                await self.all_closed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_opened += 1
        self.num_open += 1
        while b"\r\n\r\n" in (asked := await reader.read(65536)):
            assert asked.startswith(b"GET /health ")
            await self._asked.wait()
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.num_open -= 1
        if not self.num_open:
            self.all_closed.set()
        writer.close()
        await writer.wait_closed()


async def ask_at_once(session: aiohttp.ClientSession, url: str) -> None:
    async def ask() -> None:
        async with session.get(url) as response:
            assert response.status == 204

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))


async def test_connections_are_used_again() -> None:
    engine = Engine()
    async with engine.serving():
        connector = EngineConnector(None, idle_keep_alive=60.0)
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(2):
                await ask_at_once(session, engine.url)

            assert (engine.num_opened, engine.num_open) == (AT_ONCE, AT_ONCE)


async def test_all_that_are_idle_for_their_time_are_closed() -> None:
    engine = Engine()
    async with engine.serving():
        connector = EngineConnector(None, idle_keep_alive=0.05)
        async with aiohttp.ClientSession(connector=connector) as session:
            await ask_at_once(session, engine.url)
            async with asyncio.timeout(10):  # aiohttp's own would be 15 s
                await engine.all_closed.wait()

            assert not session.closed
            assert engine.num_opened == AT_ONCE


async def answer_with(told: bytes) -> tuple[int, bytes]:
    """What comes out of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            writer.write(told)
            await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        aiohttp.ClientSession(connector=EngineConnector(None)) as session,
        asyncio.timeout(30),
        session.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as answer,
    ):
        return answer.status, await answer.read()


HINT = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
BODY = bytes(range(256)) * 4000
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 1024000\r\n\r\n" + BODY


async def test_an_answer_may_have_hints_before_it() -> None:
    assert await answer_with(3 * HINT + ANSWER) == (200, BODY)


async def test_hints_without_end_are_not_read() -> None:
    with pytest.raises(aiohttp.ClientConnectionError, match="more than 16 answers at once"):
        await answer_with(20_000 * HINT + ANSWER)


async def test_a_server_without_tls_that_is_asked_by_tls_is_named_as_such() -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/health"
    async with server, aiohttp.ClientSession() as session:
        with pytest.raises(UpstreamError, match=r"speaks plain http; write http:// in its URL"):
            await fetch(session, url, {})
