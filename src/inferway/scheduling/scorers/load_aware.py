"""Prefer an endpoint without a queue; among those that have one, the shorter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, Parameters, PluginType


class LoadAwareParameters(Parameters, frozen=True):
    threshold: Annotated[int, Meta(ge=1)] = 128


@dataclass(frozen=True, slots=True)
class LoadAware:
    """0.5 * (1 - min(q, T) / T): 0.5 without a queue, 0 for one of T or more."""

    threshold: int = 128

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        rating = np.minimum(candidates.waiting, self.threshold)
        rating *= -0.5 / self.threshold
        rating += 0.5
        return rating


def _build(parameters: LoadAwareParameters, building: Building) -> LoadAware:
    return LoadAware(parameters.threshold)


TYPE = PluginType(
    "load-aware-scorer",
    "scores 0.5 * (1 - min(q, T) / T) of the q requests waiting in the engine, with T = threshold",
    _build,
    LoadAwareParameters,
)
