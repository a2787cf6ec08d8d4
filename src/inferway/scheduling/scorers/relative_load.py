"""Prefer the endpoint with less to do than the others."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.scorers.balance import below_mean


@dataclass(frozen=True, slots=True)
class RelativeLoad:
    """Rates requests in the engine: ours in flight and, from its metrics, those of others.
    `min_scale` requests more or less on an idle fleet do not outweigh a cached prompt."""

    min_scale: float = 4.0

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return below_mean(candidates.in_flight + candidates.others, self.min_scale)
