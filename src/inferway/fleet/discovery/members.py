"""Several sources of engines, taken together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from inferway.config import DiscoverySettings, EngineSettings
from inferway.errors import crash_report
from inferway.fleet.discovery.sources import DnsName, EnginesFile, EngineSource, RayReplicas, Rules
from inferway.tasks import Tasks

if TYPE_CHECKING:
    from inferway.fleet.discovery.list_watch import ApiServer

log = logging.getLogger("inferway.discovery")


@dataclass(slots=True)
class Members:
    """`start`, then `close`. `changed` gets all engines, listed ones first, one call after the
    other; of two with one name the first counts."""

    listed: Sequence[EngineSettings]
    sources: Sequence[EngineSource]
    changed: Callable[[Sequence[EngineSettings]], Awaitable[None]]
    servers: Sequence[ApiServer] = ()  # closed with it
    _told: dict[int, Sequence[EngineSettings]] = field(default_factory=dict)
    _tasks: Tasks = field(
        default_factory=lambda: Tasks(log, "engines are no longer found, by a fault of the gateway")
    )
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def synced(self) -> bool:
        """True once every source has read its engines."""
        return all(source.synced for source in self.sources)

    def start(self) -> None:
        for number, source in enumerate(self.sources):
            self._tasks.spawn(self._follow(number, source))
        if self.sources:
            self._tasks.spawn(self._apply())

    async def close(self) -> None:
        await self._tasks.close()
        for server in self.servers:
            await server.close()

    async def relist(self, listed: Sequence[EngineSettings]) -> None:
        """Take other engines as the listed ones from now on."""
        self.listed = listed
        await self.changed(self._all())

    async def _follow(self, number: int, source: EngineSource) -> None:
        def tell(engines: Sequence[EngineSettings]) -> None:
            self._told[number] = engines
            self._news.set()

        await source.run(tell)

    async def _apply(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.changed(self._all())
            except Exception as e:
                words = "the list of engines could not be changed, and stays as it was: %s"
                log.error(words, crash_report(e))

    def _all(self) -> list[EngineSettings]:
        found = [*self.listed, *(e for told in self._told.values() for e in told)]
        by_name: dict[str, EngineSettings] = {}
        for engine in found:
            by_name.setdefault(engine.label, engine)
        return list(by_name.values())


def build_members(
    settings: DiscoverySettings,
    listed: Sequence[EngineSettings],
    changed: Callable[[Sequence[EngineSettings]], Awaitable[None]],
    rules: Rules | None = None,
) -> Members:
    """Build the sources that settings name. `rules` is told what Kubernetes says of objectives and
    rewrites. Raises ConfigError."""
    sources: list[EngineSource] = [DnsName(url) for url in settings.dns]
    if settings.file is not None:
        sources.append(EnginesFile(Path(settings.file)))
    sources += [RayReplicas(deployment) for deployment in settings.ray]
    servers: list[ApiServer] = []
    if settings.kubernetes is not None:
        # It brings aiohttp, which nothing else of a gateway needs.
        from inferway.fleet.discovery.kubernetes import pods

        source, server = pods(settings.kubernetes, rules)
        sources.append(source)
        servers.append(server)
    return Members(listed, sources, changed, servers)
