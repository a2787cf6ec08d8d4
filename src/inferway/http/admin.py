"""GET /admin/engines: what is known of each engine, and how it is known. POST .../NAME/drain and
.../NAME/resume: whether it gets new requests. POST /admin/drain: drains the engine whose cache is
worth least. GET /admin/traffic: what keeps caches unused. GET /admin/peers: the gateways beside
this one. GET /admin/alarms: what should not be so, with its cure, as the page shows it.

For operators, and so behind the admin key where one is configured (`routes`). The names are
described in docs/troubleshooting.md, and stay.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from inferway.errors import (
    ConflictError,
    InvalidRequestError,
    UnknownModelError,
    UnknownPathError,
)
from inferway.fleet.draining import Draining
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.watch import NOT_FOLLOWED
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.http.server import Handler
from inferway.kv.index.protocol import Index
from inferway.model import ROLE, SCRAPED, Alarm, Endpoint
from inferway.routing.limits.failover import FailoverPolicy
from inferway.telemetry.alarms import fleet_alarms
from inferway.telemetry.engine_rows import EngineRows
from inferway.telemetry.traffic_counts import TrafficCounts

ALARMS, DRAIN = "/admin/alarms", "/admin/drain"
# What is known of other gateways; None: there are none to be told.
PeersReport = Callable[[], Mapping[str, Any] | None]

_PREFIX = "/admin/engines/"
_MAX_SECONDS = 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class AlarmPages:
    """`judge`: what should not be so beside the engines."""

    rows: EngineRows
    judge: Callable[[], Sequence[Alarm]]

    @property
    def for_admins(self) -> Mapping[str, Mapping[str, Handler]]:
        return {ALARMS: {"GET": self.answer}}

    def all(self) -> Sequence[Alarm]:
        return [*fleet_alarms(self.rows.rows()), *self.judge()]

    async def answer(self, _: Request, responder: Responder) -> None:
        """Answer with all alarms, the worst first."""
        responder.send(200, JSON, msgspec.json.encode({"alarms": self.all()}))

    def of_engine(self, engine: Engine) -> dict[str, Any]:
        """Return what /admin/engines shows of the engine's state, and how it does."""
        row = self.rows.row(engine, {})
        return {
            "state": row.state,
            "since": row.since,
            "outage": row.outage,
            "moved": row.moved,
            "lost": row.lost,
            "slow": row.slow,
            "late": row.late,
            "speed": row.speed,
        }


