"""Prefer the endpoint that was given less new text lately."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import Candidates, Column


@dataclass(frozen=True, slots=True)
class RecentWork:
    """0.5 at the mean of recently sent uncached tokens, 1 for `scale` below it, 0 above.

    Load alone says nothing on a fleet that is idle between two requests: the first engine that
    holds a short beginning common to all prompts (a default system prompt) would then draw every
    unrelated session, and fill one cache while the others stay empty. `min_scale` tokens of
    imbalance do not count yet.
    """

    min_scale: float = 512.0

    def score(self, candidates: Candidates) -> Column:
        recent = candidates.recent_tokens
        mean = float(recent.mean())
        relative = (recent - mean) / max(self.min_scale, mean)
        return 0.5 - 0.5 * np.clip(relative, -1.0, 1.0)
