"""Pick at random, the better rated more often."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np

from inferway.model import Column
from inferway.scheduling.pickers.parameters import PickerParameters, at_most
from inferway.scheduling.pickers.random import RandomPicker
from inferway.scheduling.registry import Building, PluginType


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
        count = min(at_most(count, self.most), len(scores))
        if scores.item(scores.argmax()) <= 0:
            return self._any.pick(scores, count)
        # log(U) / score in place of U^(1/score): the same order, and small scores do not all
        # become 0. -log(U) is drawn as it is.
        with np.errstate(divide="ignore", over="ignore"):
            keys = self._draw.standard_exponential(len(scores)) / np.maximum(scores, 0.0)
        picked: list[int] = keys.argsort()[:count].tolist()
        return picked


def _build(parameters: PickerParameters, building: Building) -> WeightedRandom:
    return WeightedRandom(building.random, parameters.max_num_of_endpoints)


TYPE = PluginType(
    "weighted-random-picker",
    "picks at random, with a probability in proportion to the score (A-Res)",
    _build,
    PickerParameters,
)
