"""Figures of two endpoints, block by block -> how they differ, and whether that is chance. Pure.

A pair is two blocks with the same plan, one sent through each endpoint, one after the other in an
order that was drawn. If the endpoints do not differ, it is chance which block of a pair is whose:
each difference could have had the other sign. So the signs of whole pairs are flipped, in all ways,
and the largest t of all figures in one flip is what chance makes of them together (Westfall and
Young's max-T). This holds for any distribution of the figures and however they depend on each
other. Of twelve pairs, a bootstrap at 5 % for all figures together called one in six comparisons of
equal endpoints a difference (simulated; heavy tails).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import exp
from statistics import fmean

import numpy as np

from inferway_bench.spread import Floats, Interval

LEVEL = 0.005  # chance that any figure of equal endpoints is called different
LEAST_PAIRS = 10  # fewer have too few flips for the level
_MOST_ENUMERATED = 12  # pairs; of more, flips are drawn
_DRAWS = 4_000
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a block. Shares are in percent and differ by percentage points, others by a
    ratio in percent. A difference below `least` of these is not worth a name."""

    name: str
    words: str
    is_share: bool = False
    more_is_better: bool = False
    least: float = 3.0

    @property
    def lowest(self) -> float:
        """The lowest value that can be compared: a ratio to zero says nothing."""
        return 0.0 if self.is_share else _TINY

    def differences(self, a: Sequence[float], b: Sequence[float]) -> Floats:
        """Return how B's differ from A's, pair by pair, such that equal ones are 0."""
        found: Floats = np.subtract(b, a) if self.is_share else np.log(b) - np.log(a)
        return found

    def shown(self, difference: float) -> float:
        """Return a difference in percent, or in percentage points."""
        return difference if self.is_share else (exp(difference) - 1) * 100


FIGURES = (
    Figure("TTFT, ms", "time to the first token"),
    Figure("TTFT p90, ms", "90th percentile of the time to the first token"),
    Figure("ITL, ms", "time between tokens"),
    Figure("tokens/s", "throughput", more_is_better=True),
    Figure("cached, %", "share of cached prompt tokens", True, True, 2.0),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of both endpoints: the means of their blocks, and the `difference` of B from A, in
    percent or points, with an interval that holds for all figures at once."""

    figure: Figure
    a: float
    b: float
    difference: Interval
    is_difference: bool  # beyond chance, and worth a name

    @property
    def is_better(self) -> bool:
        """True if B's is the better one."""
        return (self.difference.value > 0) == self.figure.more_is_better

    @property
    def words(self) -> str:
        """The difference in words, with its bounds."""
        unit = " points" if self.figure.is_share else " %"
        sizes = [abs(each) for each in (self.difference.low, self.difference.high)]
        side = "higher" if self.difference.value > 0 else "lower"
        return (
            f"{self.figure.words} {abs(self.difference.value):.0f}{unit} {side} "
            f"({min(sizes):.0f} to {max(sizes):.0f})"
        )


Blocks = Sequence[Mapping[str, float]]  # the figures of each block by their names


def changes(a: Blocks, b: Blocks) -> list[Change]:
    """Return the change of each figure that all blocks have; block i of A and B is pair i. Raises
    ValueError for fewer than LEAST_PAIRS."""
    if len(a) != len(b) or len(a) < LEAST_PAIRS:
        raise ValueError(f"{len(a)} and {len(b)} blocks; expected {LEAST_PAIRS} pairs at least")
    known = [
        figure
        for figure in FIGURES
        if all(block.get(figure.name, -1.0) >= figure.lowest for block in (*a, *b))
    ]
    values = [[[block[f.name] for block in blocks] for blocks in (a, b)] for f in known]
    rows = np.array([f.differences(*both) for f, both in zip(known, values, strict=True)])
    return [
        _change(figure, both, row, errors)
        for figure, both, row, errors in zip(known, values, rows, _errors(rows), strict=True)
    ]


def _change(figure: Figure, both: list[list[float]], row: Floats, error: float) -> Change:
    mean = float(row.mean())
    low, middle, high = (figure.shown(mean + side * error) for side in (-1, 0, 1))
    is_beyond = abs(mean) > error and abs(middle) >= figure.least
    a, b = map(fmean, both)
    return Change(figure, a, b, Interval(middle, low, high), is_beyond)


def _errors(rows: Floats) -> list[float]:
    """How far each figure's mean may be from 0 by chance, all figures together."""
    num = rows.shape[1]
    flips = _flips(num)
    means = flips @ rows.T / num
    variances = ((rows**2).sum(axis=1) - num * means**2) / (num - 1)
    deviations = np.sqrt(np.maximum(variances, _TINY**2) / num)
    largest = np.sort(np.abs(means / deviations).max(axis=1))[::-1]
    errors: list[float] = (largest[int(LEVEL * len(flips))] * deviations[0]).tolist()
    return errors


@cache
def _flips(num: int) -> Floats:
    """Signs of the pairs, a row a flip, of which the first changes none."""
    if num <= _MOST_ENUMERATED:
        return np.array(list(product((1.0, -1.0), repeat=num)))
    drawn = np.random.default_rng(0).choice((-1.0, 1.0), size=(_DRAWS, num))
    drawn[0] = 1.0
    return drawn


def verdict(found: Sequence[Change], a: str, b: str) -> str:
    """Return in a sentence how B compares with A."""
    different = [change for change in found if change.is_difference]
    if not different:
        first = found[0]
        low, high = first.difference.low, first.difference.high
        return (
            f"No difference between {a} and {b} was found: beside {a}, the {first.figure.words} of "
            f"{b} is between {low:+.1f} % and {high:+.1f} %."
        )
    better = [change.words for change in different if change.is_better]
    worse = [change.words for change in different if not change.is_better]
    said = f"{b} is better than {a}" if not worse else f"{b} is worse than {a}"
    if better and worse:
        said = f"{b} is better than {a} in some figures and worse in others"
    return f"{said}: {', '.join([*better, *worse])}."
