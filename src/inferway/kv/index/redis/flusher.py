"""Writes what `apply` has queued, for the holders whose lease is ours."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from redis.exceptions import RedisError

from inferway.kv.index.redis.connection_health import ConnectionHealth, refused
from inferway.kv.index.redis.scripts import WRITE
from inferway.kv.index.redis.writer import HolderRegistry, HolderWriter, Write, WriteAnswer
from inferway.model import HolderId

log = logging.getLogger("inferway.index")

BATCH_KEYS = 512  # one script: ~1 ms in which the server answers nobody else
ROUND_KEYS = 4096  # one round trip: what is packed while nobody else has the event loop


class Flusher:
    """`run` as a task. Holders take turns, each with a batch at a time."""

    def __init__(
        self, link: ConnectionHealth, roll: HolderRegistry, fence: str, rest_seconds: float
    ) -> None:
        self._link = link
        self._roll = roll
        self._fence = fence
        self._rest_seconds = rest_seconds
        self._resting: dict[HolderId, float] = {}  # refused -> until when, by the loop's clock
        self._busy: dict[HolderId, None] = {}  # may have something to write, longest waiting first
        # were cleared, and have memory to free
        self._rubble: OrderedDict[HolderId, HolderWriter] = OrderedDict()
        self._wanted = asyncio.Event()
        self._settled = asyncio.Event()

    def want(self, holder: HolderId, writer: HolderWriter) -> None:
        """Look at a holder that may have something to write."""
        if writer.lease is not None and holder not in self._busy:
            self._busy[holder] = None
            self._wanted.set()

    def cleared(self, holder: HolderId, writer: HolderWriter) -> None:
        """Look at a holder that has memory to free."""
        self._rubble[holder] = writer
        self._wanted.set()

    def forget(self, holder: HolderId) -> None:
        self._busy.pop(holder, None)
        self._rubble.pop(holder, None)

    def rests(self, holder: HolderId, now: float) -> bool:
        """Return whether the server has just refused what was written of the holder; `now` is by
        the loop's clock."""
        return self._resting.get(holder, 0.0) > now

    def resume(self) -> None:
        """Try again, for the connection may be up."""
        self._wanted.set()

    async def flushed(self) -> None:
        """Returns when the server has all that was applied, of the holders that we write."""
        while any(writer.busy for writer in self._roll.writers.values()):
            self._settled.clear()
            self._wanted.set()
            await self._settled.wait()

    async def run(self) -> None:
        """Write and free memory until the task is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._link.writing.failure is None and (writes := self._next_writes()):
                await asyncio.gather(*(self._write(*write) for write in writes))
            if self._link.writing.failure is None:
                self._settled.set()
            await self._clear_up()

    async def _clear_up(self) -> None:
        """A piece at a time, while there is nothing to write."""
        while self._rubble and not self._wanted.is_set():
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
            writer = self._roll.writers[holder]
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
            answer = await self._link.writing.ask(WRITE, (write.name, self._fence), write.args)
        except RedisError as e:
            if refused(e):
                self._refused(holder, writer, e)
            else:
                self._link.trouble(e)
            return
        self._resting.pop(holder, None)
        if write is writer.sent:  # else its lease was lost meanwhile
            writer.answered(WriteAnswer(answer.decode()))

    def _refused(self, holder: HolderId, writer: HolderWriter, error: RedisError) -> None:
        """Out of memory, no permission, a replica: the picture gets old, so we let go of it."""
        until = asyncio.get_running_loop().time() + self._rest_seconds
        if holder not in self._resting:
            log.warning(
                "the shared index %s refuses what is written to %s: %s",
                *(self._link.shown, writer.name, error),
            )
        self._resting[holder] = until
        writer.leased(None)
