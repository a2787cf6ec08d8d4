"""The page's parts, put together."""

from __future__ import annotations

import time

from inferway.fleet.draining import Draining
from inferway.fleet.fleet import Fleet
from inferway.kv.index.protocol import Index
from inferway.page.live import LiveHub
from inferway.page.pictures import Judge, Pictures
from inferway.page.rows import EngineRows
from inferway.records.ring import RecordRing
from inferway.routing.limits.failover import FailoverPolicy


def build_hub(
    fleet: Fleet,
    index: Index,
    failover: FailoverPolicy,
    draining: Draining,
    ring: RecordRing,
    judge: Judge,
) -> LiveHub:
    """Return what shows the fleet and the ring's records to all who look."""
    wall = time.time() - time.monotonic()  # event streams are noted by the monotonic clock
    engines = EngineRows(fleet, index, failover, draining, wall)
    kept = ring if ring.capacity else None
    return LiveHub(Pictures(engines, kept, judge, time.monotonic, time.time))
