"""Gateways hear each other over the publish/subscribe of a Redis or Valkey server: each publishes
there, and hears what every gateway publishes.

The server keeps nothing. One connection publishes, one hears; a connection that breaks is opened
again, and what was to be published meanwhile is lost. A gateway is believed to be the one that its
messages name: give access to the channel to gateways alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from inferway.cluster.bus.sockets import Heard, Lost
from inferway.cluster.bus.sound import sender_of
from inferway.errors import ConfigError, PeerMessageError
from inferway.tasks import Tasks

log = logging.getLogger("inferway.peers")

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 2.0  # a server that is silent for so long is away
RETRY_SECONDS = 0.5
CLOSE_SECONDS = 1.0
MOST_UNSENT = 200  # messages; beyond it the oldest are lost

_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}


class PeerChannel:
    """A `replicas.Transport`. A peer's address is the sender that its messages name."""

    kind = "redis"

    def __init__(self, url: str, prefix: str) -> None:
        """Raises ConfigError if the URL cannot hold."""
        self.endpoint = _shown(url)
        self._server = _server(url)
        # one channel is the same for all databases of a server: its name tells them apart
        database = self._server.connection_pool.connection_kwargs.get("db", 0)
        self._name = f"{prefix}:1:peers:{int(database)}"
        self._heard: Heard | None = None
        self._unsent: deque[bytes] = deque(maxlen=MOST_UNSENT)
        self._wanted = asyncio.Event()
        self._warned = False
        self._tasks = Tasks(log, f"the channel of peers on {self.endpoint} ended")

    async def open(self, heard: Heard, lost: Lost) -> None:
        del lost  # a peer that is silent is lost
        self._heard = heard
        self._tasks.spawn(self._again_and_again(self._hear))
        self._tasks.spawn(self._again_and_again(self._publish))

    def send(self, payload: bytes) -> None:
        self._unsent.append(payload)
        self._wanted.set()

    def forget(self, address: str) -> None:
        """Do nothing: all that is published is heard."""

    async def close(self) -> None:
        with suppress(TimeoutError):  # a connection that is just being mended holds nobody up
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._tasks.close()
                await self._server.aclose()

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except (RedisError, OSError) as e:
                if not self._warned:
                    self._warned = True
                    log.warning("peers are not heard over %s: %s", self.endpoint, e)
            await asyncio.sleep(RETRY_SECONDS)

    async def _hear(self) -> None:
        """Hear the channel. A gateway hears its own messages, too: silence means that the server
        has gone."""
        async with self._server.pubsub() as channel:
            await channel.subscribe(self._name)
            while (told := await channel.get_message(timeout=ANSWER_SECONDS)) is not None:
                if self._warned:
                    self._warned = False
                    log.info("peers are heard over %s again", self.endpoint)
                if told["type"] == "message":
                    self._take(told["data"])
        raise TimeoutError("it is silent")

    def _take(self, payload: bytes) -> None:
        assert self._heard is not None
        try:
            address = f"{sender_of(payload):016x}"
        except PeerMessageError:
            address = "unreadable"
        self._heard(address, payload)

    async def _publish(self) -> None:
        self._unsent.clear()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            async with self._server.pipeline(transaction=False) as pipeline:
                while self._unsent:
                    pipeline.publish(self._name, self._unsent.popleft())
                await pipeline.execute()


def _shown(url: str) -> str:
    """Return the URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _server(url: str) -> Redis:
    """Return what connects to the server, which it does not yet. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    try:
        server: Redis = Redis.from_url(
            _SCHEMES.get(scheme, scheme) + separator + rest,
            protocol=2,  # nothing of RESP 3 is needed; older servers and proxies speak 2
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),  # a lost message is told again by `outbox`
        )
        server.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # checks the options
    except (ValueError, TypeError) as e:
        # neither the URL nor redis-py's words: both may hold a password cut in two
        raise ConfigError(
            f"peers: redis: the URL that begins with {scheme[:8]!r} is not that of a Redis: "
            "expected redis://, rediss:// or unix://, [USER:PASSWORD@]HOST[:PORT][/DATABASE] and, "
            "after a ?, options of redis-py; percent-encode what is special in a password"
        ) from e
    return server
