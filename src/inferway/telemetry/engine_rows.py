"""The state of each engine in one row, as /admin/engines, the alarms and the page show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import msgspec

from inferway.fleet.draining import Draining
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.outage import since, state_of
from inferway.kv.index.protocol import Index
from inferway.model import ROLE, HolderId
from inferway.routing.limits.failover import FailoverPolicy
from inferway.routing.limits.outlier_detection import Affected
from inferway.telemetry.engine_speeds import EngineSpeeds, Late, Slow, Speed

_WORST = ("exact", "partial", "repairing", "stale", "blind")  # what we believe of a cache, by trust
_MOST_PROBLEMS = 4  # of one engine


class OutageRow(msgspec.Struct, frozen=True):
    """The outage of an engine, as its row shows it. Times are Unix times."""

    kind: str
    heard: float | None  # when it last answered
    error: str


class EngineRow(msgspec.Struct, frozen=True):
    """An engine as it is now. Nothing in it grows by itself: one that is idle stays equal."""

    name: str
    url: str
    up: bool
    state: str  # fleet.outage.EngineStanding
    since: float | None  # Unix time at which it came into that state
    outage: OutageRow | None
    moved: int  # requests that others took over, of its last outage
    lost: int  # and those whose clients got an error
    drained: bool
    breaker: str
    role: str | None
    models: Sequence[str]
    version: str | None
    in_flight: int
    running: int
    waiting: int
    kv: float  # share of its blocks in use
    block_size: int | None
    tiers: Sequence[int]  # blocks that we know of, by the best tier that they lie in
    evicted: int
    trust: str  # of its endpoints the one that is trusted least
    events_at: float | None  # Unix time of its last batch of events; None: none has come
    events: int  # batches
    gaps: int
    hand_over: Mapping[str, Any] | None
    problems: Sequence[str]
    late: Late | None  # what waits there for much longer than expected
    slow: Slow | None  # it takes many times as long as its fellows
    speed: Speed | None  # what it takes for a token, as learned from its answers


@dataclass(frozen=True, slots=True)
class EngineRows:
    """Makes rows of engines. `wall` is the Unix time at which the subscribers' clock was 0."""

    fleet: Fleet
    index: Index
    failover: FailoverPolicy
    draining: Draining
    speeds: EngineSpeeds
    wall: float

    def row(self, engine: Engine, lower: Mapping[HolderId, Sequence[int]]) -> EngineRow:
        """Return the row of the engine. `lower`: the index's `lower_tiers`."""
        standing, load, now = self.failover.standing, engine.load, self.failover.clock()
        affected = self.speeds.heard.affected.get(engine.name)
        affected = affected or standing.affected.get(engine.name) or Affected()
        subscribers = engine.subscribers
        last = [each.last_batch_at for each in subscribers if each.last_batch_at is not None]
        holders = [endpoint.holder for endpoint in engine.endpoints]
        return EngineRow(
            name=engine.name,
            url=engine.url,
            up=engine.healthy,
            state=str(state_of(engine, standing, now)),
            since=self._unix(since(engine, standing, self.draining.since, now)),
            outage=self._outage(engine),
            moved=affected.moved,
            lost=affected.failed,
            drained=engine.name in standing.drained,
            breaker=str(standing.state(engine.name, now)),
            role=engine.settings.all_labels.get(ROLE),
            models=engine.model_names,
            version=engine.facts.version if engine.facts else None,
            in_flight=self.fleet.in_flight(engine),
            running=int(load["running"]),
            waiting=int(load["waiting"]),
            kv=round(load["kv_usage"], 2),
            block_size=engine.block_size,
            tiers=self._tiers(holders, lower),
            evicted=sum([self.index.num_evicted(holder) for holder in holders]),
            trust=self._trust(engine),
            events_at=None if not last else float(floor(self.wall + max(last))),
            events=sum([each.figures.stats.batches for each in subscribers]),
            gaps=sum([each.figures.stream.gaps for each in subscribers]),
            hand_over=self.draining.told(engine),
            problems=engine.faults()[:_MOST_PROBLEMS],
            late=self.speeds.late(engine, self.wall),
            slow=self.speeds.slow(engine),
            speed=self.speeds.speed(engine),
        )

    def _unix(self, then: float | None) -> float | None:
        return None if then is None else float(floor(self.wall + then))

    def _outage(self, engine: Engine) -> OutageRow | None:
        outage = engine.outage
        if outage is None or engine.healthy:
            return None
        return OutageRow(str(outage.kind), self._unix(outage.heard), outage.error)

    def rows(self) -> list[EngineRow]:
        """Return all engines as they are now."""
        lower = self.index.lower_tiers()
        return [self.row(engine, lower) for engine in self.fleet.engines]

    def _tiers(
        self, holders: Sequence[HolderId], lower: Mapping[HolderId, Sequence[int]]
    ) -> Sequence[int]:
        counts = [sum([self.index.num_blocks(holder) for holder in holders])]
        for holder in holders:
            for tier, blocks in enumerate(lower.get(holder, ())):
                while len(counts) < tier + 2:
                    counts.append(0)
                counts[tier + 1] += blocks
                counts[0] -= blocks
        return counts

    def _trust(self, engine: Engine) -> str:
        if not self.fleet.follows_events:
            return "not followed"
        states = {str(self.fleet.state(endpoint)) for endpoint in engine.endpoints}
        return next((state for state in reversed(_WORST) if state in states), "blind")
