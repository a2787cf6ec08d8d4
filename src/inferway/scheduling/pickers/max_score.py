"""Pick the best rated, and take turns among equals."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from math import inf

from inferway.model import Column
from inferway.scheduling.pickers.parameters import PickerParameters, at_most
from inferway.scheduling.registry import Building, PluginType

_SORTED = 128  # of so many scores all are sorted: that is faster than to look for the best


@dataclass(slots=True)
class MaxScore:
    """Highest score first. Equal scores take turns, so that a burst of requests that no engine has
    an advantage for spreads, instead of piling up on one; and so do those that are tried second,
    when many requests lose the same engine at once."""

    tolerance: float = 1e-9
    most: int | None = None
    _turn: count[int] = field(default_factory=count)

    def pick(self, scores: Column, count: int) -> list[int]:
        if self.most is not None:
            count = at_most(count, self.most)
        # One more than is wanted: it may be as good as the last of them.
        if len(scores) <= max(_SORTED, count):
            ranked: list[int] = scores.argsort()[: -count - 2 : -1].tolist()
        else:
            best = scores.argpartition(-count - 1)[-count - 1 :]
            ranked = best[scores[best].argsort()[::-1]].tolist()
        value = scores.item
        above = inf
        for row in ranked:
            score = value(row)
            if above - score <= self.tolerance:
                return self._in_turns(scores, min(count, len(scores)))
            above = score
        return ranked[:count]

    def _in_turns(self, scores: Column, count: int) -> list[int]:
        turn = next(self._turn)
        picked = self._equals(scores, turn, count)
        if len(picked) < count:
            left = scores.copy()
            while len(picked) < count:
                left[picked] = -inf
                picked += self._equals(left, turn, count - len(picked))
        return picked

    def _equals(self, scores: Column, turn: int, count: int) -> list[int]:
        """The rows of the highest score, beginning with another one at each turn."""
        best = scores.item(scores.argmax()) - self.tolerance
        equals = (scores >= best).nonzero()[0]
        first = turn % len(equals)
        rows: list[int] = equals[first : first + count].tolist()
        if len(rows) < count and first > 0:
            rows += equals[: min(first, count - len(rows))].tolist()
        return rows


def _build(parameters: PickerParameters, building: Building) -> MaxScore:
    return MaxScore(most=parameters.max_num_of_endpoints)


TYPE = PluginType(
    "max-score-picker",
    "picks the highest score; endpoints with equal scores take turns",
    _build,
    PickerParameters,
)
