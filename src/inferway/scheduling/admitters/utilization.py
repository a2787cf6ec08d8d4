"""How full the engines are, and whom that keeps out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, Parameters, PluginType

SATURATED = "system saturated, sheddable request dropped"


class UtilizationParameters(Parameters, frozen=True):
    queue_depth_threshold: Annotated[int, Meta(ge=1)] = 5
    kv_cache_util_threshold: Annotated[float, Meta(gt=0, le=1)] = 0.8
    headroom: Annotated[float, Meta(ge=0)] = 0.0
    metrics_staleness_threshold: str = ""  # not in force: stale figures fade (docs/metrics.md)


@dataclass(frozen=True, slots=True)
class UtilizationDetector:
    """llm-d's legacy admission with its `utilization-detector`: a request of negative priority is
    refused when the mean over the endpoints of max(waiting / 5, KV usage / 0.8) is 1 or more.

    In a profile it is a filter: endpoints with less than that, plus `headroom`, in both figures;
    all, if there is none.
    """

    queue_depth_threshold: float = 5.0
    kv_cache_util_threshold: float = 0.8
    headroom: float = 0.0

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        if request.objectives.priority >= 0 or self.saturation(candidates) < 1.0:
            return None
        return SATURATED

    def saturation(self, candidates: Candidates) -> float:
        """0: nothing waits and the caches are empty; 1: full."""
        queues = candidates.waiting / self.queue_depth_threshold
        usage = candidates.kv_usage / self.kv_cache_util_threshold
        return float(np.maximum(queues, usage).mean())

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        most = 1.0 + self.headroom
        kept: NDArray[np.bool_] = candidates.waiting < self.queue_depth_threshold * most
        kept &= candidates.kv_usage < self.kv_cache_util_threshold * most
        return kept if kept.any() else ~kept


def _build(parameters: UtilizationParameters, building: Building) -> UtilizationDetector:
    return UtilizationDetector(
        parameters.queue_depth_threshold,
        parameters.kv_cache_util_threshold,
        parameters.headroom,
    )


TYPE = PluginType(
    "utilization-detector",
    "refuses sheddable requests while the saturation mean(max(queue / queueDepthThreshold, "
    "KV usage / kvCacheUtilThreshold)) is 1 or more",
    _build,
    UtilizationParameters,
    not_in_force=frozenset({"metricsStalenessThreshold"}),
)
