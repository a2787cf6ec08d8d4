"""Pick at random, whatever the scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from inferway.model import Column
from inferway.scheduling.pickers.parameters import PickerParameters, at_most
from inferway.scheduling.registry import Building, PluginType


@dataclass(slots=True)
class RandomPicker:
    """Each endpoint is as likely as any other, and picked once at most."""

    random: Random = field(default_factory=Random)
    most: int | None = None

    def pick(self, scores: Column, count: int) -> list[int]:
        size = len(scores)
        return self.random.sample(range(size), min(at_most(count, self.most), size))


def _build(parameters: PickerParameters, building: Building) -> RandomPicker:
    return RandomPicker(building.random, parameters.max_num_of_endpoints)


TYPE = PluginType(
    "random-picker",
    "picks any endpoint, regardless of its score",
    _build,
    PickerParameters,
)