class AdminPages:
    """`clock` is the one that subscribers note batches by. `for_admins` has the handlers of whole
    paths; `change` is that of an engine's."""

    def __init__(
        self,
        fleet: Fleet,
        index: Index,
        failover: FailoverPolicy,
        counts: TrafficCounts,
        draining: Draining,
        peers: PeersReport,
        alarms: AlarmPages,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._failover = failover
        self._counts = counts
        self._draining = draining
        self._peers = peers
        self._alarms = alarms
        self._clock = clock
        self.for_admins: Mapping[str, Mapping[str, Handler]] = {
            "/admin/engines": {"GET": self.engines},
            "/admin/traffic": {"GET": self.traffic},
            DRAIN: {"POST": self.drain},
            "/admin/peers": {"GET": self.peers},
            **alarms.for_admins,
        }

    async def engines(self, _: Request, responder: Responder) -> None:
        """Answer with all engines, those that do not answer included."""
        follows = self._fleet.follows_events
        body = {
            "engines": [self._engine(engine) for engine in self._fleet.engines],
            "kv_events": {"followed": follows, "why": "" if follows else NOT_FOLLOWED},
        }
        responder.send(200, JSON, msgspec.json.encode(body))

    async def traffic(self, _: Request, responder: Responder) -> None:
        """Answer with what in the traffic keeps caches from being used."""
        responder.send(200, JSON, msgspec.json.encode(self._counts.told()))

    async def peers(self, _: Request, responder: Responder) -> None:
        """Answer with the gateways that this one shares its load with."""
        body = self._peers() or {"name": None, "over": None, "address": None, "peers": []}
        responder.send(200, JSON, msgspec.json.encode(body))

    async def change(self, request: Request, responder: Responder) -> None:
        """A drained engine gets no new requests; those that it has, end as they would have, and its
        warm prefixes go to others, for `?seconds=` if that is given. `?streams_after=`: so many
        seconds later, other engines go on with what it still streams."""
        name, _, what = request.path.removeprefix(_PREFIX).rpartition("/")
        name = unquote(name)
        if what not in ("drain", "resume"):
            raise UnknownPathError(
                f"{request.path[:200]}: expected {_PREFIX}NAME/drain or {_PREFIX}NAME/resume"
            )
        engine = next((e for e in self._fleet.engines if e.name == name), None)
        if engine is None:
            known = ", ".join(engine.name for engine in self._fleet.engines)
            raise UnknownPathError(f"no engine is called {name[:200]!r}; known: {known}")
        if what == "drain":
            query = request.query
            self._draining.drain(engine, _seconds(query), _seconds(query, "streams_after"))
        else:
            await self._draining.resume(engine)
        responder.send(200, JSON, msgspec.json.encode(self._engine(engine)))

    async def drain(self, request: Request, responder: Responder) -> None:
        """Drain the engine whose cache is worth least, of `?model=` if that is given, as `change`
        does; the answer names it. The last one that gets requests is not drained."""
        given = parse_qs(request.query).get("model", [""])[-1]
        seconds, after = _seconds(request.query), _seconds(request.query, "streams_after")
        engine = self._least_worth(given)
        self._draining.drain(engine, seconds, after)
        responder.send(200, JSON, msgspec.json.encode(self._engine(engine)))

    def _least_worth(self, model: str) -> Engine:
        drained = self._failover.standing.drained
        able = [e for e in self._fleet.engines if e.healthy and e.name not in drained]
        served = sorted({e.base_models[0].name for e in able if e.base_models})
        if model:
            able = [engine for engine in able if model in engine.model_names]
            if not able:
                raise UnknownModelError(
                    f"model: no engine that gets requests serves {model[:200]!r}; known: "
                    f"{', '.join(served)}",
                    param="model",
                )
        elif len(served) > 1:
            raise InvalidRequestError(
                f"model: engines serve different ones; expected one of: {', '.join(served)}",
                param="model",
            )
        if len(able) < 2:
            last = able[0].name if able else "none"
            raise ConflictError(
                f"of the model's engines too few get requests ({last}): one must be left"
            )
        in_flight, worth = self._fleet.in_flight, self._draining.worth
        return min(able, key=lambda each: (worth(each.name), in_flight(each), each.name))

    def _engine(self, engine: Engine) -> dict[str, Any]:
        facts, load = engine.facts, engine.load
        standing = self._failover.standing
        return {
            "name": engine.name,
            "url": engine.url,
            "healthy": engine.healthy,
            **self._alarms.of_engine(engine),
            "drained": engine.name in standing.drained,
            "hand_over": self._draining.told(engine),
            "cache_worth_tokens": round(self._draining.worth(engine.name)),
            "breaker": standing.state(engine.name, self._failover.clock()),
            "version": facts.version if facts else None,
            "models": engine.model_names,
            "block_size": engine.block_size,
            "role": engine.settings.all_labels.get(ROLE),
            "kv_transfer": self._kv_transfer(engine),
            "load": {
                "in_flight": self._fleet.in_flight(engine),
                **{name: load[name] for name in SCRAPED},
            },
            "problems": engine.problems(),
            "probes": engine.probe_report(),
            "endpoints": [
                {**self._endpoint(endpoint), "stream": self._stream(engine, endpoint)}
                for endpoint in engine.endpoints
            ],
        }

    def _kv_transfer(self, engine: Engine) -> dict[str, Any] | None:
        hands = engine.kv_transfer
        if hands is None:
            return None
        others = [other for other in self._fleet.engines if other is not engine and other.healthy]
        return {
            "connector": hands.connector,
            "role": hands.role,
            "group": hands.group,
            "lease_seconds": hands.lease_seconds,
            "hands_to": [other.name for other in others if hands.hands_to(other.kv_transfer)],
        }

    def _endpoint(self, endpoint: Endpoint) -> dict[str, Any]:
        return {
            "name": endpoint.name,
            "rank": endpoint.rank,
            "state": self._fleet.state(endpoint),
            "blocks": self._index.num_blocks(endpoint.holder),
            "blocks_evicted": self._index.num_evicted(endpoint.holder),
        }

    def _stream(self, engine: Engine, endpoint: Endpoint) -> dict[str, Any] | None:
        subscriber = engine.subscriber(endpoint)
        if subscriber is None:
            return None
        finder = engine.dialects.get(subscriber.source.rank)
        source, figures = subscriber.source, subscriber.figures
        stats, stream, blocks = figures.stats, figures.stream, figures.blocks
        last, skipped = subscriber.last_batch_at, dict(stats.skipped)
        for reason, num in blocks.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + num
        return {
            "rank": source.rank,
            "endpoint": subscriber.endpoint or source.endpoint,
            "replay": source.replay,
            "state": subscriber.state,
            "from_start": figures.from_start,
            "seq": subscriber.last_seq,
            "age_seconds": None if last is None else round(self._clock() - last, 3),
            "batches": stats.batches,
            "events": stats.events,
            "skipped": skipped,
            "gaps": stream.gaps,
            "duplicates": stream.duplicates,
            "replays": stream.replays,
            "unreadable": stream.unreadable,
            "restarts": stream.restarts,
            "forgotten": stats.forgotten,
            "cleared": blocks.cleared,
            "stored": blocks.stored,
            "removed": blocks.removed,
            "copies_count": figures.copies_count,
            "dialect": None if finder is None else {"state": finder.state, "name": finder.name},
            "orphans": figures.num_orphans,
            "caches": list(figures.caches),
            "unplaced": list(figures.unplaced),
            "adopted": blocks.adopted,
            "snapshot": figures.snapshot,
        }


def _seconds(query: str, name: str = "seconds") -> float | None:
    """Return the seconds that the query gives by this name; None if it does not. Raises
    InvalidRequestError."""
    given = parse_qs(query, keep_blank_values=True).get(name)
    if given is None:
        return None
    try:
        seconds = float(given[-1])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MAX_SECONDS:
        raise InvalidRequestError(
            f"{name}: {given[-1][:100]!r} is no number of seconds from 0 to {_MAX_SECONDS}",
            param=name,
        )
    return seconds
