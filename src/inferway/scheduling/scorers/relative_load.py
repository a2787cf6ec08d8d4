"""Prefer the endpoint with less to do than the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import Candidates, Column


@dataclass(frozen=True, slots=True)
class RelativeLoad:
    """0.5 at the mean load, 1 for `scale` requests below it, 0 for `scale` above.

    Load is requests in the engine: ours in flight and, from its metrics, those of others. The
    scale is the mean itself, so the rating is free of units, and at least `min_scale`, so that
    one request more or less on an idle fleet does not outweigh a cached prompt. The form is
    production-stack's `loadaware`: (load - mean) / max(1, mean).
    """

    min_scale: float = 4.0

    def score(self, candidates: Candidates) -> Column:
        load = candidates.in_flight + candidates.others
        mean = float(load.mean())
        relative = (load - mean) / max(self.min_scale, mean)
        return 0.5 - 0.5 * np.clip(relative, -1.0, 1.0)
