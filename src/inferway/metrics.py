"""Plain numbers -> metric families, as /metrics has them. Each part brings its own by `families()`;
the page (http/metrics.py) puts them together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

Family = Metric

PREFIX = "inferway_"  # of the gateway's own names

# A part's families, with their current numbers.
Families = Callable[[], Iterable[Family]]

_T = TypeVar("_T")
_Labels = TypeVar("_Labels", bound=tuple[str, ...])  # their values

# A counter or a gauge of many things alike: which of the two, its name, its help, and its number.
Row = tuple[
    Callable[[str, str, Sequence[str], Mapping[Any, float]], Family],
    str,
    str,
    Callable[[_T], float],
]

_FEW = 64  # values that numpy takes longer for than Python does
_MANY = 512


@dataclass(slots=True)
class Histogram:
    """Counts values in fixed buckets, which `bounds` names by their upper ends."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    # Values that are not counted yet: many at a time take a quarter of what each takes alone.
    waiting: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value, with others or when the buckets are read."""
        self.waiting.append(value)
        if len(self.waiting) >= _MANY:
            self.settle()

    def settle(self) -> None:
        """Counts the values in `waiting`, and empties that list."""
        values = self.waiting
        if len(values) < _FEW:
            for value in values:
                self.counts[bisect_left(self.bounds, value)] += 1
            self.total += sum(values)
        else:
            found = np.fromiter(values, np.float64, len(values))
            numbers = np.bincount(np.searchsorted(self.bounds, found))
            for place, number in enumerate(numbers.tolist()):
                self.counts[place] += number
            self.total += float(found.sum())
        values.clear()  # the same list: its owner keeps it

    def buckets(self) -> list[tuple[str, int]]:
        """Return each bucket's upper bound and how many values are at most that, as Prometheus has
        it."""
        self.settle()
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


def counter(
    name: str,
    text: str,
    labels: Sequence[str] = (),
    values: Mapping[_Labels, float] | None = None,
    *,
    value: float | None = None,
    prefix: str = PREFIX,
) -> CounterMetricFamily:
    """Return the counter `{prefix}{name}_total`: of `values` by labels, or of one `value` alone."""
    family = CounterMetricFamily(f"{prefix}{name}", text, labels=labels)
    _fill(family, values, value)
    return family


def gauge(
    name: str,
    text: str,
    labels: Sequence[str] = (),
    values: Mapping[_Labels, float] | None = None,
    *,
    value: float | None = None,
    prefix: str = PREFIX,
) -> GaugeMetricFamily:
    """Return the gauge `{prefix}{name}`: of `values` by labels, or of one `value` alone."""
    family = GaugeMetricFamily(f"{prefix}{name}", text, labels=labels)
    _fill(family, values, value)
    return family


def histogram(
    name: str,
    text: str,
    labels: Sequence[str] = (),
    values: Iterable[tuple[Sequence[str], Histogram]] = (),
) -> HistogramMetricFamily:
    """Return the histogram `name`, which is the whole name: some are other projects'."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, each in values:
        family.add_metric(key, each.buckets(), each.total)
    return family


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily,
    values: Mapping[_Labels, float] | None,
    value: float | None,
) -> None:
    if value is not None:
        family.add_metric([], float(value))
    for key, number in (values or {}).items():
        family.add_metric(key, float(number))


def table(
    rows: Iterable[Row[_T]], labels: Sequence[str], items: Mapping[_Labels, _T]
) -> Iterator[Family]:
    """Yield the family of each row, with its value for each of `items`, which stand by the values
    of `labels`."""
    for kind, name, text, value in rows:
        yield kind(name, text, labels, {key: value(item) for key, item in items.items()})


def merged(families: Iterable[Family]) -> Iterator[Family]:
    """Yield each name once: parts of the same kind bring families of the same name. Of samples with
    the same labels the first one counts, and so does the first family's type."""
    by_name: dict[str, list[Family]] = {}
    for family in families:
        by_name.setdefault(family.name, []).append(family)
    for first, *others in by_name.values():
        yield _joined(first, others) if others else first


def _joined(first: Family, others: Sequence[Family]) -> Family:
    whole = Metric(first.name, first.documentation, first.type)
    seen = set()
    for family in (first, *others):
        if family.type != first.type:
            continue
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            if key not in seen:
                seen.add(key)
                whole.samples.append(sample)
    return whole
