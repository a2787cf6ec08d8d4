"""What is told of a run, measured or simulated alike: of the same requests, by the same sums."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.requests import Outcome
from inferway_bench.whatif.engines import Floats, Spans
from inferway_bench.whatif.workload import Replay

SHARES = ("cached", "busy")  # in %: their errors are points


class ReplayFigures(msgspec.Struct, frozen=True):
    """Times in ms, shares in %; NaN where nothing is known."""

    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    ttft: float  # the mean
    cached: float  # of the prompts' tokens
    busy: float  # of the engines' time, while they have a request


FIGURES = ReplayFigures.__struct_fields__


def measured_figures(replay: Replay) -> ReplayFigures:
    """Return what was measured."""
    measured = replay.measured
    return _told(replay, measured.at, measured.ttft, measured.latency, measured.cached,
                 measured.row, len(replay.names))  # fmt: skip


def simulated_figures(replay: Replay, outcome: Outcome, num_engines: int) -> ReplayFigures:
    """Return what was simulated, of the same requests."""
    return _told(replay, outcome.arrived, outcome.ttft, outcome.latency,
                 outcome.cached_tokens.astype(float), outcome.engine, num_engines)  # fmt: skip


def _told(
    replay: Replay, at: Floats, ttft: Floats, latency: Floats, cached: Floats,
    row: NDArray[np.integer], num_engines: int,
) -> ReplayFigures:  # fmt: skip
    measured = replay.measured
    timed = measured.judged & np.isfinite(measured.ttft)
    told = measured.judged & (np.isfinite(measured.cached) if measured.has_usage else True)
    p50, p90, p99 = np.percentile(ttft[timed], (50, 90, 99)) * 1e3
    began = measured.at[measured.judged]
    since, until = float(began[0]), float(began[-1])
    ends = at + np.where(np.isfinite(latency), latency, 0.0)
    covered = sum(
        Spans.of(at[here], ends[here]).covered(since, until)
        for each in range(num_engines)
        for here in [row == each]
    )
    return ReplayFigures(
        ttft_p50=float(p50),
        ttft_p90=float(p90),
        ttft_p99=float(p99),
        ttft=float(ttft[timed].mean()) * 1e3,
        cached=float(cached[told].sum() / measured.prompt[told].sum()) * 100,
        busy=covered / max(until - since, 1e-9) / num_engines * 100,
    )


def error(simulated: float, measured: float, name: str) -> float:
    """Return how far off a simulation is: in % of what was measured, or in points of a share."""
    if name in SHARES:
        return simulated - measured
    return (simulated / measured - 1) * 100


Pick = Callable[[ReplayFigures], float]
