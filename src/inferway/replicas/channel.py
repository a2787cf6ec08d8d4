"""Over the Redis that has the index: what one gateway says, all others hear.

Whoever may speak there may write the index, too. So it is believed who a gateway says it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferway.errors import PeerMessageError
from inferway.replicas.messages import sender_of
from inferway.replicas.transport import Heard, Lost

if TYPE_CHECKING:
    from inferway.kv.index.redis.channel import RedisChannel


class PeerChannel:
    """A `transport.Transport`. A peer's address is what it calls itself: drawn at its start."""

    kind = "redis"

    def __init__(self, url: str, prefix: str) -> None:
        """Raises ConfigError if the URL cannot hold."""
        from inferway.kv.index.redis.channel import RedisChannel  # an extra

        self._channel: RedisChannel = RedisChannel(url, prefix, self._hear)
        self._heard: Heard | None = None

    @property
    def endpoint(self) -> str:
        """The server."""
        return self._channel.shown

    async def open(self, heard: Heard, lost: Lost) -> None:
        del lost  # whoever is silent is lost
        self._heard = heard
        self._channel.open()

    def send(self, payload: bytes) -> None:
        self._channel.say(payload)

    def forget(self, address: str) -> None:
        """Nothing: all that is said is heard."""

    async def close(self) -> None:
        await self._channel.close()

    def _hear(self, payload: bytes) -> None:
        if self._heard is None:
            return
        try:
            address = f"{sender_of(payload):016x}"
        except PeerMessageError:
            address = "unreadable"
        self._heard(address, payload)
