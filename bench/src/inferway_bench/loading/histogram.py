"""A histogram of durations whose buckets grow with the value, as HdrHistogram's do. Pure.

Any count of values takes the same memory, two runs add up, and a percentile is right within
0.4 % of itself. HdrHistogram (http://hdrhistogram.org) is also where the correction comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

_PARTS = 128  # buckets between a value and its double
_LEAST = 2.0**-20  # seconds, about a microsecond: what is shorter counts as that
_MOST = 2.0**20  # twelve days


class Buckets(msgspec.Struct, frozen=True):
    """A histogram as it is stored: bucket -> count. Bucket b of 128 to an octave begins at
    2 ** (b // 128 - 20) * (1 + b % 128 / 128) seconds."""

    counts: dict[int, int]
    total: float  # seconds
    least: float
    most: float


class Histogram:
    """Durations in seconds. Written by whoever made it."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(40 * _PARTS + 1, np.int64)
        self._total = 0.0
        self._least = float("inf")
        self._most = 0.0

    def __len__(self) -> int:
        return int(self._counts.sum())

    def add(self, values: Iterable[float]) -> None:
        found = np.fromiter(values, np.float64)
        if not found.size:
            return
        self._counts += np.bincount(_bucket(found), minlength=len(self._counts))
        self._total += float(found.sum())
        self._least = min(self._least, float(found.min()))
        self._most = max(self._most, float(found.max()))

    def add_corrected(self, values: Iterable[float], interval: float) -> None:
        """Where a closed loop that sends every `interval` seconds waited longer than that, also
        what the requests would have waited that it left out: interval by interval less."""
        kept = list(values)
        self.add(kept)
        if interval > 0:
            self.add(_left_out(kept, interval))

    def merge(self, other: Histogram) -> None:
        self._counts += other._counts
        self._total += other._total
        self._least = min(self._least, other._least)
        self._most = max(self._most, other._most)

    @property
    def mean(self) -> float:
        """Exact. Of nothing: 0."""
        return self._total / max(1, len(self))

    @property
    def most(self) -> float:
        """Exact."""
        return self._most

    def percentile(self, percent: float) -> float:
        """The least value that `percent` of all do not exceed, within 0.4 %. Of nothing: 0."""
        count = len(self)
        if not count:
            return 0.0
        rank = max(1, int(np.ceil(round(count * percent / 100, 6))))
        if rank >= count:
            return self._most
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(max(_middle(bucket), self._least), self._most)

    def stored(self) -> Buckets:
        filled = np.flatnonzero(self._counts)
        counts = {int(bucket): int(self._counts[bucket]) for bucket in filled}
        return Buckets(counts, self._total, self._least if counts else 0.0, self._most)

    @classmethod
    def loaded(cls, stored: Buckets) -> Histogram:
        histogram = cls()
        for bucket, count in stored.counts.items():
            histogram._counts[bucket] = count
        histogram._total, histogram._most = stored.total, stored.most
        histogram._least = stored.least if stored.counts else float("inf")
        return histogram


def _left_out(values: Iterable[float], interval: float) -> Iterator[float]:
    for value in values:
        missed = int(value / interval + 1e-9) - 1
        yield from (value - interval * number for number in range(1, missed + 1))


def _bucket(values: NDArray[np.float64]) -> NDArray[np.int64]:
    mantissa, exponent = np.frexp(np.clip(values, _LEAST, _MOST) / _LEAST)
    part = np.floor((mantissa * 2 - 1) * _PARTS)
    buckets: NDArray[np.int64] = ((exponent - 1) * _PARTS + part).astype(np.int64)
    return buckets


def _middle(bucket: int) -> float:
    octave, part = divmod(bucket, _PARTS)
    return _LEAST * float(2**octave) * (1 + (part + 0.5) / _PARTS)
