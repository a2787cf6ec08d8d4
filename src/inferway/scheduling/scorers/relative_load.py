"""Prefer the endpoint with less to do than the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway.scheduling.scorers.balance import below_mean


class RelativeLoadParameters(Parameters, frozen=True):
    min_scale: Annotated[float, Meta(gt=0)] = 4.0


@dataclass(frozen=True, slots=True)
class RelativeLoad:
    """Rates requests in the engine: ours in flight and, from its metrics, those of others.
    `min_scale` requests more or less on an idle fleet do not outweigh a cached prompt."""

    min_scale: float = 4.0

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return below_mean(candidates.in_flight + candidates.others, self.min_scale)


def _build(parameters: RelativeLoadParameters, building: Building) -> RelativeLoad:
    return RelativeLoad(parameters.min_scale)


TYPE = PluginType(
    "relative-load-scorer",
    "scores 0.5 for the mean number of requests in the engines; 1 for less and 0 for more by that "
    "mean, or by minScale if that is larger",
    _build,
    RelativeLoadParameters,
)
