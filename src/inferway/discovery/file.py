"""Engines of a file that may change: YAML or JSON, `engines:` as in the settings, or that list."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from inferway.config import EngineSettings, check_engines, converted
from inferway.discovery.source import Tell
from inferway.errors import ConfigError
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.discovery")

LOOK_SECONDS = 1.0


class _Engines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engines: list[EngineSettings]


def read_engines(path: Path) -> list[EngineSettings]:
    """Raises ConfigError that names the file and the place in it."""
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
    """See Source. Looked at once a second, as a file that Kubernetes mounts is changed by a link
    that inotify does not tell. A file that is broken, or gone, leaves the engines as they were."""

    path: Path
    sleep: Callable[[float], object] = asyncio.sleep
    synced: bool = False
    _seen: tuple[int, ...] = ()

    async def run(self, tell: Tell) -> None:
        while True:
            self.look(tell)
            await self.sleep(LOOK_SECONDS)  # type: ignore[misc]

    def look(self, tell: Tell) -> None:
        """Once."""
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
