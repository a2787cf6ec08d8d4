"""Whatever clients and engines do, file descriptors, tasks, objects and counters go back to where
they were."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.http.clients import Client, connected, post
from tests.http.gateways import Gateway, gateway
from tests.upstream.engines import (
    CHUNKED_HEAD,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    Seen,
    Talk,
    answer,
    chunk,
    in_loop,
    raw,
    running,
    wait_until,
)

from inferway.config import TimeoutSettings
from inferway.http.connection import ClientConnection
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.upstream.connection import EngineConnection
from inferway.upstream.exchange import UpstreamRequest

OURS = (ClientConnection, Request, Responder, EngineConnection, UpstreamRequest)
CLIENTS = 100
EVENT = chunk(b"data: x\n\n")
TIMEOUTS = TimeoutSettings(first_byte=0.3, idle_stream=0.3, connect=1)


async def reset(_: Seen, talk: Talk) -> None:
    await talk.write(SSE_HEAD + EVENT + b"5\r\nab")
    talk.reset()


ENGINES: dict[str, Script] = {
    "answers": answer(b"x"),
    "streams": raw(SSE_HEAD, EVENT, EVENT, LAST_CHUNK),
    "garbage": raw(b"SSH-2.0\r\n"),
    "half a head": raw(b"HTTP/1.1 200 OK\r\ncontent-", close=True),
    "too short": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", close=True),
    "too long": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef"),
    "never answers": raw(),
    "stops in its stream": raw(SSE_HEAD, EVENT),
    "resets in a chunk": reset,
    "garbage in its stream": raw(CHUNKED_HEAD, chunk(b"ab"), b"zz\r\n"),
    "closes at once": raw(close=True),
}


async def stays(client: Client) -> None:
    """Reads whatever comes, until it is over."""
    await client.send(post(b"{}", b"connection: close"))
    await client.closed()


async def leaves(client: Client) -> None:
    await client.send(post())
    await asyncio.sleep(0.001)
    client.reset()


async def half_a_request(client: Client) -> None:
    await client.send(post(b"x" * 1000)[:-500])


Kind = TypeVar("Kind")
CLIENT_KINDS = {"stays": stays, "leaves": leaves, "sends half a request": half_a_request}


def taken(gw: Gateway) -> dict[str, object]:
    gc.collect()
    left = Counter(type(o).__name__ for o in gc.get_objects() if type(o) in OURS)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "objects": dict(left),
        "counters": (gw.server.stats.open, gw.server.stats.answering, gw.pool.stats.open),
    }


def drop_idle(gw: Gateway) -> None:
    """Idle connections to engines may stay; not here."""
    for origin in gw.pool._origins.values():
        for connection in list(origin.idle):
            connection.drop()


@pytest.mark.parametrize("what", CLIENT_KINDS.values(), ids=CLIENT_KINDS)
@pytest.mark.parametrize("script", ENGINES.values(), ids=ENGINES)
@in_loop
async def test_all_comes_back(script: Script, what: Callable[[Client], Awaitable[None]]) -> None:
    async def one() -> None:
        async with connected(gw.server) as client:
            await what(client)

    async with running(script) as engine, gateway(engine.url, timeouts=TIMEOUTS) as gw:
        before = taken(gw)
        await asyncio.gather(*(one() for _ in range(CLIENTS)))
        await wait_until(lambda: gw.server.stats.open == 0)
        drop_idle(gw)
        await wait_until(lambda: gw.pool.stats.open == 0 and engine.open == 0)
        gw.trips.clear()
        await wait_until(lambda: taken(gw) == before)

        assert gw.server.stats.crashed == 0


def living(kind: type[Kind]) -> list[Kind]:
    return [o for o in gc.get_objects() if type(o) is kind]


@in_loop
async def test_a_stream_keeps_no_body() -> None:
    script = raw(SSE_HEAD, EVENT)
    requests, exchanges = living(Request), living(UpstreamRequest)  # of others, if any
    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as client:
        await client.send(post(b"x" * 100_000))
        await client.head()
        await client.chunk()

        [request] = [one for one in living(Request) if one not in requests]
        [exchange] = [one for one in living(UpstreamRequest) if one not in exchanges]
        assert (request.body, exchange.pieces) == (b"", ())
