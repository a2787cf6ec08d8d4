"""What gateways say to each other over the server that has the index: a channel of its pub/sub.

It forgets what nobody hears. One connection says, one hears; a connection that breaks is opened
again, and what was to be said meanwhile is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from inferway.kv.index.redis.connection_health import maker, shown
from inferway.tasks import Tasks

log = logging.getLogger("inferway.peers")

RETRY_SECONDS = 0.5
CLOSE_SECONDS = 1.0
MOST_UNSAID = 200  # messages; beyond it the oldest are lost


class RedisChannel:
    """`open` it, then `say`; `close`. `heard` gets what is said there, by whomever."""

    def __init__(self, url: str, prefix: str, heard: Callable[[bytes], None]) -> None:
        """Raises ConfigError if the URL cannot hold."""
        self.shown = shown(url)
        self._make = maker(url)
        # the same for all databases of a server: its name tells them apart
        self._name = f"{prefix}:1:peers:{_database(self._make())}"
        self._heard = heard
        self._unsaid: deque[bytes] = deque(maxlen=MOST_UNSAID)
        self._wanted = asyncio.Event()
        self._warned = False
        self._tasks = Tasks(log, f"the channel of peers on {self.shown} ended")

    def open(self) -> None:
        self._tasks.spawn(self._again_and_again(self._hear))
        self._tasks.spawn(self._again_and_again(self._say))

    def say(self, message: bytes) -> None:
        """Say it soon, or lose it."""
        self._unsaid.append(message)
        self._wanted.set()

    async def close(self) -> None:
        with suppress(TimeoutError):  # a connection that is just being mended holds nobody up
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._tasks.close()

    async def _again_and_again(self, work: Callable[[AbstractConnection], object]) -> None:
        while True:
            connection = self._make()
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
                await work(connection)  # type: ignore[misc]
            except (RedisError, OSError) as e:
                self._warn(e)
            finally:
                await connection.disconnect(nowait=True)
            await asyncio.sleep(RETRY_SECONDS)

    async def _hear(self, connection: AbstractConnection) -> None:
        """What this gateway says itself is heard, too: silence means that the server has gone."""
        await connection.send_command("SUBSCRIBE", self._name)
        while True:
            kind, _, message = await connection.read_response()
            if self._warned:
                self._warned = False
                log.info("peers are heard over %s again", self.shown)
            if kind == b"message":
                self._heard(message)

    async def _say(self, connection: AbstractConnection) -> None:
        self._unsaid.clear()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            said = [self._unsaid.popleft() for _ in range(len(self._unsaid))]
            commands = [("PUBLISH", self._name, message) for message in said]
            await connection.send_packed_command(
                connection.pack_commands(commands), check_health=False
            )
            for _ in said:
                await connection.read_response()

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning("peers are not heard over %s: %s", self.shown, error)


def _database(connection: AbstractConnection) -> int:
    return int(connection.db)
