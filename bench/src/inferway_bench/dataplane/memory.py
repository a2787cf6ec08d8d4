"""What a router takes when it has just started, and with many streams open."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

import uvloop

from inferway_bench import conversations
from inferway_bench.cpu import resident_bytes
from inferway_bench.dataplane.testbed import CHATS, set_pace, started_routers
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.routers import Router
from inferway_bench.rows import Row

_STEP_SECONDS = 2.0  # between the tokens of streams that are held
_TOKENS = 100
_AT_ONCE = 50  # streams that are opened side by side
_PATIENCE = 60.0


def memory_rows(
    routers: Sequence[Router], model: str, streams: int, repeats: int, on_step: OnStep
) -> list[Row]:
    """Start each router `repeats` times, and open `streams` after one request. Raises BenchError
    when a stream does not begin."""
    starts: dict[Router, list[float]] = {router: [] for router in routers}
    growths: dict[Router, list[float]] = {router: [] for router in routers}
    for repeat in range(repeats):
        for router in routers:
            on_step(f"memory: {router.label}, {repeat + 1} of {repeats}")
            with started_routers([router], model, lambda _: None) as [one]:
                before = resident_bytes(one.pid)
                set_pace(one.place.engines, _TOKENS, _STEP_SECONDS)
                held = uvloop.run(_with_streams(one.place.url, one.pid, model, streams))
            starts[router].append(round(before / 2**20, 1))
            growths[router].append(round((held - before) / 2**20, 1))
    return [
        Row(
            "memory",
            {"router": router.label},
            {"at_start": starts[router], "growth": growths[router]},
            is_ours=router.is_ours,
        )
        for router in routers
    ]


async def _with_streams(url: str, pid: int, model: str, number: int) -> int:
    """Return the resident bytes while `number` streams are open, each with its first event at its
    client."""
    bodies = conversations.short_chat(model, stream=True)
    writers: list[asyncio.StreamWriter] = []
    try:
        async with asyncio.timeout(_PATIENCE):
            for first in range(0, number, _AT_ONCE):
                some = range(first, min(first + _AT_ONCE, number))
                texts = [bodies[i % len(bodies)].body(i) for i in some]
                writers += await asyncio.gather(*(_begin(url, text) for text in texts))
        return resident_bytes(pid)
    except TimeoutError as e:
        raise BenchError(f"{url}: {number} streams did not begin within {_PATIENCE:g} s") from e
    finally:
        for writer in writers:
            writer.transport.abort()


async def _begin(url: str, body: bytes) -> asyncio.StreamWriter:
    """Return a stream whose first event has come."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = (
        f"POST {CHATS} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    heard = b""
    while b"data: " not in heard:
        more = await reader.read(65536)
        if not more:
            raise BenchError(f"{url}: a stream ended before it began: {heard[:300]!r}")
        heard += more
    return writer
