"""Refuse sheddable requests the more often, the fuller the engines are."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Annotated

from msgspec import Meta

from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.admitters.utilization import UtilizationDetector
from inferway.scheduling.registry import Building, Parameters, PluginType

Positive = Annotated[float, Meta(gt=0)]


class ProbabilisticParameters(Parameters, frozen=True):
    queue_depth_threshold: Annotated[int, Meta(ge=1)] = 5
    kv_cache_util_threshold: Positive = 0.8
    power: Positive = 5.0
    k: Positive = 300.0


@dataclass(frozen=True, slots=True)
class ProbabilisticAdmitter:
    """A request of negative priority is refused with probability min(k * saturation^power, 1)."""

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


def _build(parameters: ProbabilisticParameters, building: Building) -> ProbabilisticAdmitter:
    detector = UtilizationDetector(
        parameters.queue_depth_threshold, parameters.kv_cache_util_threshold
    )
    return ProbabilisticAdmitter(detector, parameters.power, parameters.k, building.random)


TYPE = PluginType(
    "probabilistic-admitter",
    "refuses sheddable requests with the probability min(k * saturation^power, 1)",
    _build,
    ProbabilisticParameters,
)
