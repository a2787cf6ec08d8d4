"""Where engines are found: a file that may change, or a name whose addresses they are.

Ray is in a file of its own, Kubernetes in a folder; all of them are an `EngineSource`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from inferway.config import EngineSettings, check_engines, converted
from inferway.errors import ConfigError
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.discovery")

FILE_SECONDS, DNS_SECONDS = 1.0, 5.0  # between two looks

Tell = Callable[[Sequence[EngineSettings]], None]
Resolve = Callable[[str, int], Awaitable[list[str]]]  # host, port -> addresses


class EngineSource(Protocol):
    """What finds engines. `run` until it is cancelled; it never raises for what the world does: a
    source that cannot be read leaves the engines as they were, and says so in the log."""

    async def run(self, tell: Tell) -> None:
        """Tell the engines, all of them, first when they are known and then at each change."""

    @property
    def synced(self) -> bool:
        """True once the source has read its engines."""


# a file


class _Engines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engines: list[EngineSettings]


def read_engines(path: Path) -> list[EngineSettings]:
    """Return the engines that a file lists. Raises ConfigError that names the file and the place in
    it."""
    try:
        text = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from e
    try:
        found = msgspec.yaml.decode(text)
    except UNREADABLE as e:
        raise ConfigError(f"{path}: {e}") from e
    fields = {"engines": found} if isinstance(found, list) else found
    engines = converted(fields, _Engines, str(path)).engines
    try:
        check_engines(engines)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e
    return engines


@dataclass(slots=True)
class EnginesFile:
    """An EngineSource: a YAML or JSON file with `engines:` as in the settings, or that list. It is
    looked at once a second, as a file that Kubernetes mounts is changed by a link
    that inotify does not tell. A file that is broken, or gone, leaves the engines as they were."""

    path: Path
    sleep: Callable[[float], object] = asyncio.sleep
    synced: bool = False
    _seen: tuple[int, ...] = ()

    async def run(self, tell: Tell) -> None:
        while True:
            self.look(tell)
            await self.sleep(FILE_SECONDS)  # type: ignore[misc]

    def look(self, tell: Tell) -> None:
        """Look at the file once, and tell the engines if it has changed."""
        seen: tuple[int, ...]
        try:
            status = self.path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            seen = ()
        if seen == self._seen and self.synced:
            return
        first, self._seen = not self.synced, seen
        self.synced = True
        try:
            engines = read_engines(self.path)
        except ConfigError as e:
            log.warning("the file of engines cannot be used: %s; the engines stay as they were", e)
            return
        if not first:
            log.info(
                "the file of engines %s has changed and lists %d engines now",
                self.path,
                len(engines),
            )
        tell(engines)


# a name


async def resolve(host: str, port: int) -> list[str]:
    """Return all addresses of a host, in order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


@dataclass(slots=True)
class DnsName:
    """An EngineSource: every address behind a name is an engine (a headless service, a docker
    network). `url`: http://NAME:PORT. A name that cannot be resolved, or has no address now,
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
            await self.sleep(DNS_SECONDS)  # type: ignore[misc]

    async def look(self, tell: Tell) -> None:
        """Resolve the name once, and tell the engines if the addresses have changed."""
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
