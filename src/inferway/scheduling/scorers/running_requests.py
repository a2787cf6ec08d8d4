"""Prefer the endpoint that runs the fewest requests."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import PluginType
from inferway.scheduling.scorers.extremes import between_extremes


@dataclass(frozen=True, slots=True)
class RunningRequests:
    """1 for the smallest batch, 0 for the largest, linear in between; 1 for all when they are
    equal."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return between_extremes(candidates.running)


TYPE = PluginType(
    "running-requests-size-scorer",
    "scores (max - r) / (max - min) of the r requests running in the engine; 1 if all are equal",
    lambda parameters, building: RunningRequests(),
)
