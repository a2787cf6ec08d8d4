"""Keep the endpoints that are expected to be in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.expected_latency import EXPECTED_TTFT, check_producer, in_time
from inferway.scheduling.registry import Building, Parameters, PluginType


class SloHeadroomTierParameters(Parameters, frozen=True):
    epsilon_explore_neg: Annotated[float, Meta(ge=0, le=1)] = 0.01
    latency_prediction_info_producer_name: str = ""


@dataclass(frozen=True, slots=True)
class SloHeadroomTier:
    """Keeps those that are expected to be in time for what the request asks; with the probability
    `epsilon_explore_neg` the others instead, so that a slow one is tried again. All, where nothing
    is expected, or all are alike (llm-d-router ebab687, filter/sloheadroomtier)."""

    epsilon_explore_neg: float = 0.01
    random: Random = field(default_factory=Random)

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        fits = in_time(request, candidates)
        if fits is None or not 0 < np.count_nonzero(fits) < len(fits):
            return np.ones(len(candidates.endpoints), np.bool_)
        return ~fits if self.random.random() < self.epsilon_explore_neg else fits


def _build(parameters: SloHeadroomTierParameters, building: Building) -> SloHeadroomTier:
    check_producer(parameters.latency_prediction_info_producer_name, building)
    return SloHeadroomTier(parameters.epsilon_explore_neg, building.random)


TYPE = PluginType(
    "slo-headroom-tier-filter",
    "keeps the endpoints that are expected (expected-ttft) to be in time for what the request asks;"
    " with the probability epsilonExploreNeg, the others",
    _build,
    SloHeadroomTierParameters,
    needs=lambda _: (EXPECTED_TTFT,),
)
