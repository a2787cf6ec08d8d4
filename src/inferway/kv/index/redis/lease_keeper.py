"""Renews leases, takes those that are free, reads how far each picture is to be trusted, and mends
the connections."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from inferway.kv.index.redis.connection_health import ConnectionHealth, RedisLimits
from inferway.kv.index.redis.flusher import Flusher
from inferway.kv.index.redis.scripts import KEEP, LEAVE
from inferway.kv.index.redis.writer import HolderRegistry, HolderWriter
from inferway.model import HolderId
from inferway.tasks import happens_within

log = logging.getLogger("inferway.index")

STALE = "stale"
KEEP_HOLDERS = 256  # in one call
_DIGITS = re.compile(rb"-?[0-9]{1,18}")

# What a writer may tell (kv.events.stream.StreamState); other words in the server mean "stale".
STATES = frozenset({"exact", "partial", "repairing", "stale", "blind"})


@dataclass(frozen=True, slots=True)
class SharedPicture:
    """How far a holder's picture is to be trusted, as of the last `keep`."""

    state: str  # what its writer told of it; "stale" while nobody confirms it
    gateway: str | None  # who writes it
    epoch: int  # another number: another picture
    seq: int | None  # of the last event batch in it
    digest: str  # of that batch's bytes
    num_blocks: int  # that a prompt can reach


class LeaseKeeper:
    """`run` as a task, which hurries when `wanted` is set. `gateway`: our name in leases."""

    def __init__(
        self,
        link: ConnectionHealth,
        roll: HolderRegistry,
        flushing: Flusher,
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
        self._standings: dict[HolderId, SharedPicture] = {}
        self._bad: dict[HolderId, bytes] = {}  # the key that was warned of
        self._round = asyncio.Lock()

    def standing(self, holder: HolderId) -> SharedPicture | None:
        """Return the holder's picture as of the last round; None before the first."""
        return self._standings.get(holder)

    def forget(self, holder: HolderId) -> None:
        self._standings.pop(holder, None)
        self._bad.pop(holder, None)

    async def run(self) -> None:
        """Do a round now and then until the task is cancelled."""
        while True:
            self._wanted.clear()
            if await self.keep_or_warn():
                await happens_within(self._wanted, self._limits.lease / 3)
            else:
                await asyncio.sleep(self._limits.retry)

    async def keep_or_warn(self) -> bool:
        """Do one round and log a failure. Returns whether the server has answered."""
        try:
            await self.keep()
        except RedisError as e:
            self._link.trouble(e)
            return False
        return True

    async def keep(self) -> None:
        """Do one round: connections, leases, standings. Raises RedisError."""
        async with self._round:
            await self._link.mend()
            self._flushing.resume()
            named, now = self._roll.named, asyncio.get_running_loop().time()
            for first in range(0, len(named), KEEP_HOLDERS):
                part = named[first : first + KEEP_HOLDERS]
                await self._keep([h for h in part if h in self._roll.writers], now)

    async def leave(self, name: str, *, for_good: bool = False) -> None:
        """Give up the lease, if it is ours. What cannot be given up now lapses by itself."""
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
        lease, of, epoch, batch, state, seq, digest, num_held, bad = row
        self._warn_of(holder, bad)
        gateway = None if lease is None else lease.partition(b" ")[2].decode(errors="replace")
        writer.leased(lease.decode() if lease is not None and gateway == self._gateway else None)
        if writer.lease is not None:
            writer.audit(settled, _number(batch) or 0, num_held)
            if writer.busy:
                self._flushing.want(holder, writer)
        told = (state or b"").decode(errors="replace") if lease is not None and lease == of else ""
        self._standings[holder] = SharedPicture(
            state=told if told in STATES else STALE,
            gateway=gateway,
            epoch=_number(epoch) or 0,
            seq=_number(seq),
            digest=(digest or b"").decode(errors="replace"),
            num_blocks=max(num_held, 0),
        )

    def _warn_of(self, holder: HolderId, bad: bytes | None) -> None:
        """Once for each key that becomes bad."""
        if bad is None:
            self._bad.pop(holder, None)
        elif self._bad.get(holder) != bad:
            self._bad[holder] = bad
            log.warning(
                "the shared index %s: the key %s is not as gateways write it, and its engine's"
                " blocks are not matched until the gateway that follows the engine has written"
                " them anew; keep other programs from these keys; if no gateway follows the"
                " engine, delete the key: redis-cli UNLINK %s",
                self._link.shown,
                *(2 * (bad.decode(errors="replace"),)),
            )


def milliseconds(seconds: float) -> int:
    """Return a time as Redis takes it."""
    return int(seconds * 1000)


def _number(text: bytes | None) -> int | None:
    """None also for what no gateway has written."""
    return int(text) if text is not None and _DIGITS.fullmatch(text) else None
