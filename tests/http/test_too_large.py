"""An engine with a limit of its own for bodies (vLLM 0.33's Rust frontend: 32 MiB) answers while a
body still comes, and closes the connection: the client gets that answer, no other engine is asked,
and nothing counts against the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest
from tests.http.clients import connected, post
from tests.http.gateways import gateway
from tests.upstream.engines import answer, in_loop, running

from inferway.routing.limits.failover import FailoverPolicy

LIMIT = 1 << 20
BODY = b"x" * (4 * LIMIT)
REFUSAL = b'{"error":{"message":"length limit exceeded","code":413}}'


@asynccontextmanager
async def limited(status: bytes, limit: int = LIMIT) -> AsyncIterator[str]:
    """An engine that reads no more than so many bytes of a body."""
    said = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if limit:
            await reader.readexactly(limit)
        writer.write(said % (status, len(REFUSAL), REFUSAL))
        await writer.drain()
        writer.close()  # what has come and is not read has the kernel reset the connection

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("limit", [0, LIMIT])
@pytest.mark.parametrize("status", [b"413 Payload Too Large", b"400 Bad Request"])
@in_loop
async def test_a_refusal_amid_the_body_is_passed_on_and_counts_for_nothing(
    status: bytes, limit: int
) -> None:
    policy = FailoverPolicy(monotonic)
    async with (
        limited(status, limit) as url,
        running(answer(b"other")) as other,
        gateway(url, other.url, policy=policy) as gw,
        connected(gw.server) as c,
    ):
        for _ in range(2):
            got = await c.ask(post(BODY))

            assert (got.status, got.body) == (int(status[:3]), REFUSAL)
            assert got.values(b"x-inferway-engine") == [b"e0"]
        assert other.seen == []
        assert policy.standing.is_plain
        assert [trip.attempts for trip in gw.trips] == [["e0"]] * 2
