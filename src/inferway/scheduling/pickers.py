"""Choose among rated candidates."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.model import Column
from inferway.scheduling.registry import Building, Parameters, PluginType

_SORTED = 128  # of so many scores all are sorted: that is faster than to look for the best
_SEARCHED = 8  # endpoints: fewer are found one after the other in less time than by partition


class PickerParameters(Parameters, frozen=True):
    """llm-d's default is one endpoint: who forwards the request there gets the whole list. We
    forward it ourselves, so without it a request may be tried as often as it may be anyway."""

    max_num_of_endpoints: Annotated[int, Meta(ge=1)] | None = None


@dataclass(slots=True)
class MaxScore:
    """Picks the highest score first. Equal scores take turns, so that a burst of requests that no
    engine has an advantage for spreads, instead of piling up on one; and so do those that are tried
    second, when many requests lose the same engine at once."""

    tolerance: float = 1e-9
    most: int | None = None
    turn: int = 0  # the number of choices among equals

    def pick(self, scores: Column, count: int) -> list[int]:
        count = _at_most(count, self.most)
        # One more than is wanted: it may be as good as the last of them.
        if len(scores) <= max(_SORTED, count):
            ranked: list[int] = scores.argsort()[: -count - 2 : -1].tolist()
        else:
            ranked = _best(scores, count + 1)
        value = scores.item
        above = inf
        for row in ranked:
            score = value(row)
            if above - score <= self.tolerance:
                return self._in_turns(scores, min(count, len(scores)))
            above = score
        return ranked[:count]

    def _in_turns(self, scores: Column, count: int) -> list[int]:
        turn = self.turn
        self.turn += 1
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


@dataclass(slots=True)
class RandomPicker:
    """Picks each endpoint as likely as any other, and once at most."""

    random: Random = field(default_factory=Random)
    most: int | None = None

    def pick(self, scores: Column, count: int) -> list[int]:
        size = len(scores)
        if size == 1:
            return [0]
        return self.random.sample(range(size), min(_at_most(count, self.most), size))


@dataclass(slots=True)
class WeightedRandom:
    """Draws without putting back, each as likely as its share of the scores: the largest
    keys U^(1/score), U drawn evenly from (0, 1) for each (A-Res: Efraimidis and Spirakis, Weighted
    random sampling with a reservoir, 2006). One without a score comes last; if none has one, all
    are equally likely."""

    random: Random = field(default_factory=Random)
    most: int | None = None
    _draw: np.random.Generator = field(init=False)
    _any: RandomPicker = field(init=False)

    def __post_init__(self) -> None:
        self._draw = np.random.default_rng(self.random.getrandbits(128))
        self._any = RandomPicker(self.random)

    def pick(self, scores: Column, count: int) -> list[int]:
        count = min(_at_most(count, self.most), len(scores))
        if scores.item(scores.argmax()) <= 0:
            return self._any.pick(scores, count)
        # log(U) / score in place of U^(1/score): the same order, and small scores do not all
        # become 0. -log(U) is drawn as it is.
        with np.errstate(divide="ignore", over="ignore"):
            keys = self._draw.standard_exponential(len(scores)) / np.maximum(scores, 0.0)
        picked: list[int] = keys.argsort()[:count].tolist()
        return picked


def _best(scores: Column, count: int) -> list[int]:
    """Return so many rows, fewer than there are: those of the highest scores, the highest first."""
    if count <= _SEARCHED:
        left = scores.copy()
        rows: list[int] = []
        while len(rows) < count and left.item(row := int(left.argmax())) > -inf:
            rows.append(row)
            left[row] = -inf
        if len(rows) == count:
            return rows
    best = scores.argpartition(-count)[-count:]
    ranked: list[int] = best[scores[best].argsort()[::-1]].tolist()
    return ranked


def _at_most(count: int, most: int | None) -> int:
    return count if most is None else min(count, most)


def _max_score(parameters: PickerParameters, building: Building) -> MaxScore:
    return MaxScore(most=parameters.max_num_of_endpoints)


def _random(parameters: PickerParameters, building: Building) -> RandomPicker:
    return RandomPicker(building.random, parameters.max_num_of_endpoints)


def _weighted_random(parameters: PickerParameters, building: Building) -> WeightedRandom:
    return WeightedRandom(building.random, parameters.max_num_of_endpoints)


TYPES = (
    PluginType(
        "max-score-picker",
        "picks the highest score; endpoints with equal scores take turns",
        _max_score,
        PickerParameters,
    ),
    PluginType(
        "random-picker",
        "picks any endpoint, regardless of its score",
        _random,
        PickerParameters,
    ),
    PluginType(
        "weighted-random-picker",
        "picks at random, with a probability in proportion to the score (A-Res)",
        _weighted_random,
        PickerParameters,
    ),
)
