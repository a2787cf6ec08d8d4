"""Intervals of what follows upon each other: a bootstrap over windows of time. Pure.

Requests that are near in time share their fate, so that drawing them one by one would promise too
much. Whole windows are drawn instead; the seed is fixed, so that a result can be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferway_bench.spread import Floats, Interval

_DRAWS = 1000
_MIDDLE = (2.5, 97.5)  # percent
_LEAST, _MOST, _EACH = 4, 20, 6  # windows, and the values that one should have


class Windows:
    """`seconds` of time from `since`, cut into equal parts, as many as `num_values` allow."""

    def __init__(self, since: float, seconds: float, num_values: int) -> None:
        self.num = min(_MOST, max(_LEAST, num_values // _EACH))
        self._since = since
        self._each = seconds / self.num
        self._draws = np.random.default_rng(0).integers(self.num, size=(_DRAWS, self.num))

    def sums(self, times: Sequence[float], values: Sequence[float]) -> Floats:
        """Return the sum of the values in each window; those beyond the ends do not count."""
        window, array = self._windows(times), np.asarray(values, np.float64)
        kept = window >= 0
        return np.bincount(window[kept], array[kept], minlength=self.num).astype(np.float64)

    def ratio(self, above: Floats, below: Floats) -> Interval:
        """Return sum(above) / sum(below), of the sums in each window, with its 95 % interval."""
        under, total = below[self._draws].sum(axis=1), float(below.sum())
        ratios = above[self._draws].sum(axis=1)[under > 0] / under[under > 0]
        return _interval(float(above.sum()) / total if total else 0.0, ratios)

    def mean(self, times: Sequence[float], values: Sequence[float]) -> Interval:
        return self.ratio(self.sums(times, values), self.sums(times, [1.0] * len(values)))

    def rate(self, times: Sequence[float], values: Sequence[float]) -> Interval:
        """Return the sum of the values for each second, with its 95 % interval."""
        return self.ratio(self.sums(times, values), np.full(self.num, self._each))

    def percentile(
        self, times: Sequence[float], values: Sequence[float], percent: float
    ) -> Interval:
        window, array = self._windows(times), np.asarray(values, np.float64)
        parts = [array[window == number] for number in range(self.num)]
        drawn = [np.concatenate([parts[i] for i in draw]) for draw in self._draws]
        found = np.array([_percentile(d, percent) for d in drawn if d.size])
        return _interval(float(np.percentile(array[window >= 0], percent)), found)

    def _windows(self, times: Sequence[float]) -> NDArray[np.int64]:
        """The number of the window of each time; -1 beyond the ends."""
        number = np.floor((np.asarray(times, np.float64) - self._since) / self._each)
        found: NDArray[np.int64] = np.where((number < 0) | (number >= self.num), -1, number)
        return found.astype(np.int64)


def _percentile(values: Floats, percent: float) -> float:
    """As numpy's, which takes 200 µs for a few values."""
    at = (len(values) - 1) * percent / 100
    below = int(at)
    above = min(below + 1, len(values) - 1)
    parted = np.partition(values, (below, above))
    return float(parted[below] + (parted[above] - parted[below]) * (at - below))


def _interval(value: float, drawn: Floats) -> Interval:
    low, high = np.percentile(drawn, _MIDDLE) if drawn.size else (value, value)
    return Interval(value, float(low), float(high))
