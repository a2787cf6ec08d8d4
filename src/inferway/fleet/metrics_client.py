"""Pages of engines that are asked for again and again. They come over connections like those of
requests, which take half of the CPU time that aiohttp takes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from inferway.config import TimeoutSettings
from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.fleet.engine_facts import whole_lines
from inferway.fleet.http_client import MAX_PAGE_BYTES, StatusError
from inferway.model import Headers
from inferway.upstream.headers import header_block
from inferway.upstream.pool import Pool


class MetricsClient:
    """`open` it in a running loop, `close` it when done."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        seconds: float,
        on_closed: Callable[[str], None] | None = None,
    ) -> None:
        """`tls` says who is trusted to be an https engine; a page must be there in `seconds`.
        `on_closed`: as `Pool` has it."""
        self._tls = tls
        self._seconds = seconds
        self._on_closed = on_closed
        self._pool: Pool | None = None

    def open(self) -> None:
        each = 2 * self._seconds  # `get` gives up sooner
        timeouts = TimeoutSettings(connect=each, first_byte=each, idle_stream=each)
        self._pool = Pool(timeouts, tls=self._tls, on_closed=self._on_closed)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def get(self, url: str, path: str, headers: Headers) -> str:
        """Return the body of a 200 from the engine at `url`, cut after MAX_PAGE_BYTES; empty if it
        has no such page. Raises StatusError for another answer, UpstreamTimeoutError for none in
        time, UpstreamError for no connection."""
        assert self._pool is not None
        name = f"{url}{path.partition('?')[0]}"
        page = _Page(self._pool.loop)
        timer = self._pool.loop.call_later(self._seconds, page.is_late, name)
        exchange = self._pool.send(url, "GET", path.encode(), header_block(headers), b"", page)
        try:
            body = await page.body
        finally:
            timer.cancel()
            exchange.abort()
        if page.status == 404:  # not everything that speaks OpenAI's API has it
            return ""
        if page.status != 200:
            raise StatusError(f"{name} answered {page.status}", page.status)
        return whole_lines(body).decode(errors="replace")


class _Page:
    """Takes one answer, up to a little more than MAX_PAGE_BYTES."""

    __slots__ = ("_pieces", "_size", "body", "status")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.body: asyncio.Future[bytes] = loop.create_future()
        self.status = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:  # noqa: ARG002
        self.status = status

    def on_chunk(self, chunk: bytes) -> None:
        if self.body.done():
            return  # it was longer, and the connection is about to be closed
        self._size += len(chunk)
        self._pieces.append(chunk)
        if self._size > MAX_PAGE_BYTES:
            self.body.set_result(b"".join(self._pieces))

    def on_end(self, chunk: bytes) -> None:
        if not self.body.done():
            self._pieces.append(chunk)
            self.body.set_result(b"".join(self._pieces))

    def is_late(self, name: str) -> None:
        self.on_error(UpstreamTimeoutError(f"{name} did not answer in time"))

    def on_error(self, error: UpstreamError) -> None:
        if not self.body.done():
            self.body.set_exception(error)
