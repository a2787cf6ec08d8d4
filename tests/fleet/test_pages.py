"""Pages of a real HTTP server, again and again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.fleet.servers import serving

from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.fleet.http_client import MAX_PAGE_BYTES, StatusError
from inferway.fleet.scraper import MetricsClient


@asynccontextmanager
async def opened(seconds: float = 10.0) -> AsyncIterator[MetricsClient]:
    pages = MetricsClient(None, seconds)
    pages.open()
    try:
        yield pages
    finally:
        await pages.close()


async def test_a_page_comes_whole_over_a_connection_that_is_kept() -> None:
    ports = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        said = f"{request.path_qs} {request.headers['authorization']} " + "é" * 100_000
        return web.Response(text=said)

    async with serving(answer) as url, opened() as pages:
        found = [
            await pages.get(url, "/metrics/?name%5B%5D=a", [(b"authorization", b"Bearer k")])
            for _ in range(3)
        ]

    assert set(found) == {"/metrics/?name%5B%5D=a Bearer k " + "é" * 100_000}
    assert len(set(ports)) == 1


async def test_another_status_is_an_error_that_says_which() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=503)

    async with serving(answer) as url, opened() as pages:
        with pytest.raises(StatusError, match=r"/metrics/ answered 503") as error:
            await pages.get(url, "/metrics/?name%5B%5D=a", [])

    assert error.value.answered == 503


async def test_silence_is_told_from_absence() -> None:
    left = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    async with serving(answer) as url, opened(seconds=0.2) as pages:
        with pytest.raises(UpstreamTimeoutError, match="did not answer in time"):
            await pages.get(url, "/metrics", [])
        await asyncio.wait_for(left.wait(), 10)  # nobody waits for it any more

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        async with opened() as pages:
            with pytest.raises(UpstreamError, match="cannot connect") as error:
                await pages.get(f"http://127.0.0.1:{nobody.getsockname()[1]}", "/metrics", [])
    assert not isinstance(error.value, UpstreamTimeoutError)


async def test_a_page_without_end_is_cut_behind_a_line() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"of_some 1\n" * 100_000)

    async with serving(answer) as url, opened() as pages:
        page = await pages.get(url, "/metrics", [])

    assert MAX_PAGE_BYTES - 10 < len(page) <= MAX_PAGE_BYTES
    assert page.endswith("of_some 1\n")
