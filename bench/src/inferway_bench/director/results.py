"""What `inferway bench director` keeps: every decision, so that all else follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from inferway_bench.director.many_endpoints import MOST_US, ManyEndpoints
from inferway_bench.director.world import Point
from inferway_bench.results import Figure, Goal, Run
from inferway_bench.spread import Interval, median_interval

STEPS = ("parse", "render", "encode", "match", "schedule", "rest", "whole")
MOST_NS_A_TOKEN = 25.0  # of history, the whole
MOST_TIMES = 1.1  # as long, beside ten times as much that was seen before
JUDGED = ("encode", "match")
_BORDERS = (0, 1, 1_000, 2_000, 4_000, 8_000, 16_000, 1_000_000)
_DRAWS = 2000


class DirectorRun(Run, frozen=True):
    """A whole run."""

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

    @property
    def seeds(self) -> list[int]:
        return [self.seed]

    def by_length(self) -> Iterator[tuple[str, list[Point]]]:
        """Decisions of the growing chats by tokens of history."""
        for low, high in pairwise(_BORDERS):
            some = [p for p in self.grown if low <= p.history < high]
            if some:
                yield _range(low, high), some

    def growth(self, step: str) -> Interval:
        return slope([p for p in self.grown if p.history], step)

    def goals(self) -> list[Goal]:
        whole = self.growth("whole")
        found = [_goal("a decision, ns for each token of history", whole, MOST_NS_A_TOKEN)]
        for step in JUDGED:
            what = f"{step}, time after {self.others:,} chats / after {self.few_others:,}"
            found.append(_goal(what, times_longer(self, step), MOST_TIMES))
        many = self.many_endpoints
        if many is not None:
            dearest = max(many.triples, key=lambda cost: cost.choose)
            what = (
                f"a choice among {many.endpoints:,} endpoints by three scorers, the slowest of "
                f"{len(many.triples)} sets"
            )
            shown, is_met = f"{dearest.shown} µs", dearest.choose <= MOST_US
            found.append(Goal(what, f"≤ {MOST_US:g} µs", shown, is_met))
        return found

    def figures(self) -> list[Figure]:
        found = [
            Figure(f"{step}, {length} tokens of history", "µs", [getattr(p, step) for p in points])
            for length, points in self.by_length()
            for step in STEPS
        ]
        if self.many_endpoints is not None:
            for cost in (*self.many_endpoints.triples, *self.many_endpoints.scorers):
                found.append(Figure(f"choice by {cost.name}", "µs", [cost.choose]))
        return found


def slope(points: Sequence[Point], step: str) -> Interval:
    """Nanoseconds for each token of history, by least squares with the new tokens beside it; the
    interval is a bootstrap over the points."""
    rows = np.array([[1.0, p.history, p.new] for p in points])
    scale = np.abs(rows).max(axis=0)  # for the sums' sake: columns of one size
    rows /= scale
    times = 1e3 * np.array([getattr(p, step) for p in points])
    num = len(points)
    drawn = np.random.default_rng(0).integers(num, size=(_DRAWS, num))
    weights = np.array([np.ones(num), *(np.bincount(some, minlength=num) for some in drawn)])
    squares = weights @ (rows[:, :, None] * rows[:, None, :]).reshape(num, -1)
    products = weights @ (rows * times[:, None])
    inverse = np.linalg.pinv(squares.reshape(-1, 3, 3), rcond=1e-10, hermitian=True)
    fits = inverse @ products[:, :, None]
    value, *slopes = fits[:, 1, 0] / scale[1]
    low, high = np.percentile(slopes, (2.5, 97.5))
    return Interval(float(value), float(low), float(high))


def times_longer(run: DirectorRun, step: str) -> Interval:
    """Beside many chats / beside a tenth: the median over the probes, each with itself."""
    return median_interval(
        [getattr(b, step) / getattr(a, step) for a, b in zip(run.few, run.many, strict=True)]
    )


def _range(low: int, high: int) -> str:
    if high == 1:
        return "none"
    return f"{low:,} and more" if high == _BORDERS[-1] else f"{low:,} to {high - 1:,}"


def _goal(what: str, found: Interval, most: float) -> Goal:
    return Goal(what, f"≤ {most:g}", found.shown(), found.value <= most)
