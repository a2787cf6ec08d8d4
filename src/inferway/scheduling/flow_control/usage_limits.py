"""Plugins that say how full the engines may be for requests of each priority to go on.

A request goes on while the saturation is below its priority's ceiling. Who has a lower priority has
no higher ceiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, runtime_checkable

from msgspec import Meta

from inferway.errors import ConfigError
from inferway.scheduling.registry import Building, Parameters, PluginType


@runtime_checkable
class UsageLimits(Protocol):
    """Ceilings for each attempt to let a request go on."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return one for each priority; these stand from the highest to the lowest."""


class StaticLimit(Parameters, frozen=True):
    """static-usage-limit-policy: the same for all."""

    threshold: Annotated[float, Meta(gt=0, le=1)] = 1.0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [self.threshold] * len(priorities)


class PriorityHoldback(Parameters, frozen=True):
    """priority-holdback-policy: `max_ceiling` for the highest priority to `min_ceiling` for the
    lowest, in equal steps (`rank`) or in proportion to the priorities' numbers (`value`)."""

    min_ceiling: Annotated[float, Meta(ge=0, lt=1)]
    max_ceiling: Annotated[float, Meta(gt=0, le=1)] = 1.0
    domain: Literal["rank", "value"] = "rank"
    shape: Literal["linear"] = "linear"  # not in force: the only one

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        spread = self.max_ceiling - self.min_ceiling
        highest, last = priorities[0], len(priorities) - 1
        if not last:
            return [self.max_ceiling]
        if self.domain == "rank":
            return [self.max_ceiling - n * spread / last for n in range(last + 1)]
        below = highest - priorities[-1]
        return [self.max_ceiling - (highest - each) / below * spread for each in priorities]


@dataclass(slots=True)
class SoftReflectiveCeiling:
    """soft-reflective-ceiling-policy: 1 for the highest priority; for the one at place n below it,
    of N in all, 1 - n * saturation / (N - 1). Where the saturation has reached that, it is 1 at one
    of round(saturation / (1 - saturation)) calls and 0 at the others, for all priorities at the
    same calls."""

    _tick: int = 0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        last = len(priorities) - 1
        is_open = False
        if last and 0.5 <= saturation < 1.0:
            self._tick += 1
            period = max(1, int(saturation / (1.0 - saturation + 1e-9) + 0.5))  # as Go rounds
            is_open = self._tick % period == 0
        return [
            1.0 if not n or is_open or saturation < 1.0 - n * saturation / last else 0.0
            for n in range(last + 1)
        ]


def _holdback(parameters: PriorityHoldback, building: Building) -> PriorityHoldback:
    if parameters.min_ceiling >= parameters.max_ceiling:
        raise ConfigError(
            f"minCeiling {parameters.min_ceiling:g}, maxCeiling {parameters.max_ceiling:g}; "
            "expected minCeiling < maxCeiling"
        )
    return parameters


DEFAULT_LIMITS = "static-usage-limit-policy"

TYPES = (
    PluginType(
        DEFAULT_LIMITS,
        "lets waiting requests go on while the saturation is below threshold",
        parameters=StaticLimit,
    ),
    PluginType(
        "priority-holdback-policy",
        "lets waiting requests go on while the saturation is below a ceiling between maxCeiling, "
        "for the highest priority, and minCeiling, for the lowest",
        _holdback,
        PriorityHoldback,
        not_in_force=frozenset({"shape"}),
    ),
    PluginType(
        "soft-reflective-ceiling-policy",
        "lets waiting requests of lower priorities go on the more seldom, the higher the "
        "saturation is",
        lambda parameters, building: SoftReflectiveCeiling(),
    ),
)
