"""A workload whose rate goes up and down as a day's does, in the time that the run takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.requests import Workload

_POINTS = 10_001


@dataclass(frozen=True, eq=False)
class Daily(Workload):
    """Least at both ends, and most in the middle: 1 - depth cos(2 pi t) times the mean rate, on
    which the trace's own ups and downs are."""

    depth: float = 0.6

    def starts(self, rate: float, seed: int) -> NDArray[np.float64]:
        """Return the seconds at which each request arrives that follows none."""
        even = super().starts(rate, seed)
        end = len(self.requests) / rate
        time = np.linspace(0.0, 1.0, _POINTS)
        passed = time - self.depth * np.sin(2 * np.pi * time) / (2 * np.pi)
        starts: NDArray[np.float64] = np.interp(even / end, passed, time) * end
        return starts


def daily(workload: Workload, depth: float) -> Daily:
    """Return the workload with the rate of a day."""
    return Daily(
        workload.name,
        workload.about,
        workload.block_tokens,
        workload.requests,
        workload.grain,
        depth,
    )
