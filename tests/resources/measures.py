"""What connections, streams and slow clients cost, and that it all comes back."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from tests.resources.worlds import EVENTS, Client, World, chat, connect

PADDING = 100_000  # bytes of prompt of those who have been answered
SLOW_SECONDS = 2.0  # a request may take so long to arrive


async def warm(world: World) -> None:
    """So that what is taken once for all is not counted for each."""
    clients = await connect(world.port, 20)
    for _ in range(20):
        await answered(clients, [chat("w", stream=False, padding=1000)] * len(clients))
    await left(clients)


async def answered(clients: list[Client], requests: list[bytes]) -> None:
    """Each asks, and has its answer."""
    for client, request in zip(clients, requests, strict=True):
        client.heard = b""
        client.transport.write(request)
    while any(not client.heard.endswith(b"{}") for client in clients):
        await asyncio.sleep(0.005)


async def left(clients: list[Client]) -> None:
    for client in clients:
        client.transport.abort()
    while not all(client.closed for client in clients):
        await asyncio.sleep(0.005)


async def idle(world: World, number: int) -> dict[str, Any]:
    """Connections that have asked for nothing yet; then each has been answered once."""
    descriptors = world.descriptors()
    await warm(world)
    before = world.resident_kb()
    clients = await connect(world.port, number)
    await answered(clients[:1], [chat("x", stream=False)])
    fresh = world.resident_kb()
    for first in range(0, number, 50):
        some = clients[first : first + 50]
        await answered(some, [chat("x", stream=False, padding=PADDING)] * len(some))
    used = world.resident_kb()
    held = world.descriptors() - descriptors  # engines' included
    await left(clients)
    return {
        "connections": number,
        "descriptors_held": held,
        "kb_each_before_a_request": round((fresh - before) / number, 2),
        "kb_each_after_an_answer": round((used - before) / number, 2),
        "descriptors_left": await world.settled(descriptors) - descriptors,
    }


async def streams(world: World, number: int) -> dict[str, Any]:
    """All open at once; each event is its own request's."""
    descriptors = world.descriptors()
    await warm(world)
    before = world.resident_kb()
    world.held.go.clear()
    clients = await connect(world.port, number)
    for index, client in enumerate(clients):
        client.transport.write(chat(f"nonce-{index}", stream=True))
        if index % 50 == 49:
            await asyncio.sleep(0.01)
    while not all(b"data: " in client.heard for client in clients):
        await asyncio.sleep(0.02)
    at_once = world.held.waiting
    during = world.resident_kb()
    world.held.go.set()
    while not all(client.heard.endswith(b"0\r\n\r\n") for client in clients):
        await asyncio.sleep(0.02)
    wrong = sum(
        client.heard.count(b"data: ") != 1 + EVENTS
        or client.heard.count(b"data: nonce-%d\n\n" % index) != 1 + EVENTS
        for index, client in enumerate(clients)
    )
    await left(clients)
    after = await world.settled(descriptors)
    return {
        "streams": number,
        "at_once": at_once,
        "wrong": wrong,
        "kb_each": round((during - before) / number, 2),
        "descriptors_left": after - descriptors,
    }


async def slow(world: World, number: int) -> dict[str, Any]:
    """So many clients say a byte now and then; another is answered as fast as ever."""
    descriptors = world.descriptors()
    await warm(world)
    before = world.resident_kb()
    (other,) = await connect(world.port, 1)
    alone = await _milliseconds(other, 200)
    began = time.monotonic()
    clients = await connect(world.port, number)
    request = chat("slow", stream=False)
    beside: list[float] = []
    peak = before
    rest = iter(request[:-1])  # on a fast machine all of it is said but the end
    while not all(client.heard for client in clients):
        if (byte := next(rest, None)) is not None:
            for client in clients:
                if not client.closed:
                    client.transport.write(bytes([byte]))
        beside += await _milliseconds(other, 20)
        peak = max(peak, world.resident_kb())
    while not all(client.closed for client in clients):
        await asyncio.sleep(0.02)
    seconds = time.monotonic() - began
    told = sum(client.heard.startswith(b"HTTP/1.1 408 ") for client in clients)
    await left([other])
    return {
        "clients": number,
        "request_body_seconds": SLOW_SECONDS,
        "told_408": told,
        "all_gone_after_seconds": round(seconds, 1),
        "kb_each": round((peak - before) / number, 2),
        "another_ms_p50": [_p(alone, 50), _p(beside, 50)],
        "another_ms_p99": [_p(alone, 99), _p(beside, 99)],
        "descriptors_left": await world.settled(descriptors) - descriptors,
    }


async def _milliseconds(client: Client, times: int) -> list[float]:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        client.heard = b""
        client.transport.write(chat("x", stream=False))
        while not client.heard.endswith(b"{}"):
            await asyncio.sleep(0)
        taken.append((time.perf_counter() - started) * 1e3)
    return taken


def _p(values: list[float], percent: int) -> float:
    return round(statistics.quantiles(values, n=100)[percent - 1], 2)
