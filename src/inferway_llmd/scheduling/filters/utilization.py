"""Keep the endpoints that are no busier than the operator allows."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, Parameters, PluginType

KV_USAGE = "kv-cache-utilization"


class Condition(Parameters, frozen=True):
    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: Annotated[float, Meta(ge=0)]

    def holds(self, candidates: Candidates) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = self._column(candidates) <= self.max_value
        return kept

    def _column(self, candidates: Candidates) -> Column:
        match self.metric:
            case "active-requests":
                return candidates.in_flight
            case "running-requests":
                return candidates.running
            case "waiting-queue":
                return candidates.waiting
            case _:
                return candidates.kv_usage


class UtilizationFilter(Parameters, frozen=True):
    """Keeps the endpoints that satisfy all conditions; with `fallback_on_empty` all, if there is
    none (llm-d-router ebab687, filter/utilization)."""

    conditions: Annotated[tuple[Condition, ...], Meta(min_length=1)]
    fallback_on_empty: bool = False
    in_flight_load_producer_name: str = ""  # not in force: the count is always there

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        kept = np.ones(len(candidates.endpoints), np.bool_)
        for condition in self.conditions:
            kept &= condition.holds(candidates)
        return ~kept if self.fallback_on_empty and not kept.any() else kept


def _build(parameters: UtilizationFilter, building: Building) -> UtilizationFilter:
    for number, condition in enumerate(parameters.conditions):
        if condition.metric == KV_USAGE and condition.max_value > 1:
            raise ConfigError(
                f"conditions[{number}].maxValue: {condition.max_value}; expected a share of the KV"
                " cache, from 0 to 1"
            )
    return parameters


TYPE = PluginType(
    "utilization-filter",
    "keeps the endpoints whose metrics (active-requests, running-requests, waiting-queue, "
    "kv-cache-utilization) are at most maxValue in each of conditions; with fallbackOnEmpty, all "
    "if there is none",
    _build,
    UtilizationFilter,
    not_in_force=frozenset({"inFlightLoadProducerName"}),
)
