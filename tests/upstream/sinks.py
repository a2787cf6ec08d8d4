"""Asking engines through a pool, and keeping what comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inferway.config import TimeoutSettings
from inferway.errors import UpstreamError
from inferway.model import Headers
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.pool import Pool


class Collected:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.length: int | None = None
        self.body = b""
        self.error: UpstreamError | None = None
        self.over = asyncio.Event()
        self.calls: list[str] = []

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self.calls.append("head")
        self.status, self.headers, self.length = status, headers, length

    def on_chunk(self, chunk: bytes) -> None:
        self.calls.append("chunk")
        self.body += chunk

    def on_end(self, chunk: bytes) -> None:
        self.calls.append("end")
        self.body += chunk
        self.over.set()

    def on_error(self, error: UpstreamError) -> None:
        self.calls.append("error")
        self.error = error
        self.over.set()


@asynccontextmanager
async def pool_of(
    timeouts: TimeoutSettings | None = None, idle_keep_alive: float = 4.0
) -> AsyncIterator[Pool]:
    pool = Pool(timeouts, idle_keep_alive=idle_keep_alive)
    try:
        yield pool
    finally:
        await pool.close()


def start(
    pool: Pool,
    url: str,
    method: str = "POST",
    headers: bytes = b"",
    body: bytes = b"{}",
    *,
    once: bool = False,
) -> tuple[UpstreamRequest, Collected]:
    sink = Collected()
    return pool.send(url, method, b"/v1/x?a=b", headers, body, sink, once=once), sink


async def ask(
    pool: Pool,
    url: str,
    method: str = "POST",
    headers: bytes = b"",
    body: bytes = b"{}",
    *,
    once: bool = False,
) -> Collected:
    _, sink = start(pool, url, method, headers, body, once=once)
    await sink.over.wait()
    return sink
