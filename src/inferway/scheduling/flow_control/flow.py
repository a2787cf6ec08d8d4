"""Settings of llm-d's section `flowControl`: which requests wait, how long, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferway.scheduling.admitters import SaturationDetector, UtilizationDetector
from inferway.scheduling.flow_control.policies import Fairness, FirstCome, GlobalStrict, Ordering
from inferway.scheduling.flow_control.usage_limits import StaticLimit, UsageLimits


@dataclass(frozen=True, slots=True)
class PriorityBand:
    """The waiting requests of one priority. What is None goes by the settings of flow."""

    ordering: Ordering = field(default_factory=FirstCome)
    fairness: Fairness = field(default_factory=GlobalStrict)
    max_requests: int | None = None
    seconds: float | None = None  # that one waits


@dataclass(frozen=True, slots=True)
class FlowControl:
    """A request waits while its model's endpoints are as full as its priority's ceiling. What is
    None goes by the settings of flow, which hold beside it in any case."""

    detector: SaturationDetector = field(default_factory=UtilizationDetector)
    limits: UsageLimits = field(default_factory=StaticLimit)
    bands: Mapping[int, PriorityBand] = field(default_factory=dict)  # by priority
    others: PriorityBand = field(default_factory=PriorityBand)  # priorities without a band
    negative: PriorityBand | None = None  # those of them below 0
    max_requests: int | None = None  # that wait
    seconds: float | None = None  # that one waits

    def band(self, priority: int) -> PriorityBand:
        """Return the band of that priority."""
        band = self.bands.get(priority)
        if band is not None:
            return band
        return self.others if self.negative is None or priority >= 0 else self.negative
