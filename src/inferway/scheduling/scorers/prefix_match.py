"""Prefer the endpoint that already holds the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import Candidates, Column


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The share of the prompt's full blocks that the endpoint holds; 0 when it has none."""

    def score(self, candidates: Candidates) -> Column:
        return candidates.matched_blocks / np.maximum(candidates.prompt_blocks, 1.0)
