"""Statistics of repeated measurements: how far a ratio or a mean can be trusted; the
form in which they are written, `value (low to high)`.

Intervals are percentile bootstraps (Efron 1979): the data is drawn anew from itself many times,
and the interval holds the middle 95 % of what comes out. The seed is fixed, so that a result can
be computed again from what was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_DRAWS = 4000
_MIDDLE = (2.5, 97.5)  # percent
_WINDOW_DRAWS = 1000
_LEAST, _MOST, _EACH = 4, 20, 6  # windows, and the values that one should have

Floats = NDArray[np.float64]
Form = str | Callable[[float], str]  # how a number is written


class Interval(msgspec.Struct, frozen=True):
    """A value, and what lies around it: its 95 % interval, unless it is said."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        """Return the interval in another unit."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def shown(self, form: Form = "{:.2f}") -> str:
        """Return `value (low to high)`, each number written by `form`."""
        value, low, high = (shown_number(n, form) for n in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


def shown_number(value: float, form: Form) -> str:
    """Return the number in words."""
    return form.format(value) if isinstance(form, str) else form(value)


def three_digits(value: float) -> str:
    """Return the number with three digits, and with more if there are more before the point."""
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f}"


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Return median(above) / median(below), whose samples are drawn independently."""
    rng = np.random.default_rng(0)
    over, under = np.array(above), np.array(below)
    drawn = _medians(over, rng) / _medians(under, rng)
    return _interval(float(np.median(over) / np.median(under)), drawn)


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of paired differences, or of anything else that is one value per pair."""
    return _bootstrapped(np.array(values), lambda drawn: drawn.mean(axis=1))


def median_interval(values: Sequence[float]) -> Interval:
    return _bootstrapped(np.array(values), lambda drawn: np.median(drawn, axis=1))


def _bootstrapped(values: Floats, statistic: Callable[[Floats], Floats]) -> Interval:
    rng = np.random.default_rng(0)
    drawn = np.concatenate(
        # In portions: 4,000 draws of 3,000 values are 100 MB at once.
        [statistic(_draw(values, 200, rng)) for _ in range(_DRAWS // 200)]
    )
    return _interval(float(statistic(values[None, :])[0]), drawn)


def _medians(values: Floats, rng: np.random.Generator) -> Floats:
    medians: Floats = np.median(_draw(values, _DRAWS, rng), axis=1)
    return medians


def _draw(values: Floats, times: int, rng: np.random.Generator) -> Floats:
    drawn: Floats = values[rng.integers(len(values), size=(times, len(values)))]
    return drawn


def _interval(value: float, drawn: Floats) -> Interval:
    low, high = np.percentile(drawn, _MIDDLE) if drawn.size else (value, value)
    return Interval(value, float(low), float(high))


class Windows:
    """`seconds` of time from `since`, cut into equal parts, as many as `num_values` allow.

    Intervals of what follows upon each other are a bootstrap over whole parts: requests that are
    near in time share their fate, so that drawing them one by one would promise too much.
    """

    def __init__(self, since: float, seconds: float, num_values: int) -> None:
        self.num = min(_MOST, max(_LEAST, num_values // _EACH))
        self._since = since
        self._each = seconds / self.num
        self._draws = np.random.default_rng(0).integers(self.num, size=(_WINDOW_DRAWS, self.num))

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
