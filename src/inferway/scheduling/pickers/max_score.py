"""Pick the best rated, and take turns among equals."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from inferway.model import Column


@dataclass(slots=True)
class MaxScore:
    """Highest score first. Equal scores take turns, so that a burst of requests that no
    engine has an advantage for spreads, instead of piling up on the first row."""

    tolerance: float = 1e-9
    _turn: count[int] = field(default_factory=count)

    def pick(self, scores: Column, count: int) -> list[int]:
        ranked: list[int] = scores.argsort()[: -count - 1 : -1].tolist()
        top = scores[ranked[0]] - self.tolerance
        if len(ranked) == 1 or scores[ranked[1]] < top:
            return ranked
        best = (scores >= top).nonzero()[0]
        first = int(best[next(self._turn) % len(best)])
        return [first, *(row for row in ranked if row != first)][:count]
