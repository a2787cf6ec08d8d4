"""What a router takes when it has just started, and with many streams open."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

import uvloop

from inferway_bench import conversations
from inferway_bench.cpu import resident_bytes
from inferway_bench.placed import placed
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.proxy.pacing import set_pace
from inferway_bench.proxy.plan import Plan
from inferway_bench.proxy.results import Memory
from inferway_bench.routers import Router

_STEP_SECONDS = 2.0  # between the tokens of streams that are held
_TOKENS = 100
_AT_ONCE = 50  # streams that are opened side by side
_PATIENCE = 60.0
_MIB = 2**20


def measure_memory(
    routers: Sequence[Router], model: str, plan: Plan, on_step: OnStep
) -> list[Memory]:
    """In processes that have done nothing before but one request."""
    at_start: dict[str, list[float]] = {router.label: [] for router in routers}
    growth: dict[str, list[float]] = {router.label: [] for router in routers}
    for repeat in range(plan.memory_repeats):
        for router in routers:
            on_step(f"memory: {router.label}, {repeat + 1} of {plan.memory_repeats}")
            with placed([router], model, lambda _: None) as [one]:
                before = resident_bytes(one.pid)
                set_pace(one, _TOKENS, _STEP_SECONDS)
                held = uvloop.run(_with_streams(one.place.url, one.pid, model, plan.held_streams))
                at_start[router.label].append(round(before / _MIB, 1))
                growth[router.label].append(round((held - before) / _MIB, 1))
    return [Memory(name, at_start[name], growth[name]) for name in at_start]


async def _with_streams(url: str, pid: int, model: str, number: int) -> int:
    """Resident bytes while so many streams are open, each with its first event at its client.

    Raises BenchError when one does not begin.
    """
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
    """A stream whose first event has come."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
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
