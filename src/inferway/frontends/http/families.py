"""Metric families as /metrics has them, made of plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | SummaryMetricFamily

_FEW = 64  # values that numpy takes longer for than Python does


@dataclass(slots=True)
class Histogram:
    """Counts in fixed buckets, by their upper bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    # Values that are not counted yet: many at a time take a quarter of what each takes alone.
    waiting: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def settle(self) -> None:
        """Counts the values that wait."""
        values = self.waiting
        if len(values) < _FEW:
            for value in values:
                self.observe(value)
        else:
            found = np.fromiter(values, np.float64, len(values))
            numbers = np.bincount(np.searchsorted(self.bounds, found))
            for place, number in enumerate(numbers.tolist()):
                self.counts[place] += number
            self.total += float(found.sum())
        values.clear()  # the same list: whoever adds to it keeps it

    def buckets(self) -> list[tuple[str, int]]:
        """Cumulated, as Prometheus wants them."""
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


def counter(
    name: str,
    text: str,
    labels: list[str] | None = None,
    values: Mapping[tuple[str, ...], float] | None = None,
    *,
    value: float | None = None,
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"inferway_{name}", text, labels=labels or [])
    _fill(family, values, value)
    return family


def gauge(
    name: str,
    text: str,
    labels: list[str] | None = None,
    values: Mapping[tuple[str, ...], float] | None = None,
    *,
    value: float | None = None,
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"inferway_{name}", text, labels=labels or [])
    _fill(family, values, value)
    return family


def histogram(
    name: str,
    text: str,
    labels: Sequence[str] = (),
    values: Iterable[tuple[Sequence[str], Histogram]] = (),
) -> HistogramMetricFamily:
    """`name` is all of it: some are other projects'."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, each in values:
        family.add_metric(key, each.buckets(), each.total)
    return family


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily,
    values: Mapping[tuple[str, ...], float] | None,
    value: float | None,
) -> None:
    if value is not None:
        family.add_metric([], float(value))
    for key, number in (values or {}).items():
        family.add_metric(list(key), float(number))
