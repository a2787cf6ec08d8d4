"""Pick the best rated, and take turns among equals."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np

from inferway.model import Column


@dataclass(slots=True)
class MaxScore:
    """Highest score first. Equal scores take turns, so that a burst of requests that no
    engine has an advantage for spreads, instead of piling up on the first row."""

    tolerance: float = 1e-9
    _turn: count[int] = field(default_factory=count)

    def pick(self, scores: Column, count: int) -> list[int]:
        best = (scores >= np.maximum.reduce(scores) - self.tolerance).nonzero()[0]
        first = int(best[next(self._turn) % len(best)])
        others = (-scores).argsort()[:count].tolist()
        return [first, *(row for row in others if row != first)][:count]
