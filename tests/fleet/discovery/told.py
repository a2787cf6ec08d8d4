"""What a source has told, and waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from inferway.config import EngineSettings
from inferway.fleet.discovery.sources import EngineSource


class Told:
    """The engines, as last told; `until` they are these."""

    def __init__(self) -> None:
        self.lists: list[list[EngineSettings]] = []
        self._came = asyncio.Event()

    def __call__(self, engines: Sequence[EngineSettings]) -> None:
        self.lists.append(list(engines))
        self._came.set()

    @property
    def urls(self) -> list[str]:
        """Of the last list."""
        return sorted(engine.url.removeprefix("http://") for engine in self.lists[-1])

    async def until(self, *urls: str) -> None:
        """The engines are these; raises TimeoutError."""
        async with asyncio.timeout(10):
            while not self.lists or self.urls != sorted(urls):
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def running(source: EngineSource) -> AsyncIterator[Told]:
    """A source that tells, until the end of the block."""
    told = Told()
    task = asyncio.ensure_future(source.run(told))
    try:
        yield told
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
