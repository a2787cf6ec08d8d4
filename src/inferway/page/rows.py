"""What the page shows of one engine and of one request, and its alarms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferway.fleet.draining import Draining
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.kv.index.protocol import Index
from inferway.model import ROLE, HolderId
from inferway.records.record import Miss, RequestRecord
from inferway.routing.limits.failover import FailoverPolicy

_WORST = ("exact", "partial", "repairing", "stale", "blind")  # what we believe of a cache, by trust
_MOST_PROBLEMS = 4  # of one engine
_MOST_ALARMS = 40


class EngineRow(msgspec.Struct, frozen=True):
    """An engine as it is now. Nothing in it grows by itself: one that is idle stays equal."""

    name: str
    url: str
    up: bool
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


class RequestRow(msgspec.Struct, frozen=True):
    """A request that has ended, in one line. `seq` is the number of its record."""

    seq: int
    id: str
    at: float
    model: str
    chosen: str
    streamed: bool
    prompt_tokens: int
    prompt_blocks: int
    block_size: int
    reachable_blocks: int
    chosen_blocks: int
    delivered_tokens: int
    missed: Sequence[Miss]
    expected_ttft_ms: float
    ttft_ms: float
    total_ms: float
    status: int
    outcome: str
    reason: str


class Alarm(msgspec.Struct, frozen=True):
    """Something that should not be so, in words, and what to do about it."""

    level: str  # "fail" or "warn", as the doctor has them
    subject: str
    evidence: str
    cure: str = ""  # empty: the evidence holds it


@dataclass(frozen=True, slots=True)
class EngineRows:
    """Makes rows of engines. `wall` is the Unix time at which the subscribers' clock was 0."""

    fleet: Fleet
    index: Index
    failover: FailoverPolicy
    draining: Draining
    wall: float

    def row(self, engine: Engine, lower: Mapping[HolderId, Sequence[int]]) -> EngineRow:
        """Return what is shown of the engine. `lower`: the index's `lower_tiers`."""
        standing, load = self.failover.standing, engine.load
        subscribers = engine.subscribers
        last = [each.last_batch_at for each in subscribers if each.last_batch_at is not None]
        holders = [endpoint.holder for endpoint in engine.endpoints]
        return EngineRow(
            name=engine.name,
            url=engine.url,
            up=engine.healthy,
            drained=engine.name in standing.drained,
            breaker=str(standing.state(engine.name, self.failover.clock())),
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
            events_at=None if not last else float(round(self.wall + max(last))),
            events=sum([each.figures.stats.batches for each in subscribers]),
            gaps=sum([each.figures.stream.gaps for each in subscribers]),
            hand_over=self.draining.told(engine),
            problems=engine.problems()[:_MOST_PROBLEMS],
        )

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


def request_row(seq: int, record: RequestRecord) -> RequestRow:
    """Return the line of a record."""
    told = {name: getattr(record, name) for name in RequestRow.__struct_fields__ if name != "seq"}
    return RequestRow(seq=seq, **told)


def fleet_alarms(rows: Sequence[EngineRow]) -> Iterator[Alarm]:
    """Yield what is wrong with engines, the worst first; nothing of one that is drained and away on
    purpose."""
    if not rows:
        cure = "give one (inferway serve http://HOST:PORT), or see whether discovery finds any"
        yield Alarm("fail", "fleet", "no engine is known", cure)
    shown = sorted((row for row in rows if row.problems or _is_out(row)), key=lambda row: row.up)
    for row in shown[:_MOST_ALARMS]:
        if _is_out(row):
            cure = "its own log says why it fails; it gets requests again by itself once it answers"
            yield Alarm("warn", row.name, "it failed too often and gets no requests for now", cure)
        for problem in row.problems:
            if row.up or not row.drained:
                yield Alarm("warn" if row.up else "fail", row.name, problem)
    if len(shown) > _MOST_ALARMS:
        left = len(shown) - _MOST_ALARMS
        yield Alarm("warn", "fleet", f"{left} more engines have problems: GET /admin/engines")


def _is_out(row: EngineRow) -> bool:
    return row.breaker not in ("closed", "None", "")
