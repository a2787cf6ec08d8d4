"""A connection that is made at the very moment at which the time for it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tests.upstream.engines import answer, in_loop, running, wait_until
from tests.upstream.pause import stand_still

from inferway.config import TimeoutSettings
from inferway.errors import UpstreamError
from inferway.model import Headers
from inferway.upstream.pool import Pool


class Failed:
    """A sink that keeps the error, and whether it heard the end."""

    def __init__(self) -> None:
        self.error: UpstreamError | None = None
        self.is_whole = False

    def on_head(self, status: int, headers: Headers, length: int | None) -> None: ...
    def on_chunk(self, chunk: bytes) -> None: ...
    def on_end(self, chunk: bytes) -> None:  # noqa: ARG002
        self.is_whole = True

    def on_error(self, error: UpstreamError) -> None:
        self.error = error


class LateLoop:
    """Connects, and does not say so in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], *place: Any, **how: Any
    ) -> None:
        await self._loop.create_connection(factory, *place, **how)
        await asyncio.Event().wait()


@in_loop
async def test_a_connection_that_comes_with_the_timeout_is_closed() -> None:
    async with running(answer(b"ok")) as engine:
        pool, sink = Pool(TimeoutSettings(connect=0.2)), Failed()
        pool.loop = cast(asyncio.AbstractEventLoop, LateLoop(pool.loop))

        pool.send(engine.url, "GET", b"/", b"", b"", sink)
        await wait_until(lambda: sink.error is not None)
        await wait_until(lambda: engine.connections == 1 and engine.open == 0)

        assert "no connection within 0.2 s" in str(sink.error)
        assert pool.stats.open == 0
        await pool.close()


@in_loop
async def test_the_gateway_s_own_pause_is_no_timeout() -> None:
    async with running(answer(b"ok")) as engine:
        pool, sink = Pool(TimeoutSettings(connect=0.1)), Failed()

        pool.send(engine.url, "GET", b"/", b"", b"", sink)
        await asyncio.sleep(0)  # the attempt to connect begins
        stand_still(0.3)
        await wait_until(lambda: sink.is_whole or sink.error is not None)

        assert sink.error is None
        await pool.close()


class Told(asyncio.Protocol):
    """Is a connection, and does something more once it is made."""

    def __init__(self, connection: asyncio.Protocol, then: Callable[[], object]) -> None:
        self._connection = connection
        self._then = then

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.connection_made(transport)
        self._then()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


class HurriedLoop(LateLoop):
    """Connects, and is cancelled before it can say so: uvloop then closes the socket and does not
    tell its protocol."""

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], *place: Any, **how: Any
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        await self._loop.create_connection(lambda: Told(factory(), task.cancel), *place, **how)


@in_loop
async def test_a_connection_whose_loop_has_closed_it_in_silence_is_forgotten() -> None:
    async with running(answer(b"ok")) as engine:
        pool, sink = Pool(), Failed()
        pool.loop = cast(asyncio.AbstractEventLoop, HurriedLoop(pool.loop))

        pool.send(engine.url, "GET", b"/", b"", b"", sink)
        await wait_until(lambda: sink.error is not None)
        await wait_until(lambda: engine.connections == 1 and engine.open == 0)

        assert pool.stats.open == 0
        assert not any(origin.connections for origin in pool._origins.values())
        await pool.close()
