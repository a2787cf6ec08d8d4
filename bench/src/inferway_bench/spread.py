"""What repeated measurements say: quartiles, and how far a ratio or a mean can be trusted; and how
that is written: `value (low to high)` everywhere.

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


def quartiles(values: Sequence[float]) -> Interval:
    """Return the median, and the quartiles around it."""
    low, middle, high = np.percentile(np.array(values), (25, 50, 75))
    return Interval(float(middle), float(low), float(high))


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
    low, high = np.percentile(drawn, _MIDDLE)
    return Interval(value, float(low), float(high))
