"""The console as a gateway's extensions: records, what breaks caches, /v1/explain and the page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from inferway.doctor.facts import BreakersReport
from inferway.doctor.rules import Level
from inferway.doctor.traffic_rules import judge_breakers
from inferway.extension import Core, Extension
from inferway.http.extension_parts import Audience, ExtensionParts, Route
from inferway.metrics import Family
from inferway.model import Alarm
from inferway_console.explain_path import PATH as EXPLAIN
from inferway_console.explain_path import ExplainPath
from inferway_console.page.live import LiveHub
from inferway_console.page.pictures import Pictures
from inferway_console.page.routes import PageRoutes
from inferway_console.records.breakers import CacheBreakers
from inferway_console.records.records import Records
from inferway_console.records.routes import RecordPages
from inferway_console.records.writer import RecordWriter

# Of a model's prompt tokens. A twentieth is more than most policies differ by, and worth a change
# of a prompt; what costs less stands in the list of cache breakers all the same.
LEAST_SHARE = 0.05
# A cause that was mended is in the sums still; if it has not come for so long, it is over.
RECENT_SECONDS = 3600.0
_MOST_BREAKERS = 32  # that are looked through


def breaker_alarms(found: CacheBreakers, now: float) -> Iterator[Alarm]:
    """Yield an alarm for each cache breaker that is worth one. `now` is by the director's clock."""
    report = msgspec.convert(found.told(now, _MOST_BREAKERS), BreakersReport)
    breakers = [
        each
        for each in report.breakers
        if each.share >= LEAST_SHARE and each.last_seconds_ago <= RECENT_SECONDS
    ]
    for each in judge_breakers("gateway", msgspec.structs.replace(report, breakers=breakers)):
        if each.level is not Level.OK:
            yield Alarm(each.level, "traffic", each.evidence, each.cure)


def file_alarms(writer: RecordWriter | None) -> Iterator[Alarm]:
    """Yield an alarm if requests were to be recorded in files, and are no longer."""
    if writer is not None and writer.failed:
        evidence = f"requests are no longer recorded in {writer.directory}: {writer.failed}"
        cure = "fix that, as by making room there, and restart the gateway"
        yield Alarm("warn", "record", evidence, cure)


def console(core: Core) -> Sequence[Extension]:
    """Return the console's extensions: the entry point `console`."""
    found = Console(core)
    return [*found.records.extensions, found]


class Console(Extension):
    """An extension that shows the records to admins and browsers."""

    name = "console"

    def __init__(self, core: Core) -> None:
        self.records = Records(core)
        self._core = core
        self._hub: LiveHub | None = None  # of the page
        self._routes: Mapping[str, Route] = {}

    async def start(self, parts: ExtensionParts, /) -> None:
        """Raises ConfigError for a directory of records that cannot be used."""
        await self.records.start()
        explain = ExplainPath(parts.director, parts.ingress, parts.auth)
        pages = RecordPages(self.records.ring, self.records.watch, parts.auth)
        self._routes = {
            EXPLAIN: Route({"POST": explain}, Audience.CLIENTS),
            **pages.routes(),
            **self._page(parts),
        }

    async def stop(self) -> None:
        if self._hub is not None:
            await self._hub.close()

    async def close(self) -> None:
        await self.records.close()

    def needs_snapshots(self) -> bool:
        """Return whether the page is open somewhere, or requests are recorded in files."""
        return bool(self._hub) or self.records.writer is not None

    def families(self) -> Iterable[Family]:
        return self.records.families()

    def alarms(self) -> Iterable[Alarm]:
        yield from file_alarms(self.records.writer)
        yield from breaker_alarms(self.records.watch.breakers, self._core.clock())

    def routes(self) -> Mapping[str, Route]:
        return self._routes

    def _page(self, parts: ExtensionParts) -> Mapping[str, Route]:
        if not self._core.settings.ui:
            return {}
        ring, alarms = self.records.ring, parts.alarms
        kept = ring if ring.capacity else None
        pictures = Pictures(
            *(alarms.rows, kept, alarms.judge, time.monotonic, time.time, parts.num_waiting)
        )
        self._hub = LiveHub(pictures)
        return PageRoutes(parts.auth, self._hub, secure=parts.has_tls).routes()
