"""`index.protocol.Index` in a Redis that gateways share.

Three tasks, each with a connection of its own, so that none waits for another's:

    match    asks, one round trip; whoever waits longer than `RedisLimits.match` goes by load only
    flush    writes what `apply` has queued, for the holders whose lease is ours
    keep     renews leases, takes those that are free, reads how far each picture is to be
             trusted, and mends the connections
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from inferway.errors import IndexAwayError
from inferway.index.protocol import TIER_WEIGHTS, Clear, Found, Holdings, Op, Tier
from inferway.index.redis.lane import refused
from inferway.index.redis.link import Link
from inferway.index.redis.scripts import KEEP, LEAVE, MATCH, WRITE
from inferway.index.redis.values import STATES, RedisLimits, RedisStats, Standing
from inferway.index.redis.writer import Answer, HolderWriter, Told, Write
from inferway.index.report import IndexReport, SharedReport
from inferway.model import BlockKey, HolderId

log = logging.getLogger("inferway.index")

STALE = "stale"
BATCH_KEYS = 512  # one script: ~1 ms in which the server answers nobody else
ROUND_KEYS = 4096  # one round trip: what is packed while nobody else has the event loop
CLOSE_SECONDS = 1.0  # for what is still queued at the end
KEEP_HOLDERS = 256  # in one call


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
        self.gateway = gateway or secrets.token_hex(8)
        self.stats = RedisStats()
        self._prefix = f"{prefix}:1:"
        self._weights = tier_weights
        self._limits = limits or RedisLimits()
        self._keep_wanted = asyncio.Event()
        self._link = Link(url, self._limits.match, self.stats, self._keep_wanted)
        self._holders: dict[HolderId, HolderWriter] = {}
        self._named: tuple[HolderId, ...] = ()  # the introduced ones
        self._names: tuple[str, ...] = ()  # theirs, as the server has them
        self._standings: dict[HolderId, Standing] = {}
        self._resting: dict[HolderId, float] = {}  # refused -> until when, by the loop's clock
        self._busy: dict[HolderId, None] = {}  # may have something to write, longest waiting first
        self._rubble: dict[HolderId, HolderWriter] = {}  # were cleared, and have memory to free
        self._flush_wanted = asyncio.Event()
        self._settled = asyncio.Event()
        self._round = asyncio.Lock()  # of `keep`
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connects. A server that is not there is a warning, and is looked for again."""
        await self._keep_or_warn()
        self._spawn(self._keep_forever())
        self._spawn(self._flush_forever())

    async def close(self) -> None:
        """Writes what is queued and gives up the leases, if that goes quickly. Idempotent."""
        if not self.away:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.flushed()
                    await asyncio.gather(*(self._leave(name) for name in self._leased_names()))
            except TimeoutError:
                log.info("index %s: closed before all was written", self._link.shown)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()

    # who the holders are

    def introduce(self, holder: HolderId, name: str) -> None:
        """From now on `holder` is matched, and written if the lease is ours. Raises ValueError
        if another one has that name."""
        if self._prefix + name in self._names:
            raise ValueError(f"holder {name!r} is there already; each needs a name of its own")
        self._writer(holder).name = self._prefix + name
        self._rename()
        self._keep_wanted.set()

    def retire(self, holder: HolderId) -> None:
        """The holder is gone for good; its number may be introduced under another name. What
        this gateway has written of it is removed."""
        writer = self._holders.pop(holder, None)
        self._standings.pop(holder, None)
        self._busy.pop(holder, None)
        self._rubble.pop(holder, None)
        self._rename()
        if writer is not None and writer.name is not None and writer.lease is not None:
            self._spawn(self._leave(writer.name, for_good=True))

    def tell(
        self,
        holder: HolderId,
        state: str,
        *,
        seq: int | None = None,
        digest: str = "",
        fit: bool = True,
    ) -> None:
        """What this gateway's picture of `holder` is, as of the ops applied so far: for the
        readers. One that is not `fit` (stale, blind) is not written, and another gateway may."""
        writer = self._writer(holder)
        was_able = writer.able
        writer.tell(Told(state, seq, digest, fit))
        if writer.able != was_able:
            self._keep_wanted.set()
        self._want(holder, writer)

    def standing(self, holder: HolderId) -> Standing | None:
        """None: not known yet, or the server is away."""
        return None if self.away else self._standings.get(holder)

    def shared_state(self, holder: HolderId) -> str | None:
        writer, standing = self._holders.get(holder), self.standing(holder)
        if standing is None or (writer is not None and writer.lease is not None):
            return None
        return standing.state

    # index.protocol.Index

    def apply(self, ops: Iterable[Op]) -> None:
        for op in ops:
            writer = self._writer(op.holder)
            writer.apply(op)
            self._want(op.holder, writer)
            if isinstance(op, Clear):
                self._rubble[op.holder] = writer
                self._flush_wanted.set()

    async def match(self, keys: Sequence[BlockKey]) -> Found:
        """Raises IndexAwayError if the server does not answer in time."""
        if not keys or not self._names:
            return Found({})
        self.stats.matches += 1
        if self.away:
            self.stats.refused += 1
            raise IndexAwayError(f"index {self._link.shown} is away")
        prompt = struct.pack(f"<{len(keys)}Q", *keys)
        holders, asked = self._named, time.perf_counter()  # uvloop's clock counts milliseconds
        try:
            answer = await self._link.asking.ask(
                MATCH, self._names, (prompt,), within=self._limits.match
            )
        except TimeoutError:
            self._link.too_late()
            raise IndexAwayError(
                f"index {self._link.shown}: no answer within {self._limits.match} s"
            ) from None
        except RedisError as e:
            self.stats.refused += 1
            self._link.trouble(e)
            raise IndexAwayError(f"index {self._link.shown} is away: {e}") from e
        self._link.in_time()
        self.stats.answered += 1
        self.stats.answer_seconds += time.perf_counter() - asked
        return self._found(holders, answer)

    def num_blocks(self, holder: HolderId) -> int:
        """As our own picture says if we write it, else as the server's did at the last `keep`."""
        writer = self._holders.get(holder)
        if writer is not None and writer.lease is not None:
            return writer.num_blocks
        standing = self._standings.get(holder)
        return 0 if standing is None else standing.num_blocks

    @property
    def holdings(self) -> Holdings:
        """What this gateway has heard, written or not."""
        return self

    # index.protocol.Holdings

    def held(
        self, holder: HolderId, keys: Sequence[BlockKey], tier: Tier, group: int
    ) -> list[BlockKey]:
        """As this gateway has heard."""
        writer = self._holders.get(holder)
        return [] if writer is None else writer.held(keys, tier, group)

    def num_evicted(self, holder: HolderId) -> int:  # noqa: ARG002
        """Nothing is ever dropped for want of room: see docs/redis.md for what it takes."""
        return 0

    # for metrics and tests

    @property
    def away(self) -> bool:
        """Whether matches fail without being tried."""
        return not self._link.is_up

    @property
    def num_leases(self) -> int:
        """Of how many holders we are the writer."""
        return len(self._leased_names())

    @property
    def num_pending(self) -> int:
        """Keys that wait to be written."""
        return sum(writer.num_pending for writer in self._holders.values())

    def report(self) -> IndexReport:
        stats, written = self.stats, self.stats.written
        return IndexReport(
            num_bytes=sum(writer.num_bytes() for writer in self._holders.values()),
            shared=SharedReport(
                is_away=self.away,
                outages=stats.outages,
                matches=stats.matches,
                answered=stats.answered,
                answer_seconds=stats.answer_seconds,
                late=stats.late,
                refused=stats.refused,
                leases=self.num_leases,
                pending_keys=self.num_pending,
                written_keys=written.keys,
                pictures=written.pictures,
                fenced=written.fenced,
                repairs=written.repairs,
            ),
        )

    async def flushed(self) -> None:
        """Returns when the server has all that was applied, of the holders that we write."""
        while any(writer.busy for writer in self._holders.values()):
            self._settled.clear()
            self._flush_wanted.set()
            await self._settled.wait()

    # writing

    def _writer(self, holder: HolderId) -> HolderWriter:
        writer = self._holders.get(holder)
        if writer is None:
            writer = self._holders[holder] = HolderWriter(
                self.stats.written, self._limits.pending, _milliseconds(self._limits.forget)
            )
        return writer

    def _want(self, holder: HolderId, writer: HolderWriter) -> None:
        if writer.lease is not None and holder not in self._busy:
            self._busy[holder] = None
            self._flush_wanted.set()

    async def _flush_forever(self) -> None:
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            while self._link.writing.failure is None and (writes := self._next_writes()):
                await asyncio.gather(*(self._write(*write) for write in writes))
            if self._link.writing.failure is None:
                self._settled.set()
            await self._clear_up()

    async def _clear_up(self) -> None:
        """A piece at a time, while there is nothing to write."""
        while self._rubble and not self._flush_wanted.is_set():
            holder, writer = next(iter(self._rubble.items()))
            if not writer.clear_up():
                del self._rubble[holder]
            await asyncio.sleep(0)

    def _next_writes(self) -> list[tuple[HolderId, HolderWriter, Write]]:
        """A batch for each holder that has something to write, as many as one round trip takes."""
        writes: list[tuple[HolderId, HolderWriter, Write]] = []
        room = ROUND_KEYS
        for holder in list(self._busy):
            del self._busy[holder]
            writer = self._holders[holder]
            write = writer.next_write(min(room, BATCH_KEYS))
            if write is None:
                continue
            self._busy[holder] = None  # again, behind all others
            writes.append((holder, writer, write))
            room -= write.num_keys
            if room <= 0:
                break
        return writes

    async def _write(self, holder: HolderId, writer: HolderWriter, write: Write) -> None:
        try:
            keys = (write.name, self._prefix + "fence")
            answer = await self._link.writing.ask(WRITE, keys, write.args)
        except RedisError as e:
            if refused(e):
                self._refused(holder, writer, e)
            else:
                self._link.trouble(e)
            return
        self._resting.pop(holder, None)
        if write is writer.sent:  # else its lease was lost meanwhile
            writer.answered(Answer(answer.decode()))

    def _refused(self, holder: HolderId, writer: HolderWriter, error: RedisError) -> None:
        """Out of memory, no permission, a replica: the picture gets old, so we let go of it."""
        until = asyncio.get_running_loop().time() + self._limits.rest
        if holder not in self._resting:
            log.warning("index %s refuses what is written: %s", self._link.shown, error)
        self._resting[holder] = until
        writer.leased(None)

    # leases and health

    async def keep(self) -> None:
        """One round: connections, leases, standings. Raises RedisError."""
        async with self._round:
            await self._link.mend()
            self._flush_wanted.set()
            named, now = self._named, asyncio.get_running_loop().time()
            for first in range(0, len(named), KEEP_HOLDERS):
                part = [h for h in named[first : first + KEEP_HOLDERS] if h in self._holders]
                await self._keep(part, now)

    async def _keep(self, holders: Sequence[HolderId], now: float) -> None:
        limits = self._limits
        writers = [self._holders[holder] for holder in holders]
        able = [
            int(writer.able and self._resting.get(holder, 0.0) <= now)
            for holder, writer in zip(holders, writers, strict=True)
        ]
        names = [writer.name for writer in writers if writer.name is not None]
        settled = [writer.settled for writer in writers]
        rows = await self._link.keeping.ask(
            KEEP,
            [self._prefix + "fence", *names],
            [self.gateway, *map(_milliseconds, (limits.lease, limits.forget)), *able],
        )
        for holder, writer, before, row in zip(holders, writers, settled, rows, strict=True):
            if self._holders.get(holder) is writer:
                self._kept(holder, writer, before, row)

    def _kept(self, holder: HolderId, writer: HolderWriter, settled: int | None, row: Any) -> None:
        """What KEEP answered for one holder, `settled` as it was when KEEP was asked."""
        lease, of, epoch, batch, state, seq, digest, num_held = row
        gateway = None if lease is None else lease.partition(b" ")[2].decode()
        writer.leased(lease.decode() if lease is not None and gateway == self.gateway else None)
        if writer.lease is not None:
            writer.audit(settled, int(batch or 0), num_held)
            if writer.busy:
                self._want(holder, writer)
        told = (state or b"").decode(errors="replace") if lease is not None and lease == of else ""
        self._standings[holder] = Standing(
            state=told if told in STATES else STALE,
            gateway=gateway,
            epoch=int(epoch or 0),
            seq=int(seq) if seq else None,
            digest=(digest or b"").decode(),
            num_blocks=num_held,
        )

    async def _keep_forever(self) -> None:
        while True:
            self._keep_wanted.clear()
            if await self._keep_or_warn():
                await _set_within(self._keep_wanted, self._limits.lease / 3)
            else:
                await asyncio.sleep(self._limits.retry)

    async def _keep_or_warn(self) -> bool:
        try:
            await self.keep()
        except RedisError as e:
            self._link.trouble(e)
            return False
        return True

    async def _leave(self, name: str, *, for_good: bool = False) -> None:
        """What cannot be given up now lapses by itself."""
        with suppress(RedisError):
            await self._link.writing.ask(LEAVE, (name,), (self.gateway, int(for_good)))

    # the rest

    def _rename(self) -> None:
        named = [(h, w.name) for h, w in self._holders.items() if w.name is not None]
        self._named = tuple(holder for holder, _ in named)
        self._names = tuple(name for _, name in named)

    def _leased_names(self) -> list[str]:
        return [w.name for w in self._holders.values() if w.lease is not None and w.name]

    def _found(self, holders: Sequence[HolderId], answer: bytes) -> Found:
        numbers = map(int, answer.split())
        blocks: dict[HolderId, int] = {}
        discount: dict[HolderId, float] = {}
        lower: dict[HolderId, dict[Tier, int]] = {}
        for place in numbers:
            holder = holders[place]
            blocks[holder] = next(numbers)
            for _ in range(next(numbers)):
                tier, count = next(numbers), next(numbers)
                lower.setdefault(holder, {})[tier] = next(numbers)
                less = 1.0 - self._weights[min(tier, len(self._weights) - 1)]
                if less:
                    discount[holder] = discount.get(holder, 0.0) + less * count
        return Found(blocks, discount, lower)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("index %s: a task of it ended", self._link.shown, exc_info=error)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
