"""What `inferway bench director` keeps: every decision, so that all else follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from inferway.bench.director.many_endpoints import ManyEndpoints
from inferway.bench.director.world import Point
from inferway.bench.machine import Machine
from inferway.bench.spread import Floats, Interval, median_interval

STEPS = ("parse", "render", "encode", "match", "schedule", "rest", "whole")
MOST_NS_A_TOKEN = 25.0  # of history, the whole
MOST_TIMES = 1.1  # as long, beside ten times as much that was seen before
_DRAWS = 2000


class DirectorRun(msgspec.Struct, frozen=True):
    """A whole run."""

    machine: Machine
    command: str
    seed: int
    text: str  # where the chats are from
    engines: int
    block_size: int
    few_others: int
    others: int
    grown: list[Point]  # chats turn by turn
    few: list[Point]  # one turn of each probe, `few_others` chats seen before
    many: list[Point]  # the same turns, `others` chats seen before
    many_endpoints: ManyEndpoints | None = None  # what it costs to choose among them


def slope(points: Sequence[Point], step: str) -> Interval:
    """Nanoseconds for each token of history, by least squares with the new tokens beside it; the
    interval is a bootstrap over the points."""
    rows = np.array([[1.0, p.history, p.new] for p in points])
    times = 1e3 * np.array([getattr(p, step) for p in points])
    drawn = np.random.default_rng(0).integers(len(rows), size=(_DRAWS, len(rows)))
    slopes = [_fit(rows[some], times[some])[1] for some in drawn]
    low, high = np.percentile(slopes, (2.5, 97.5))
    return Interval(float(_fit(rows, times)[1]), float(low), float(high))


def _fit(rows: Floats, times: Floats) -> Floats:
    return np.linalg.lstsq(rows, times, rcond=None)[0].astype(np.float64)


def times_longer(run: DirectorRun, step: str) -> Interval:
    """Beside many chats / beside a tenth: the median over the probes, each with itself."""
    return median_interval(
        [getattr(b, step) / getattr(a, step) for a, b in zip(run.few, run.many, strict=True)]
    )


def write_run(run: DirectorRun) -> bytes:
    """One line a decision: they are many."""
    text = msgspec.json.format(msgspec.json.encode(run), indent=0)
    return text.replace(b'},{"chat"', b'},\n{"chat"') + b"\n"


def load_run(path: Path) -> DirectorRun:
    return msgspec.json.decode(path.read_bytes(), type=DirectorRun)
