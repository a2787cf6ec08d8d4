"""Engines behind a name: every address of it is one (a headless service, a docker network)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from inferway.config import EngineSettings
from inferway.discovery.source import Tell
from inferway.errors import ConfigError

log = logging.getLogger("inferway.discovery")

LOOK_SECONDS = 5.0

Resolve = Callable[[str, int], Awaitable[list[str]]]  # host, port -> addresses


async def resolve(host: str, port: int) -> list[str]:
    """All addresses, in order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


@dataclass(slots=True)
class DnsName:
    """See Source. `url`: http://NAME:PORT. A name that cannot be resolved, or has no address now,
    leaves the engines as they were: that is what a DNS server that restarts looks like."""

    url: str
    resolve: Resolve = resolve
    sleep: Callable[[float], object] = asyncio.sleep
    synced: bool = False
    _addresses: tuple[str, ...] = ()
    _warned: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port is None:
            raise ConfigError(f"--engines-dns {self.url!r}: expected http://NAME:PORT")

    async def run(self, tell: Tell) -> None:
        while True:
            await self.look(tell)
            await self.sleep(LOOK_SECONDS)  # type: ignore[misc]

    async def look(self, tell: Tell) -> None:
        """Once."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        try:
            addresses = tuple(await self.resolve(parts.hostname, parts.port))
        except OSError as e:
            if not self._warned:
                log.warning(
                    "the name in %s was not resolved: %s; the engines stay as they were",
                    self.url,
                    e,
                )
            self._warned = True
            return
        self._warned = False
        if not addresses or (addresses == self._addresses and self.synced):
            return
        self._addresses, self.synced = addresses, True
        log.info("the name in %s has these addresses now: %s", self.url, ", ".join(addresses))
        tell([self._engine(parts.scheme, address, parts.port) for address in addresses])

    def _engine(self, scheme: str, address: str, port: int) -> EngineSettings:
        host = f"[{address}]" if ":" in address else address
        return EngineSettings(url=f"{scheme}://{host}:{port}")
