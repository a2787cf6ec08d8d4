"""What the records say of an engine's time: who was alone there, and how many were answered at
once. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Spans(NamedTuple):
    """The beginnings and the ends of intervals, each in order."""

    starts: Floats
    ends: Floats

    @classmethod
    def of(cls, starts: Floats, ends: Floats) -> Spans:
        return cls(np.sort(starts), np.sort(ends))

    def touching(self, since: Floats, until: Floats) -> NDArray[np.int64]:
        """Return for each interval how many of these have begun before its end, and not ended by
        its beginning; itself among them if it is one of them."""
        begun = np.searchsorted(self.starts, until, "left")
        ended = np.searchsorted(self.ends, since, "right")
        return np.asarray(begun - ended, np.int64)

    def mean(self, since: Floats, until: Floats) -> Floats:
        """Return for each interval how many of these hold in it, on average over its time."""
        held = self._integral(until) - self._integral(since)
        return np.asarray(held / np.maximum(until - since, 1e-9), np.float64)

    def _integral(self, at: Floats) -> Floats:
        return _elapsed(self.starts, at) - _elapsed(self.ends, at)

    def covered(self, since: float, until: float) -> float:
        """Return the seconds between `since` and `until` in which at least one holds."""
        starts = np.clip(self.starts, since, until)
        ends = np.clip(self.ends, since, until)
        # of sorted beginnings and ends, a gap is where as many have ended as begun
        gaps = np.maximum(starts[1:] - ends[:-1], 0.0).sum() if len(starts) else 0.0
        return float(ends[-1] - starts[0] - gaps) if len(starts) else 0.0


def _elapsed(points: Floats, at: Floats) -> Floats:
    """The sum of the seconds since all points before `at`."""
    sums = np.concatenate(([0.0], points.cumsum()))
    number = np.searchsorted(points, at, "right")
    return np.asarray(number * at - sums[number], np.float64)
