"""Work that nobody waits for: kept until it ends, and heard of if it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable


class Tasks:
    """Of one owner. `failed`: what the log says, with the error, of one that ended by it."""

    def __init__(self, log: logging.Logger, failed: str) -> None:
        self.running: set[asyncio.Task[None]] = set()  # the event loop alone would lose them
        self._log = log
        self._failed = failed

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.running.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancels those that run; returns when they have ended."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s", self._failed, exc_info=error)
