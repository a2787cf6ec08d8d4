"""Learned costs and loads, as one gateway hands them to another that has just come.

Whoever has seen little takes it over; whoever knows an engine by itself goes on by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from inferway.scheduling.per_endpoint import EndpointSlots

if TYPE_CHECKING:
    from inferway.scheduling.expected_ttft.learning import Learning

# What observations can add up to, and what another may say at most.
MOST_WEIGHT = 1000.0
MOST_TIMES = 1e6  # as long as is usual
MOST_COUNT = 1_000_000_000
_TINY = 1e-6


class KnownSums(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Weighted observations: sums of z zT, row by row, and of y z (`costs`)."""

    zz: Sequence[float]
    zy: Sequence[float]

    def is_sound(self, size: int) -> bool:
        """Return whether observations of so many features can add up to this: nothing that is
        computed from it fails then."""
        if len(self.zz) != size * size or len(self.zy) != size:
            return False
        if not all(0.0 <= each <= MOST_WEIGHT for each in self.zz):
            return False
        if not all(0.0 <= each <= MOST_TIMES * MOST_WEIGHT for each in self.zy):
            return False
        zz = np.array(self.zz).reshape(size, size)
        weight = float(zz.sum())
        if weight < _TINY or not _TINY * weight <= sum(self.zy) <= MOST_TIMES * weight:
            return False
        is_symmetric = bool(np.allclose(zz, zz.T))
        return is_symmetric and float(np.linalg.eigvalsh(zz)[0]) > -_TINY * MOST_WEIGHT


class KnownEngine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The observations of one engine, added up."""

    sums: KnownSums
    count: int
    error: float
    bias: float
    mean: float
    variance: float

    def is_sound(self, size: int) -> bool:
        return (
            0 < self.count <= MOST_COUNT
            and 0.0 <= self.error <= 100.0
            and -100.0 <= self.bias <= 100.0
            and -100.0 <= self.mean <= 100.0
            and 0.0 <= self.variance <= 10_000.0
            and self.sums.is_sound(size)
        )


class KnownCosts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The costs of one kind of time: of all engines, of which there were so many observations, and
    of some of them one by one."""

    all: KnownSums
    count: int
    engines: dict[str, KnownEngine]

    def is_sound(self, size: int) -> bool:
        return (
            0 < self.count <= MOST_COUNT
            and self.all.is_sound(size)
            and all(each.is_sound(size) for each in self.engines.values())
        )


class KnownLoad(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The load sent to one engine of late, as of now: requests, milliseconds of work, new
    tokens."""

    requests: float
    work: float
    new_tokens: float

    @property
    def is_sound(self) -> bool:
        return all(0.0 <= each <= 1e12 for each in (self.requests, self.work, self.new_tokens))


class KnownMeans(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fleet's means, and the answers that were asked for of late."""

    answer_tokens: float
    cached_share: float
    new_tokens: float
    answers: float

    @property
    def is_sound(self) -> bool:
        return (
            0.0 < self.answer_tokens <= 1e9
            and -1e3 <= self.cached_share <= 1.0
            and 0.0 <= self.new_tokens <= 1e9
            and 0.0 <= self.answers <= 1e9
        )


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The costs and loads that a gateway has learned, with the engines that they are about."""

    costs: list[KnownCosts | None]  # by `sharing.Kind`; None: nothing was observed
    loads: dict[str, KnownLoad]
    means: KnownMeans

    @property
    def endpoints(self) -> set[str]:
        """The names of those that it is about."""
        found = set(self.loads)
        for costs in self.costs:
            if costs is not None:
                found.update(costs.engines)
        return found

    def is_sound(self, sizes: Sequence[int]) -> bool:
        """Return whether a gateway can learn this. `sizes`: how many features each kind has."""
        return (
            len(self.costs) == len(sizes)
            and all(
                costs is None or costs.is_sound(size)
                for costs, size in zip(self.costs, sizes, strict=True)
            )
            and self.means.is_sound
            and all(load.is_sound for load in self.loads.values())
        )


def known_of(learning: Learning, slots: EndpointSlots, names: Iterable[str], now: float) -> Known:
    """Return what was learned of these endpoints; of those that are not known, nothing."""
    there = slots.names()
    found = {name: there[name] for name in names if name in there}
    marginal = learning.marginal_cost
    return Known(
        [costs.known(found) for costs in learning.all_costs],
        {name: marginal.known(slot, now) for name, slot in found.items()},
        marginal.known_means(now),
    )


def adopt(learning: Learning, slots: EndpointSlots, known: Known, now: float) -> None:
    """Take over what another gateway has learned, and this one does not know yet. It is sound."""
    names = known.endpoints
    found = {name: slots.slot_of(name, now) for name in names}
    is_new = not learning.ttft.is_well_known
    if is_new:
        learning.marginal_cost.adopt_means(known.means, now)
    for name, load in known.loads.items():
        if learning.ttft.is_cold[found[name]]:
            learning.marginal_cost.adopt(found[name], load, now)
    for costs, told in zip(learning.all_costs, known.costs, strict=True):
        if told is not None:
            costs.adopt(told, found, now)
