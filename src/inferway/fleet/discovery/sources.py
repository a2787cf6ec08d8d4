"""Sources of engines: a file that may change, a DNS name whose addresses they are, or a deployment
of Ray Serve. The source that asks Kubernetes is in `kubernetes`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from inferway.config import EngineSettings, ModelRewrite, check_engines, converted
from inferway.errors import ConfigError
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.discovery")

FILE_SECONDS, DNS_SECONDS = 1.0, 5.0  # between two looks
AGAIN_SECONDS, MOST_SECONDS = 1.0, 30.0  # until a program that has ended is started anew
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_SHOWN = 500  # characters of what it wrote on standard error

_NAME = re.compile(r"[^/\s]+/[^/\s]+")

Sleep = Callable[[float], Awaitable[object]]
Tell = Callable[[Sequence[EngineSettings]], None]
Rules = Callable[[dict[str, int], list[ModelRewrite]], None]  # objectives, rewrites
Resolve = Callable[[str, int], Awaitable[list[str]]]  # host, port -> addresses


class EngineSource(Protocol):
    """A source of engines. `run` it until it is cancelled. It does not raise for outside faults: a
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
    sleep: Sleep = asyncio.sleep
    synced: bool = False
    _seen: tuple[int, ...] = ()

    async def run(self, tell: Tell) -> None:
        while True:
            self.look(tell)
            await self.sleep(FILE_SECONDS)

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


async def resolve(host: str, port: int = 0) -> list[str]:
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
    sleep: Sleep = asyncio.sleep
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
            await self.sleep(DNS_SECONDS)

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


# a deployment of Ray Serve: Ray's own REST API names replicas, and not where they listen. So a
# program that joins the cluster (`inferway_ray.watch`, of the extra `ray`) writes the engines as
# lines, and is started anew when it ends.


def watching(deployment: str) -> Sequence[str]:
    """Return the command that writes the engines of APP/DEPLOYMENT as lines."""
    return [sys.executable, "-m", "inferway_ray.watch", deployment]


@dataclass(slots=True)
class RayReplicas:
    """A source of a Ray Serve deployment's engines. `deployment`: APP/DEPLOYMENT. A cluster that
    cannot be reached, or has no such deployment now, leaves the engines as they were; one whose
    last replica has gone has none."""

    deployment: str
    command: Callable[[str], Sequence[str]] = watching
    sleep: Sleep = asyncio.sleep
    synced: bool = False
    _warned: str = field(default="", init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if not _NAME.fullmatch(self.deployment):
            raise ConfigError(f"--engines-ray {self.deployment!r}: expected APP/DEPLOYMENT")
        if self.command is watching and find_spec("ray") is None:
            raise ConfigError(
                f"--engines-ray {self.deployment!r}: Ray is not installed here; pip install"
                " 'inferway[ray]'"
            )

    async def run(self, tell: Tell) -> None:
        pause = AGAIN_SECONDS
        while True:
            was_told = await self._follow(tell)
            pause = AGAIN_SECONDS if was_told else min(pause * 2, MOST_SECONDS)
            await self.sleep(pause)

    async def _follow(self, tell: Tell) -> bool:
        """Tell what one run of the program writes, until it ends. Return whether it wrote."""
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(
            *self.command(self.deployment),
            stdin=pipe,  # it ends when we do
            stdout=pipe,
            stderr=pipe,
            limit=MAX_LINE_BYTES,
        )
        assert program.stdout is not None
        assert program.stderr is not None
        said = asyncio.ensure_future(self._said(program.stderr))
        was_told = False
        try:
            while line := await program.stdout.readline():
                was_told = self._told(line, tell) or was_told
            self._warn(f"is not followed: {await said or 'its watch has ended'}")
        except ValueError:  # a line over the limit
            self._warn(f"is not followed: a line of more than {MAX_LINE_BYTES} bytes")
        finally:
            said.cancel()
            if program.returncode is None:
                program.kill()
            await program.wait()
        return was_told

    async def _said(self, errors: asyncio.StreamReader) -> str:
        """Log what it says, line by line. Return the last."""
        last = ""
        while line := await errors.readline():
            last = line.decode(errors="replace").strip()[:MAX_SHOWN]
            if last.startswith("replica "):  # of one of them; the rest are there
                log.warning("deployment %s of Ray: %s", self.deployment, last)
        return last

    def _told(self, line: bytes, tell: Tell) -> bool:
        try:
            engines = msgspec.json.decode(line, type=list[EngineSettings])
            check_engines(engines)
        except (*UNREADABLE, ConfigError) as e:
            self._warn(f"cannot be used: {e}")
            return False
        self._warned, self.synced = "", True
        names = ", ".join(engine.label for engine in engines) or "none"
        log.info("the engines of Ray's deployment %s are now: %s", self.deployment, names)
        tell(engines)
        return True

    def _warn(self, fault: str) -> None:
        if fault != self._warned:
            log.warning(
                "Ray's deployment %s %s; its engines stay as they were", self.deployment, fault
            )
        self._warned = fault
