"""Prefer the endpoint that was given less new text lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway.scheduling.scorers.balance import below_mean


class RecentWorkParameters(Parameters, frozen=True):
    min_scale: Annotated[float, Meta(gt=0)] = 512.0


@dataclass(frozen=True, slots=True)
class RecentWork:
    """Rates recently sent uncached tokens; `min_scale` tokens of imbalance hardly count.

    Load alone says nothing on a fleet that is idle between two requests: the first engine that
    holds a short beginning common to all prompts (a default system prompt) would then draw every
    unrelated session, and fill one cache while the others stay empty.
    """

    min_scale: float = 512.0

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return below_mean(candidates.recent_tokens, self.min_scale)


def _build(parameters: RecentWorkParameters, building: Building) -> RecentWork:
    return RecentWork(parameters.min_scale)


TYPE = PluginType(
    "recent-work-scorer",
    "scores 0.5 for the mean number of uncached tokens sent lately; 1 for less and 0 for more by "
    "that mean, or by minScale if that is larger",
    _build,
    RecentWorkParameters,
)
