"""Prefer the endpoint with the shortest queue."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import PluginType
from inferway.scheduling.scorers.extremes import between_extremes


@dataclass(frozen=True, slots=True)
class Queue:
    """1 for the shortest queue, 0 for the longest, linear in between; 1 for all when they are
    equal."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return between_extremes(candidates.waiting)


TYPE = PluginType(
    "queue-scorer",
    "scores (max - q) / (max - min) of the q requests waiting in the engine; 1 if all are equal",
    lambda parameters, building: Queue(),
)
