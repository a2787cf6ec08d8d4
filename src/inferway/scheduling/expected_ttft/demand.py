"""The demand for each endpoint of late, and how many first tokens came too late, in buckets of
time: `engines_wanted` reads from it how many engines there should be.

Written by `learning` as requests are sent and answered. A slot is an endpoint's column.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BUCKET_SECONDS = 10.0
KEPT = 60  # buckets: ten minutes
PARTS = 8  # of the goal: how much of it a request needs for itself

# The counts of a bucket: requests; ms that their prompts take, and squares of it; first tokens that
# have come, and those of them that were late. Then the requests by the time that they take on an
# engine with nothing else to do: PARTS parts of the goal, and more than that.
REQUESTS, WORK, SQUARES, SEEN, LATE = range(5)
ALONE = 5
COUNTS = ALONE + PARTS + 1


@dataclass(slots=True)
class Demand:
    """Row i of each bucket is slot i's. `goal_ms`: of the time to the first token."""

    goal_ms: float
    _counts: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, COUNTS)))
    _bucket: int | None = None  # the number of the bucket that is being filled; None: none yet
    _first: int = 0  # the number of the first one, of which a part is missing
    _past: deque[tuple[int, NDArray[np.float64]]] = field(
        default_factory=lambda: deque(maxlen=KEPT)
    )

    def grow(self, slots: int) -> None:
        """Have room for so many slots."""
        self._counts = _with_rows(self._counts, slots)

    def forget(self, slot: int) -> None:
        """Forget a slot that another endpoint takes."""
        for counts in (self._counts, *(counts for _, counts in self._past)):
            if slot < len(counts):
                counts[slot] = 0.0

    def sent(self, slot: int, now: float, *, work: float, alone_ms: float) -> None:
        """Count a request on its way there: `work` ms for its prompt, `alone_ms` to its first
        token if nothing has to be done before it."""
        self._turn(now)
        counts = self._counts[slot]
        counts[REQUESTS] += 1.0
        counts[WORK] += work
        counts[SQUARES] += work * work
        counts[ALONE + min(int(alone_ms / self.goal_ms * PARTS), PARTS)] += 1.0

    def answered(self, slot: int, now: float, ttft_ms: float) -> None:
        """Count a first token that took so long."""
        self._turn(now)
        counts = self._counts[slot]
        counts[SEEN] += 1.0
        counts[LATE] += ttft_ms > self.goal_ms

    def last(self, now: float) -> int | None:
        """Return the number of the last bucket that is full; None if there is none."""
        if self._bucket is None:
            return None
        self._turn(now)
        last = self._bucket - 1
        return last if last > self._first else None

    def buckets(self, slots: NDArray[np.intp], last: int) -> NDArray[np.float64]:
        """Return the counts of these slots together, a row for each full bucket up to number
        `last`, the oldest first."""
        first = max(self._first + 1, last - KEPT + 1)
        rows = np.zeros((last - first + 1, COUNTS))
        for number, counts in self._past:
            if first <= number <= last:
                rows[number - first] = counts[slots[slots < len(counts)]].sum(axis=0)
        return rows

    def _turn(self, now: float) -> None:
        bucket = int(now // BUCKET_SECONDS)
        if self._bucket is None:
            self._bucket = self._first = bucket
        elif bucket > self._bucket:
            self._past.append((self._bucket, self._counts))
            self._counts = np.zeros_like(self._counts)
            self._bucket = bucket


def _with_rows(counts: NDArray[np.float64], number: int) -> NDArray[np.float64]:
    missing = number - len(counts)
    return np.concatenate([counts, np.zeros((missing, COUNTS))]) if missing > 0 else counts
