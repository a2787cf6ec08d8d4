"""Engines that do what a test says: they note what came, and answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256

from aiohttp import web

Behave = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


@dataclass
class Came:
    """One request, as the engine got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Upstream:
    """Listens until the end of the block."""

    behave: Behave
    came: list[Came] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Upstream:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.read()
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.came.append(Came(request.method, request.path_qs, headers, body))
            return await self.behave(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled.set()
            raise


async def digest(_: web.Request, body: bytes) -> web.StreamResponse:
    """What came, told by its digest."""
    usage = {"prompt_tokens": 32, "completion_tokens": 10, "total_tokens": 42}
    return web.json_response(
        {"model": "v2", "bytes": len(body), "sha256": sha256(body).hexdigest(), "usage": usage}
    )


def answers(size: int) -> Behave:
    """So many bytes."""

    async def behave(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.Response(body=b"y" * size, content_type="application/octet-stream")

    return behave


def streams(events: int, go: asyncio.Semaphore) -> Behave:
    """So many events, each when it may go."""

    async def behave(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(events):
            await go.acquire()
            await response.write(b'data: {"model":"v2","n":%d}\n\n' % number)
        await response.write(b"data: [DONE]\n\n")
        return response

    return behave


async def refuses(_: web.Request, __: bytes) -> web.StreamResponse:
    """503, as an engine that is going down."""
    return web.json_response({"error": "going down"}, status=503)
