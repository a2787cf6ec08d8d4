"""How far expectations were off: counts in buckets, for a histogram."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

# Observed divided by expected: 1 is exact, 2 is twice as long.
BOUNDS = (0.25, 0.5, 0.667, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


@dataclass(slots=True)
class Accuracy:
    """Of one engine."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))  # one a bucket
    total: float = 0.0

    def observe(self, ratio: float) -> None:
        self.counts[bisect_left(BOUNDS, ratio)] += 1
        self.total += ratio
