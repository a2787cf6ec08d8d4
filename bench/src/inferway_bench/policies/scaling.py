"""How many engines a fleet is to have: what Kubernetes makes of a signal, and signals. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np

from inferway.model import Candidates
from inferway.scheduling.expected_ttft.engines_wanted import Serving, Slo, WantedEstimator
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft


class Elastic(msgspec.Struct, frozen=True):
    """How engines come and go. The defaults are those of a HorizontalPodAutoscaler, but for
    `down_seconds`."""

    least: int = 1
    most: int = 32
    start_seconds: float = 60.0  # from the wish to the first request
    sync_seconds: float = 15.0
    tolerance: float = 0.1
    down_seconds: float = 120.0  # for which a lower number must have been asked for
    least_worth: bool = True  # goes first; else the newest
    hand_over: bool = True  # before it goes

    @property
    def about(self) -> str:
        """The same in words."""
        first = "whose cache is worth least" if self.least_worth else "that is the newest"
        handed = " and hands over its warm prefixes" if self.hand_over else ""
        return (
            f"An engine serves {self.start_seconds:g} s after it was asked for, with an empty "
            f"cache. The engine {first} is drained{handed}; it counts until its last answer has "
            f"ended. A HorizontalPodAutoscaler looks every {self.sync_seconds:g} s, with a "
            f"tolerance of {self.tolerance:.0%}, and takes engines away that were too many for "
            f"{self.down_seconds:g} s."
        )


class Signal(Protocol):
    """Says how many engines there should be."""

    def wanted(self, now: float, table: Candidates, current: int) -> int:
        """Return the number of engines. `table`: those that get requests, as the gateway sees
        them; `current`: those, and those that start."""


@dataclass(slots=True)
class HorizontalAutoscaler:
    """Kubernetes' rule for an external metric with an average value of 1."""

    elastic: Elastic
    _asked: deque[tuple[float, int]] = field(default_factory=deque)

    def replicas(self, now: float, current: int, wanted: float | None) -> int:
        """Return how many there should be."""
        elastic = self.elastic
        number = current
        if wanted is not None and abs(wanted / current - 1.0) > elastic.tolerance:
            number = math.ceil(wanted)
        number = min(max(number, elastic.least), elastic.most)
        self._asked.append((now, number))
        while self._asked[0][0] < now - elastic.down_seconds:
            self._asked.popleft()
        return max(number, min(current, max(asked for _, asked in self._asked)))


@dataclass(slots=True)
class Forever:
    """The same number all the time."""

    number: int

    def wanted(self, now: float, table: Candidates, current: int) -> int:
        return self.number


@dataclass(slots=True)
class Foreseen:
    """A number for each window of time. Engines are started so that they serve when their window
    begins."""

    numbers: Sequence[int]
    window_seconds: float
    ahead_seconds: float

    def wanted(self, now: float, table: Candidates, current: int) -> int:
        last = len(self.numbers) - 1
        first, end = (
            min(int(at / self.window_seconds), last) for at in (now, now + self.ahead_seconds)
        )
        return max(self.numbers[first : end + 1])


@dataclass(slots=True)
class InFlight:
    """So many requests for each engine, waiting ones included: what is usual."""

    each: float
    rule: HorizontalAutoscaler

    def wanted(self, now: float, table: Candidates, current: int) -> int:
        return self.rule.replicas(now, current, float(table.in_flight.sum()) / self.each)


@dataclass(slots=True)
class ForSlo:
    """`inferway_engines_wanted`."""

    plugin: ExpectedTtft
    slo: Slo
    rule: HorizontalAutoscaler
    estimator: WantedEstimator = field(init=False)
    said: list[tuple[float, float, float, float]] = field(default_factory=list)  # when, what, why

    def __post_init__(self) -> None:
        self.estimator = WantedEstimator(self.slo)
        assert self.slo.ttft_ms is not None
        self.plugin.watch_demand(self.slo.ttft_ms)

    def wanted(self, now: float, table: Candidates, current: int) -> int:
        names = self.plugin.slots.names()
        slots = [names[each.name] for each in table.endpoints if each.name in names]
        serving = Serving(
            np.array(slots, np.intp),
            len(slots),
            float(table.in_flight.sum()),
            0.0,
            float(table.kv_usage.mean()),
        )
        found = self.estimator.look(self.plugin.learning, serving, now)
        if found is None:
            return current
        self.said.append((now, found.engines, found.busy, found.busy_at_slo))
        return self.rule.replicas(now, current, found.engines)
