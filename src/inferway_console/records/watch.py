"""Extensions that look at prompts as they pass, beside their requests: for what breaks caches, and
for the texts that an admin may ask for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from inferway.extension import Extension
from inferway.tasks import Tasks, next_multiple
from inferway_console.records.breakers import CacheBreakers
from inferway_console.records.prompt_texts import PromptTexts

log = logging.getLogger("inferway")

LOOK_SECONDS = 1.0
CPU_SECONDS = 0.01  # of each: at most a hundredth of a core, but for what is begun


class PromptWatch:
    """`extensions` look at requests; `start` begins to work on what they have put aside, in a
    thread. `texts` is None unless texts are asked for."""

    def __init__(self, *, with_text: bool = False) -> None:
        self.breakers = CacheBreakers(keeps_text=with_text)
        self.texts = PromptTexts() if with_text else None
        self._tasks = Tasks(log, "cache breakers are no longer looked for, by a fault of ours")

    @property
    def extensions(self) -> Sequence[Extension]:
        """The extensions that look at each request that was decided by its prompt."""
        return [self.breakers] if self.texts is None else [self.breakers, self.texts]

    def start(self) -> None:
        self._tasks.spawn(self._look())

    async def close(self) -> None:
        await self._tasks.close()

    async def _look(self) -> None:
        while True:
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(next_multiple(now, LOOK_SECONDS) - now)
            if self.breakers.has_work:
                await asyncio.to_thread(self._work)

    def _work(self) -> None:
        end = time.thread_time() + CPU_SECONDS
        self.breakers.work(lambda: time.thread_time() >= end)
