"""Renews leases, takes those that are free, reads how far each picture is to be trusted, and mends
the connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from inferway.index.redis.flushing import Flushing
from inferway.index.redis.link import Link
from inferway.index.redis.roll import Roll
from inferway.index.redis.scripts import KEEP, LEAVE
from inferway.index.redis.values import STATES, RedisLimits, Standing, milliseconds
from inferway.index.redis.writer import HolderWriter
from inferway.model import HolderId

STALE = "stale"
KEEP_HOLDERS = 256  # in one call


class Keeping:
    """`run` as a task, which hurries when `wanted` is set. `gateway`: our name in leases."""

    def __init__(
        self,
        link: Link,
        roll: Roll,
        flushing: Flushing,
        limits: RedisLimits,
        gateway: str,
        fence: str,
        wanted: asyncio.Event,
    ) -> None:
        self._link = link
        self._roll = roll
        self._flushing = flushing
        self._limits = limits
        self._gateway = gateway
        self._fence = fence
        self._wanted = wanted
        self._standings: dict[HolderId, Standing] = {}
        self._round = asyncio.Lock()

    def standing(self, holder: HolderId) -> Standing | None:
        """As of the last round; None before the first."""
        return self._standings.get(holder)

    def forget(self, holder: HolderId) -> None:
        self._standings.pop(holder, None)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._wanted.clear()
            if await self.keep_or_warn():
                await _set_within(self._wanted, self._limits.lease / 3)
            else:
                await asyncio.sleep(self._limits.retry)

    async def keep_or_warn(self) -> bool:
        """Whether the server has answered."""
        try:
            await self.keep()
        except RedisError as e:
            self._link.trouble(e)
            return False
        return True

    async def keep(self) -> None:
        """One round: connections, leases, standings. Raises RedisError."""
        async with self._round:
            await self._link.mend()
            self._flushing.resume()
            named, now = self._roll.named, asyncio.get_running_loop().time()
            for first in range(0, len(named), KEEP_HOLDERS):
                part = named[first : first + KEEP_HOLDERS]
                await self._keep([h for h in part if h in self._roll.writers], now)

    async def leave(self, name: str, *, for_good: bool = False) -> None:
        """Gives up the lease, if it is ours. What cannot be given up now lapses by itself."""
        with suppress(RedisError):
            await self._link.writing.ask(LEAVE, (name,), (self._gateway, int(for_good)))

    async def _keep(self, holders: Sequence[HolderId], now: float) -> None:
        writers = [self._roll.writers[holder] for holder in holders]
        able = [
            int(writer.able and not self._flushing.rests(holder, now))
            for holder, writer in zip(holders, writers, strict=True)
        ]
        names = [writer.name for writer in writers if writer.name is not None]
        settled = [writer.settled for writer in writers]
        times = map(milliseconds, (self._limits.lease, self._limits.forget))
        rows = await self._link.keeping.ask(
            KEEP, [self._fence, *names], [self._gateway, *times, *able]
        )
        for holder, writer, before, row in zip(holders, writers, settled, rows, strict=True):
            if self._roll.writers.get(holder) is writer:
                self._kept(holder, writer, before, row)

    def _kept(self, holder: HolderId, writer: HolderWriter, settled: int | None, row: Any) -> None:
        """What KEEP answered for one holder, `settled` as it was when KEEP was asked."""
        lease, of, epoch, batch, state, seq, digest, num_held = row
        gateway = None if lease is None else lease.partition(b" ")[2].decode()
        writer.leased(lease.decode() if lease is not None and gateway == self._gateway else None)
        if writer.lease is not None:
            writer.audit(settled, int(batch or 0), num_held)
            if writer.busy:
                self._flushing.want(holder, writer)
        told = (state or b"").decode(errors="replace") if lease is not None and lease == of else ""
        self._standings[holder] = Standing(
            state=told if told in STATES else STALE,
            gateway=gateway,
            epoch=int(epoch or 0),
            seq=int(seq) if seq else None,
            digest=(digest or b"").decode(),
            num_blocks=num_held,
        )


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
