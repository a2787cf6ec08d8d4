"""What is kept of requests, whole: the ring, who fills it, who finds out why, and who looks at what
their prompts have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack

from inferway.config import ServeSettings
from inferway.extension import Extension
from inferway.fleet.fleet import Fleet
from inferway.kv.index.protocol import Index
from inferway.metrics import Family
from inferway.records.fleet_lines import FleetLines
from inferway.records.other_extras import OtherExtras
from inferway.records.recorder import Recorder
from inferway.records.ring import RecordRing
from inferway.records.shortfalls import Shortfalls
from inferway.records.watch import PromptWatch
from inferway.records.whereabouts import FleetWhereabouts
from inferway.records.writer import RecordFiles, RecordWriter
from inferway.routing.director import EVENT_SECONDS
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.scheduling.scheduling import Scheduling
from inferway.tasks import Later


class Records:
    """`start` on the event loop, `close` once the last answer has ended."""

    def __init__(
        self,
        settings: ServeSettings,
        index: Index,
        fleet: Fleet,
        standing: OutlierDetection,
        scheduling: Scheduling,
        clock: Callable[[], float] = time.monotonic,
        *,
        keeps_keys: bool = False,
    ) -> None:
        """`keeps_keys`: of blocks, for another process that writes files."""
        self.writer: RecordWriter | None = None  # None: no files are written
        self._policy = _chooser(settings)
        self.ring = RecordRing(settings.records.requests)
        self.recorder = Recorder(
            self.ring,
            clock,
            picked_by=self._policy,
            whereabouts=FleetWhereabouts(fleet, standing),
            keeps_keys=keeps_keys,
        )
        self.watch = PromptWatch(with_text=settings.explain_text)
        self._others = OtherExtras(index)
        self._shortfalls = Shortfalls(
            *(self.recorder, index, fleet, Later(EVENT_SECONDS), clock),
            under_other=self._others.under_other,
        )
        self.recorder.others, self.recorder.doubt = self._others, self._shortfalls.look
        self._settings = settings.records
        self._fleet = FleetLines(fleet, standing, scheduling)
        self._stack = AsyncExitStack()

    @property
    def is_on(self) -> bool:
        return self.ring.capacity > 0

    @property
    def extensions(self) -> Sequence[Extension]:
        """Those that look at requests and answers."""
        return (self.recorder,) if self.is_on else ()

    async def start(self) -> None:
        """Open the files, if they are asked for. Raises ConfigError."""
        self.watch.start()
        self._stack.push_async_callback(self.watch.close)
        if self._settings.directory is not None:
            files = RecordFiles(self._settings, self._policy)
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
