"""Prefer the endpoint that already holds the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.trust import TRUST


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The share of the prompt's full blocks that the endpoint holds, 0 when it has none. Blocks in
    lower tiers count for less, and so does what nothing confirms (`Candidates.states`)."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        share = candidates.matched_value / np.maximum(candidates.prompt_blocks, 1.0)
        share *= TRUST[candidates.states]
        return share
