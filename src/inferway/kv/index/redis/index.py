"""`kv.index.protocol.Index` and `SharedIndex`, in a Redis that gateways share.

Three kinds of work, each with a connection of its own, so that none waits for another's:

    asking     a match is one round trip; who waits too long for it goes by load only
    flushing   a task that writes what `apply` has queued, for the holders whose lease is ours
    keeping    a task for leases, for how far each picture is to be trusted, and for connections
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from inferway.kv.index.metrics import index_families
from inferway.kv.index.protocol import TIER_WEIGHTS, Clear, LastReport, MatchResult, Op, Tier
from inferway.kv.index.redis.connection_health import ConnectionHealth, RedisLimits, RedisStats
from inferway.kv.index.redis.flusher import Flusher
from inferway.kv.index.redis.lease_keeper import LeaseKeeper, SharedPicture, milliseconds
from inferway.kv.index.redis.reader import IndexReader
from inferway.kv.index.redis.writer import HolderRegistry
from inferway.metrics import Family
from inferway.model import BlockKey, HolderId
from inferway.tasks import Tasks

log = logging.getLogger("inferway.index")

CLOSE_SECONDS = 1.0  # for what is still queued at the end


class RedisIndex:
    """`start` on the event loop, `close` at the end. `introduce` every holder under a name that
    is the same in all gateways, and `tell` when what is known of it may be shared: until then
    nothing of it is written. `gateway` is this process's own name among them."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "inferway",
        gateway: str | None = None,
        tier_weights: Sequence[float] = TIER_WEIGHTS,
        limits: RedisLimits | None = None,
    ) -> None:
        """Raises ConfigError if the URL cannot hold."""
        limits = limits or RedisLimits()
        prefix = f"{prefix}:1:"
        fence = prefix + "fence"
        self.gateway = gateway or secrets.token_hex(8)
        self.stats = RedisStats()
        self._keep_wanted = asyncio.Event()
        self._link = link = ConnectionHealth(url, limits.match, self.stats, self._keep_wanted)
        self._roll = roll = HolderRegistry(
            prefix, self.stats.written, limits.pending, milliseconds(limits.forget)
        )
        self._asking = IndexReader(link, roll, self.stats, tier_weights, limits.match)
        self._flushing = Flusher(link, roll, fence, limits.rest)
        self._keeping = LeaseKeeper(
            link, roll, self._flushing, limits, self.gateway, fence, self._keep_wanted
        )
        self._tasks = Tasks(log, f"a task of the shared index {link.shown} ended")

    async def start(self) -> None:
        """Connect. A server that is not there is a warning, and is looked for again."""
        await self._keeping.keep_or_warn()
        self._tasks.spawn(self._keeping.run())
        self._tasks.spawn(self._flushing.run())

    async def close(self) -> None:
        """Write what is queued and give up the leases, if that goes quickly. A second call does
        nothing."""
        if not self.away:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.flushed()
                    await asyncio.gather(*map(self._keeping.leave, self._roll.leased_names()))
            except TimeoutError:
                log.info(
                    "the shared index %s was closed before all was written to it", self._link.shown
                )
        await self._tasks.close()
        await self._link.close()

    # kv.index.protocol.SharedIndex: who the holders are

    @property
    def shared(self) -> RedisIndex:
        return self

    @property
    def away(self) -> bool:
        """Whether matches fail without being tried."""
        return not self._link.is_up

    def introduce(self, holder: HolderId, name: str) -> None:
        """Match `holder` from now on, and write it if the lease is ours. Raises ValueError if
        another one has that name."""
        self._roll.introduce(holder, name)
        self._keep_wanted.set()

    def retire(self, holder: HolderId) -> None:
        """Forget a holder that is gone for good; its number may be introduced under another name.
        What this gateway has written of it is removed."""
        writer = self._roll.remove(holder)
        self._keeping.forget(holder)
        self._flushing.forget(holder)
        if writer is not None and writer.name is not None and writer.lease is not None:
            self._tasks.spawn(self._keeping.leave(writer.name, for_good=True))

    def tell(self, holder: HolderId, report: LastReport) -> None:
        """Take what this gateway's picture of `holder` is. One that is not `fit` (stale, blind) is
        not written, and another gateway may."""
        writer = self._roll.writer(holder)
        was_able = writer.able
        writer.tell(report)
        if writer.able != was_able:
            self._keep_wanted.set()
        self._flushing.want(holder, writer)

    def standing(self, holder: HolderId) -> SharedPicture | None:
        """Return how far the holder's picture is to be trusted; None while that is not known, or
        the server is away."""
        return None if self.away else self._keeping.standing(holder)

    def shared_state(self, holder: HolderId) -> str | None:
        standing = self.standing(holder)
        if standing is None or self._roll.leased(holder) is not None:
            return None
        return standing.state

    # what they have

    def apply(self, ops: Iterable[Op]) -> None:
        for op in ops:
            writer = self._roll.writer(op.holder)
            writer.apply(op)
            self._flushing.want(op.holder, writer)
            if isinstance(op, Clear):
                self._flushing.cleared(op.holder, writer)

    async def match(self, keys: Sequence[BlockKey]) -> MatchResult:
        """Raises IndexAwayError if the server does not answer in time."""
        return await self._asking.match(keys)

    async def match_all(self, prompts: Sequence[Sequence[BlockKey]]) -> list[MatchResult]:
        """Raises IndexAwayError if the server does not answer in time."""
        return await self._asking.match_all(prompts)

    def num_blocks(self, holder: HolderId) -> int:
        """Return how many blocks it has, as our own picture says if we write it, else as the
        server's did at the last `keep`."""
        writer = self._roll.leased(holder)
        if writer is not None:
            return writer.num_blocks
        standing = self._keeping.standing(holder)
        return 0 if standing is None else standing.num_blocks

    def lower_tiers(self) -> Mapping[HolderId, Sequence[int]]:
        """Return nothing: the server does not count by tiers."""
        return {}

    def held(
        self, holder: HolderId, keys: Sequence[BlockKey], tier: Tier, group: int
    ) -> list[BlockKey]:
        """Return those of `keys` that the holder has there, as this gateway has heard; written or
        not."""
        writer = self._roll.writers.get(holder)
        return [] if writer is None else writer.held(keys, tier, group)

    def num_evicted(self, holder: HolderId) -> int:  # noqa: ARG002
        """Return 0: nothing is ever dropped for want of room; docs/redis.md has what it takes."""
        return 0

    # for metrics and tests

    @property
    def num_leases(self) -> int:
        """The number of holders that this gateway writes."""
        return len(self._roll.leased_names())

    @property
    def num_pending(self) -> int:
        """How many keys wait to be written."""
        return sum(writer.num_pending for writer in self._roll.writers.values())

    def families(self) -> Iterator[Family]:
        stats, written = self.stats, self.stats.written
        shared = {
            "index_away": self.away,
            "index_outages": stats.outages,
            "index_matches": stats.matches,
            "index_late": stats.late,
            "index_refused": stats.refused,
            "index_leases": self.num_leases,
            "index_pending_keys": self.num_pending,
            "index_written_keys": written.keys,
            "index_pictures": written.pictures,
            "index_fenced": written.fenced,
            "index_repairs": written.repairs,
        }
        num_bytes = sum(writer.num_bytes() for writer in self._roll.writers.values())
        answers = (stats.answered, stats.answer_seconds)
        return index_families(num_bytes, shared=shared, answers=answers)

    async def flushed(self) -> None:
        """Returns when the server has all that was applied, of the holders that we write."""
        await self._flushing.flushed()

    async def keep(self) -> None:
        """Do one round: connections, leases, standings. Raises RedisError."""
        await self._keeping.keep()
