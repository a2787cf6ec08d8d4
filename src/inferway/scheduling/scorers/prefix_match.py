"""Prefer the endpoint that already holds the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import BLIND, STALE, Candidates, Column
from inferway.openai_api.llm_request import LLMRequest

# By state. Of a partial engine all we believe is true, it may only hold more; one that is being
# repaired is a moment behind. Behind a lost link nothing confirms what we believe: mostly it is a
# hiccup and all is still there, sometimes the engine was restarted and nothing is. Half lets an
# engine that confirms as much win, and the stale one win over those that hold little.
_TRUST = np.ones(5)
_TRUST[STALE] = 0.5
_TRUST[BLIND] = 0.0


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The share of the prompt's full blocks that the endpoint holds, 0 when it has none. Blocks in
    lower tiers count for less, and so does what nothing confirms (`Candidates.states`)."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        share = candidates.matched_value / np.maximum(candidates.prompt_blocks, 1.0)
        share *= _TRUST[candidates.states]
        return share
