"""The fewest engines that hold what is asked of them: `p90<1s`. Pure.

More engines are taken to be never worse, so the number is found by doubling and halving.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from inferway_bench.processes import BenchError
from inferway_bench.whatif.figures import ReplayFigures
from inferway_bench.whatif.words import duration, mean

_MOST = 4_096  # engines
_TERM = re.compile(r"(p50|p90|p99|mean)\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)")
_COLUMNS = {"p50": "ttft_p50", "p90": "ttft_p90", "p99": "ttft_p99", "mean": "ttft"}


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
    runs: Sequence[ReplayFigures], limits: Sequence[Limit], margin: Mapping[str, float]
) -> bool:
    """Return whether all limits are held, on average over seeds, by figures that are so many times
    as large as they were simulated."""
    return all(
        mean(runs, limit.column) * margin.get(limit.column, 1.0) <= limit.most for limit in limits
    )


def sized(limits: Sequence[Limit], first: int, ask: Ask, margin: Mapping[str, float]) -> Sized:
    """Look for the fewest engines from `first` on, up or down. `ask` simulates numbers of engines;
    `margin` is how far off the model may be."""
    runs: dict[int, Sequence[ReplayFigures]] = {}

    def is_enough(number: int) -> bool:
        if number not in runs:
            runs.update(ask([number]))
        return holds(runs[number], limits, margin)

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
