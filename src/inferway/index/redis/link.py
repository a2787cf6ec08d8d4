"""The three connections to the server, and whether it is there.

One for each kind of work, so that none waits for another's: matches, batches of changes, leases.
What breaks one has mostly broken the others, which were at rest and do not know; so they fail
and are mended together.
"""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as SlowError

from inferway.index.redis.lane import Lane, shown
from inferway.index.redis.scripts import KEEP, LEAVE, MATCH, WRITE
from inferway.index.redis.values import RedisStats

log = logging.getLogger("inferway.index")

PATIENCE = 3  # matches in a row that came too late: from then on nobody waits for the server


class Link:
    """`mend` opens it, and opens it again after `trouble`, which sets `broken`; `close`."""

    def __init__(
        self, url: str, match_seconds: float, stats: RedisStats, broken: asyncio.Event
    ) -> None:
        """Raises ConfigError if the URL cannot hold."""
        self.shown = shown(url)
        self.asking = Lane(url, MATCH)
        self.writing = Lane(url, WRITE, LEAVE)
        self.keeping = Lane(url, KEEP)
        self.is_up = False
        self._stats = stats
        self._broken = broken
        self._match_seconds = match_seconds
        self._late = 0  # matches in a row
        self._warned = False  # that the server is away is in the log

    async def mend(self) -> None:
        """Does nothing if it is up. Raises RedisError."""
        if self.is_up:
            return
        for lane in (self.keeping, self.writing, self.asking):
            await lane.open()
        if self._late:
            await self._probe()
        self.is_up = True
        if self._warned:
            self._warned = False
            log.info("the shared index %s is back", self.shown)

    async def close(self) -> None:
        self.is_up = False
        for lane in (self.asking, self.writing, self.keeping):
            await lane.close()

    def trouble(self, error: RedisError) -> None:
        """Something has failed. Once per outage in the log."""
        self.is_up = False
        self._broken.set()
        if not self._warned:
            self._warned = True
            self._stats.outages += 1
            log.warning(
                "the shared index %s is away, and requests go by load only: %s", self.shown, error
            )

    def in_time(self) -> None:
        """A match was answered."""
        self._late = 0

    def too_late(self) -> None:
        """A match was not answered in time."""
        self._stats.late += 1
        self._late += 1
        if self._late >= PATIENCE:
            limit = self._match_seconds
            self.trouble(SlowError(f"{PATIENCE} times no answer within {limit} s"))

    async def _probe(self) -> None:
        """A server that has answered too late must first show that it answers in time."""
        try:
            await self.asking.ask(MATCH, (), (b"",), within=self._match_seconds)
        except TimeoutError:
            raise SlowError(f"no answer within {self._match_seconds} s") from None
        self._late = 0
