"""The decisions of a router, as a metric of Ray's: `ray_inferway_router_decisions_total`."""

from __future__ import annotations

import asyncio
from collections import Counter

from ray.util import metrics

from inferway.tasks import Tasks

FLUSH_SECONDS = 5.0
# Beside the reasons of model.Reason: what Ray's default has chosen, and turns of replicas whose
# engines are not known.
DEFAULT, UNKNOWN = "ray-default", "replica-unknown"


class DecisionCounts:
    """Counts in the router's loop, and tells Ray every few seconds: its counters take microseconds
    each."""

    def __init__(self, application: str, deployment: str, tasks: Tasks) -> None:
        self._counter = metrics.Counter(
            "inferway_router_decisions",
            description="Handle calls routed, by why they went where they went.",
            tag_keys=("application", "deployment", "reason"),
        )
        self._counter.set_default_tags({"application": application, "deployment": deployment})
        self._new: Counter[str] = Counter()
        self._tasks = tasks

    def decided(self, reason: str) -> None:
        if not self._new:
            self._tasks.spawn(self._flush())
        self._new[reason] += 1

    async def _flush(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        told, self._new = self._new, Counter()
        for reason, number in told.items():
            self._counter.inc(number, tags={"reason": reason})
