"""Real servers on free ports, and waiting for what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Its URL. `answer` has every GET and POST; it is cancelled when the client hangs up."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; raises TimeoutError."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)
