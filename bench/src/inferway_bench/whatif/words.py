"""Which differences between cases exceed the noise of the model, in words. Pure.

The noise of a figure is what the seeds scatter, and how far the replay of the recorded policy is
off from what was measured: a model that is 8 % off cannot tell 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, isnan, log10, sqrt
from statistics import fmean, stdev

from inferway_bench.whatif.figures import SHARES, ReplayFigures, error

_SIGMAS = 1.96
_LEAST, _LEAST_POINTS = 0.02, 0.5  # whatever the seeds say, nobody would act on less
NAMES = {"ttft_p50": "p50", "ttft_p90": "p90", "ttft_p99": "p99", "cached": "the cached share"}
_NICE = (1, 2, 3, 5, 8, 10)
_FAR = 1.6  # a bound further above says little


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
