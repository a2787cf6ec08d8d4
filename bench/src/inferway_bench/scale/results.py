"""What `inferway bench scale` has measured, and what it comes to."""

from __future__ import annotations

from statistics import median

import msgspec
import numpy as np

from inferway_bench.results import Figure, Run
from inferway_bench.scale.plan import Grown, Plan


class Share(msgspec.Struct, frozen=True):
    """What of one core a gateway process takes, part by part."""

    engines: int
    requests: float  # carrying them: HTTP, rendering, tokens
    decisions: float
    events: float
    scrapes: float

    @property
    def all(self) -> float:
        return self.requests + self.decisions + self.events + self.scrapes


class ScaleRun(Run, frozen=True):
    """A whole run."""

    plan: Plan
    scrape_us: list[float]  # CPU time of asking an engine for its metrics and reading them
    metrics_bytes: int
    request_us: float  # to carry one request, without the decision
    request_from: str  # where that is from
    grown: list[Grown]

    @property
    def seeds(self) -> list[int]:
        return [self.plan.seed]

    def shares(self) -> list[Share]:
        return [self.share(one) for one in self.grown]

    def share(self, grown: Grown) -> Share:
        """At the plan's load. An engine is scraped every 200 ms, or 2 ms for each engine."""
        plan, engines = self.plan, grown.engines
        requests = plan.requests * engines
        blocks = requests * plan.new_blocks * (grown.stored_us + grown.removed_us)
        scrapes = engines / max(0.2, engines * 0.002) * median(self.scrape_us)
        return Share(
            engines,
            requests * self.request_us / 1e6,
            requests * median(grown.decision_us) / 1e6,
            blocks / 1e6,
            scrapes / 1e6,
        )

    def end(self) -> float | None:
        """The number of engines at which one core is used up, between those measured or beyond the
        last by its line; None if that has none."""
        shares = self.shares()
        used = [share.all for share in shares]
        engines = [float(share.engines) for share in shares]
        if used[-1] >= 1.0:
            return float(np.interp(1.0, used, engines))
        if len(used) < 2 or used[-1] <= used[-2]:
            return None
        slope = (used[-1] - used[-2]) / (engines[-1] - engines[-2])
        return engines[-1] + (1.0 - used[-1]) / slope

    def figures(self) -> list[Figure]:
        found = [Figure("a scrape", "µs", self.scrape_us)]
        for one in self.grown:
            name = f"{one.engines} engines"
            found += [
                Figure(f"{name}: decision", "µs", one.decision_us),
                Figure(f"{name}: block stored", "µs", [one.stored_us]),
                Figure(f"{name}: memory", "MiB", [one.resident_mib]),
            ]
        return found
