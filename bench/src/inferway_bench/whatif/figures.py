"""Figures of a run, measured or simulated alike: of the same requests, by the same sums; which
differences between cases exceed the noise of the model; and the fewest engines that hold limits.
Pure.

The noise of a figure is its scatter over the seeds, and the difference between the measurements and
a replay of the recorded policy: a model that is 8 % off cannot resolve 5 %.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, isnan, log10, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.outcome import Outcome
from inferway_bench.processes import BenchError
from inferway_bench.whatif.replay import Floats, Replay, Spans

SHARES = ("cached", "busy")  # in %: their errors are points
_SIGMAS = 1.96
_LEAST, _LEAST_POINTS = 0.02, 0.5  # whatever the seeds say, nobody would act on less
NAMES = {"ttft_p50": "p50", "ttft_p90": "p90", "ttft_p99": "p99", "cached": "the cached share"}
_NICE = (1, 2, 3, 5, 8, 10)
_FAR = 1.6  # a bound further above says little
_MOST = 4_096  # engines
_TERM = re.compile(r"(p50|p90|p99|mean)\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)")
_COLUMNS = {"p50": "ttft_p50", "p90": "ttft_p90", "p99": "ttft_p99", "mean": "ttft"}


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


def mean(runs: Sequence[ReplayFigures], name: str) -> float:
    """Return the mean of a figure over seeds."""
    return fmean(getattr(run, name) for run in runs)


def noise(
    name: str,
    base: Sequence[ReplayFigures],
    other: Sequence[ReplayFigures],
    measured: ReplayFigures,
) -> float:
    """Return what a difference of a figure between two cases must exceed: a share of the first's,
    or points of a share."""
    off = error(mean(base, name), getattr(measured, name), name)
    off = 0.0 if isnan(off) else abs(off)
    spread = sqrt(sum(_variance(runs, name) / len(runs) for runs in (base, other))) * _SIGMAS
    if name in SHARES:
        return max(off + spread, _LEAST_POINTS)
    return max(off / 100 + spread / mean(base, name), _LEAST)


def _variance(runs: Sequence[ReplayFigures], name: str) -> float:
    values = [getattr(run, name) for run in runs]
    return stdev(values) ** 2 if len(values) > 1 else 0.0


def sentence(
    case: str,
    base: Sequence[ReplayFigures],
    other: Sequence[ReplayFigures],
    measured: ReplayFigures,
) -> str:
    """Say how a case differs from the recorded one, as far as the model can tell."""
    changes = [
        said
        for name in NAMES
        if (said := _change(name, base, other, noise(name, base, other, measured)))
    ]
    is_said = any(said.startswith(NAMES["ttft_p90"]) for said in changes)
    bound = "" if is_said else _bound(base, other, measured)
    if not changes:
        said = f"with {case} nothing differs by more than the noise of the model"
        return f"{said}; {bound}" if bound else said
    return f"with {case} " + "; ".join([*changes, bound] if bound else changes)


def _change(
    name: str, base: Sequence[ReplayFigures], other: Sequence[ReplayFigures], least: float
) -> str:
    before, after = mean(base, name), mean(other, name)
    if isnan(before) or isnan(after):
        return ""
    if name in SHARES:
        shown = f"{after:.1f}% instead of {before:.1f}%"
        return f"{NAMES[name]} is {shown}" if abs(after - before) > least else ""
    if abs(after / before - 1) <= least:
        return ""
    return f"{NAMES[name]} is {duration(after)} instead of {duration(before)}"


def _bound(
    base: Sequence[ReplayFigures], other: Sequence[ReplayFigures], measured: ReplayFigures
) -> str:
    """Where p90 stays, whatever the model is off by; nothing where that would say little."""
    off = noise("ttft_p90", base, other, measured)
    before, after = mean(base, "ttft_p90"), mean(other, "ttft_p90")
    most = max(before, after) * (1 + off)
    bound = _nice(most)
    return f"p90 stays below {duration(bound)}" if bound < _FAR * max(before, after) else ""


def _nice(value: float) -> float:
    """The next round number above."""
    scale = 10.0 ** floor(log10(value))
    return next(number * scale for number in _NICE if number * scale >= value)


def duration(ms: float) -> str:
    """Return milliseconds as one reads them."""
    return (
        f"{ms / 1e3:.3g} s"
        if ms >= 1e3
        else f"{ceil(ms) if ms >= 100 else float(f'{ms:.3g}'):g} ms"
    )


class Limit(NamedTuple):
    """A figure of the time to the first token, and the ms that it may have."""

    name: str  # as it was written
    column: str
    most: float

    def __str__(self) -> str:
        return f"{self.name} ≤ {duration(self.most)}"


def parse_slo(text: str) -> list[Limit]:
    """Return the limits of an SLO. Raises BenchError."""
    found = []
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            raise BenchError(
                f"--size {text!r}: expected limits of p50, p90, p99 or mean in ms or s, with "
                "commas between them, as p90<1s,p99<3s"
            )
        name, number, unit = match.groups()
        found.append(Limit(name, _COLUMNS[name], float(number) * (1e3 if unit == "s" else 1)))
    return found


Runs = Mapping[int, Sequence[ReplayFigures]]  # engines -> a run of each seed
Ask = Callable[[Sequence[int]], Runs]


class Sized(NamedTuple):
    """The fewest engines that hold the limits, of all that were tried; None: so many do not."""

    fewest: int | None
    runs: Runs

    @property
    def numbers(self) -> list[int]:
        """The numbers of engines that were tried, in order."""
        return sorted(self.runs)


def holds(
    runs: Sequence[ReplayFigures], limits: Sequence[Limit], margin: Mapping[str, float] = {}
) -> bool:
    """Return whether all limits are held, on average over seeds, by figures that are so many times
    as large as they were simulated."""
    return all(
        mean(runs, limit.column) * margin.get(limit.column, 1.0) <= limit.most for limit in limits
    )


def sized(limits: Sequence[Limit], first: int, ask: Ask) -> Sized:
    """Look for the fewest engines, from `first` up or down. `ask` simulates numbers of engines."""
    runs: dict[int, Sequence[ReplayFigures]] = {}

    def is_enough(number: int) -> bool:
        if number not in runs:
            runs.update(ask([number]))
        return holds(runs[number], limits)

    low, high = 0, first  # `low` engines are too few
    if is_enough(first):
        while high > 1 and is_enough(max(1, high // 2)):
            high = max(1, high // 2)
        low = high // 2
    else:
        while not is_enough(high):
            low, high = high, high * 2
            if high > _MOST or _is_flat(runs, low, limits):
                return Sized(None, runs)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    beside = [n for n in (high - 1, high + 1, high + 2) if n > 0 and n not in runs]
    runs.update(ask(beside) if beside else {})
    return Sized(high, runs)


def _is_flat(runs: Runs, number: int, limits: Sequence[Limit]) -> bool:
    """Whether twice as many engines have changed next to nothing: then no number is enough."""
    half = runs.get(number // 2)
    if half is None:
        return False
    return all(mean(runs[number], one.column) > 0.98 * mean(half, one.column) for one in limits)
