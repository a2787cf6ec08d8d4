"""The records as a whole: the ring, what fills it, what finds out why, and what looks for what
prompts have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from inferway.config import ServeSettings
from inferway.extension import Core, Extension
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.metrics import Family
from inferway.model import HolderId
from inferway.routing.director import EVENT_SECONDS
from inferway.routing.journey import Routed
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.tasks import Later
from inferway_console.records.fleet_lines import FleetLines
from inferway_console.records.other_extras import OtherExtras
from inferway_console.records.recorder import Recorder
from inferway_console.records.ring import RecordRing
from inferway_console.records.shortfalls import Shortfalls
from inferway_console.records.watch import PromptWatch
from inferway_console.records.writer import RecordFiles, RecordWriter


@dataclass(frozen=True, slots=True)
class FleetWhereabouts:
    """The endpoints that hold a prompt and may not get it: which, and why not."""

    fleet: Fleet
    standing: OutlierDetection

    def num_endpoints(self) -> int:
        """Return how many there are, whatever they serve and however they are."""
        return sum([len(engine.endpoints) for engine in self.fleet.engines])

    def of(self, holder: HolderId, routed: Routed) -> tuple[str, str] | None:
        """Return the name of an endpoint that was no candidate for the request, and why; None if it
        has left."""
        for engine in self.fleet.engines:
            for endpoint in engine.endpoints:
                if endpoint.holder == holder:
                    return endpoint.name, self._why(engine, routed)
        return None

    def _why(self, engine: Engine, routed: Routed) -> str:
        if engine.name in self.standing.drained:
            return "drained"
        if engine.name in self.standing.suspended:
            return str(self.standing.suspended[engine.name])
        if engine.name in self.standing.ejected:
            return "ejected, after failures"
        if not engine.healthy:
            return "it does not answer"
        if routed.model.name not in engine.model_names:
            return "it does not serve the model"
        return "full, too short a context, or not allowed by a proxy"


class Records:
    """`start` on the event loop, `close` once the last answer has ended."""

    def __init__(self, core: Core) -> None:
        settings, fleet, index, standing = core.settings, core.fleet, core.index, core.standing
        self.writer: RecordWriter | None = None  # None: no files are written
        self._policy = _chooser(settings)
        self.ring = RecordRing(settings.records.requests)
        self._others = OtherExtras(index)
        self.recorder = Recorder(
            *(self.ring, core.clock),
            picked_by=self._policy,
            whereabouts=FleetWhereabouts(fleet, standing),
            others=self._others,
            keeps_keys=settings.records.directory is not None,
            drain=core.drain,
        )
        self.watch = PromptWatch(with_text=settings.explain_text)
        self._shortfalls = Shortfalls(
            *(self.recorder, index, fleet, Later(EVENT_SECONDS), core.clock),
            under_other=self._others.under_other,
        )
        self.recorder.doubt = self._shortfalls.look
        self._settings = settings
        self._is_worker = core.is_worker
        self._fleet = FleetLines(fleet, standing, core.scheduling)
        self._stack = AsyncExitStack()

    @property
    def is_on(self) -> bool:
        return self.ring.capacity > 0

    @property
    def extensions(self) -> Sequence[Extension]:
        """The extensions that look at requests and answers."""
        watching = self.watch.extensions if self._settings.scoring else ()
        return [*([self.recorder] if self.is_on else []), *watching]

    async def start(self) -> None:
        """Open the files, if they are asked for. Raises ConfigError."""
        self.watch.start()
        self._stack.push_async_callback(self.watch.close)
        records = self._settings.records
        if records.directory is not None and not self._is_worker:
            files = RecordFiles(records, self._policy)
            self.writer = writer = RecordWriter(files, self.recorder, self._fleet)
            writer.start()
            self._stack.push_async_callback(writer.close)
        self._stack.push_async_callback(self._others.close)
        self._stack.push_async_callback(self._shortfalls.close)

    async def close(self) -> None:
        """Record what has ended, and close the files."""
        await self._stack.aclose()

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of records, and of what was not reused."""
        if self.is_on:
            yield from self.recorder.families()
            yield from self._shortfalls.families()


def _chooser(settings: ServeSettings) -> str:
    if settings.scheduling is not None:
        return "scheduling"
    if settings.policy is None and not settings.scoring:
        return "least-load"
    return settings.policy or "expected-ttft"
