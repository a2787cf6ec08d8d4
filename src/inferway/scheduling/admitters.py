"""How full the engines are, and whom that keeps out."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, Parameters, PluginType

SATURATED = "system saturated, sheddable request dropped"

Positive = Annotated[float, Meta(gt=0)]


class UtilizationDetector(Parameters, frozen=True):
    """llm-d's legacy admission with its `utilization-detector`: a request of negative priority is
    refused when the mean over the endpoints of max(waiting / 5, KV usage / 0.8) is 1 or more.

    In a profile it is a filter: endpoints with less than that, plus `headroom`, in both figures;
    all, if there is none.
    """

    queue_depth_threshold: Annotated[int, Meta(ge=1)] = 5
    kv_cache_util_threshold: Annotated[float, Meta(gt=0, le=1)] = 0.8
    headroom: Annotated[float, Meta(ge=0)] = 0.0
    metrics_staleness_threshold: str = ""  # not in force: stale figures fade (docs/metrics.md)

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        if request.objectives.priority >= 0 or self.saturation(candidates) < 1.0:
            return None
        return SATURATED

    def saturation(self, candidates: Candidates) -> float:
        """Return 0 if nothing waits and the caches are empty, 1 or more if they are full."""
        queues = candidates.waiting / self.queue_depth_threshold
        usage = candidates.kv_usage / self.kv_cache_util_threshold
        return float(np.maximum(queues, usage).mean())

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        most = 1.0 + self.headroom
        kept: NDArray[np.bool_] = candidates.waiting < self.queue_depth_threshold * most
        kept &= candidates.kv_usage < self.kv_cache_util_threshold * most
        return kept if kept.any() else ~kept


class ProbabilisticParameters(Parameters, frozen=True):
    queue_depth_threshold: Annotated[int, Meta(ge=1)] = 5
    kv_cache_util_threshold: Positive = 0.8
    power: Positive = 5.0
    k: Positive = 300.0


@dataclass(frozen=True, slots=True)
class ProbabilisticAdmitter:
    """Refuses a request of negative priority with probability min(k * saturation^power, 1)."""

    detector: UtilizationDetector = field(default_factory=UtilizationDetector)
    power: float = 5.0
    k: float = 300.0
    random: Random = field(default_factory=Random)

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        if request.objectives.priority >= 0:
            return None
        saturation = self.detector.saturation(candidates)
        probability = min(saturation**self.power * self.k, 1.0)
        if self.random.random() >= probability:
            return None
        return (
            f"probabilistic-admitter: rejected, saturation={saturation:.3f} prob={probability:.2f}"
        )


def _probabilistic(
    parameters: ProbabilisticParameters, building: Building
) -> ProbabilisticAdmitter:
    detector = UtilizationDetector(
        queue_depth_threshold=parameters.queue_depth_threshold,
        kv_cache_util_threshold=parameters.kv_cache_util_threshold,
    )
    return ProbabilisticAdmitter(detector, parameters.power, parameters.k, building.random)


TYPES = (
    PluginType(
        "utilization-detector",
        "refuses sheddable requests while the saturation mean(max(queue / queueDepthThreshold, "
        "KV usage / kvCacheUtilThreshold)) is 1 or more",
        parameters=UtilizationDetector,
        not_in_force=frozenset({"metricsStalenessThreshold"}),
    ),
    PluginType(
        "probabilistic-admitter",
        "refuses sheddable requests with the probability min(k * saturation^power, 1)",
        _probabilistic,
        ProbabilisticParameters,
    ),
)
