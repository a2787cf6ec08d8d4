"""Who sees for itself how engines are, beside the gateway: so that an alarm is not called false
when the machine was so busy that the engine really stood still.

It asks each engine by the address that the gateway has, again and again, how many tokens it has
computed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from tests.soak.history import Alarm

from inferway_bench.routers import read_metrics, total

EVERY_SECONDS = 0.5
LATE_SECONDS = 2.0  # the gateway's own patience is 2.5 s, of which it may not have seen all
WINDOW_SECONDS = 10.0  # before an alarm, in which what it is about has been
_TIMEOUT = aiohttp.ClientTimeout(total=WINDOW_SECONDS)
_RUNNING, _GENERATED = "vllm:num_requests_running", "vllm:generation_tokens_total"


@dataclass(frozen=True, slots=True)
class Sighting:
    """An engine was asked, and answered or not. Times in seconds since the epoch."""

    asked: float
    ended: float
    computed: float | None = None  # tokens; None: there was no answer
    is_busy: bool = False


@dataclass(slots=True)
class Witness:
    """What was seen of each engine, by the gateway's name of it."""

    seen: dict[str, list[Sighting]] = field(default_factory=dict)

    def confirms(self, alarm: Alarm) -> bool:
        """Return whether the engine was late by its own fault, or the machine's."""
        first = alarm.at - WINDOW_SECONDS
        near = [
            each
            for each in self.seen.get(alarm.engine, [])
            if each.ended >= first and each.asked <= alarm.at
        ]
        is_late = any(
            each.computed is None or each.ended - each.asked >= LATE_SECONDS for each in near
        )
        return is_late or _stands_still(near)


def _stands_still(seen: Sequence[Sighting]) -> bool:
    since: Sighting | None = None
    for each in seen:
        if since is None or not each.is_busy or each.computed != since.computed:
            since = each
        elif each.ended - since.asked >= LATE_SECONDS:
            return True
    return False


@asynccontextmanager
async def witness(addresses: Sequence[str]) -> AsyncIterator[Witness]:
    """Looks until the block is left."""
    found = Witness({address: [] for address in addresses})
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(_look(session, each, found)) for each in addresses]
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()


async def _look(session: aiohttp.ClientSession, address: str, found: Witness) -> None:
    url = f"http://{address}/metrics/?name[]={_RUNNING}&name[]={_GENERATED}"
    while True:
        found.seen[address].append(await _sighting(session, url))
        await asyncio.sleep(EVERY_SECONDS)


async def _sighting(session: aiohttp.ClientSession, url: str) -> Sighting:
    asked = time.time()
    try:
        async with session.get(url) as answer:
            counted = read_metrics(await answer.text())
    except (aiohttp.ClientError, OSError, TimeoutError):
        return Sighting(asked, time.time())
    is_busy = total(counted, _RUNNING) > 0
    return Sighting(asked, time.time(), total(counted, _GENERATED), is_busy)
