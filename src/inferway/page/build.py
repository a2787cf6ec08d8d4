"""The page's parts, put together."""

from __future__ import annotations

import time
from collections.abc import Callable

from inferway.fleet.draining import Draining
from inferway.fleet.fleet import Fleet
from inferway.kv.index.protocol import Index
from inferway.page.live import LiveHub
from inferway.page.pictures import Judge, Pictures
from inferway.page.rows import EngineRows
from inferway.records.ring import RecordRing
from inferway.routing.limits.failover import FailoverPolicy
from inferway.telemetry.engine_speeds import EngineSpeeds


def build_rows(
    fleet: Fleet,
    index: Index,
    failover: FailoverPolicy,
    draining: Draining,
    speeds: EngineSpeeds,
) -> EngineRows:
    """Return what makes rows of the fleet's engines."""
    wall = time.time() - time.monotonic()  # event streams are noted by the monotonic clock
    return EngineRows(fleet, index, failover, draining, speeds, wall)


def build_hub(
    engines: EngineRows, ring: RecordRing, judge: Judge, queued: Callable[[], int]
) -> LiveHub:
    """Return what shows the fleet and the ring's records to all who look. `queued`: how many
    requests wait in the gateway."""
    kept = ring if ring.capacity else None
    return LiveHub(Pictures(engines, kept, judge, time.monotonic, time.time, queued))
