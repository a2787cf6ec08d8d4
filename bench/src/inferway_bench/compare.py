"""Two runs of one benchmark: what became slower or larger, and whether it is more than noise. Pure.

A figure is compared by the ratio of its medians; where both runs have three repeats or more, with
a 95 % interval (`spread.ratio_of_medians`); where both say how a single value varies within its
run, with both intervals put together (in logarithms, as independent errors add up). Repeats show
how a figure varies within a run, and not how a machine varies from one hour to the next. So what is
not ours, peers and engines measured in the same runs, tells how much the machine itself has
changed, and ours is judged beside that; of a benchmark without peers, times are judged beside the
machine's yardstick, if they are that machine's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import exp, hypot, log
from statistics import median
from typing import NamedTuple

import msgspec
from rich.table import Table as TerminalTable

from inferway_bench.machine import times_as_slow
from inferway_bench.rows import Better, Run, Table
from inferway_bench.spread import Interval, ratio_of_medians

_LEAST_REPEATS = 3
_TIMES = ("s", "ms", "µs")
_OF_OUTPUT = re.compile(r" --(json|(save|plot|compare|tolerance)[ =]\S+)")


class Figure(msgspec.Struct, frozen=True):
    """One measured value, as runs are compared by it. Names are the same in every run."""

    name: str
    unit: str
    values: list[float]  # of the repeats
    better: Better = "lower"
    is_ours: bool = True  # else it is a peer's: if it changes, the machine did
    within: Interval | None = None  # of a value without repeats: how it varies within its run


class Change(NamedTuple):
    """One figure that both runs have. `worse` is how many times worse the new run's is, with the
    machine's own change taken out of ours; without repeats its interval is one point."""

    figure: Figure
    old: float
    new: float
    ratio: Interval  # new / old, as measured
    worse: Interval
    has_noise: bool  # whether repeats say how much it varies

    @property
    def is_beyond_noise(self) -> bool:
        return self.worse.low > 1 or self.worse.high < 1

    def is_regression(self, tolerance: float) -> bool:
        """Return whether a figure of ours is worse by more than `tolerance`, and by more than the
        noise of the repeats."""
        return self.figure.is_ours and self.worse.value > 1 + tolerance and self.worse.low > 1


class Comparison(NamedTuple):
    """`drift`: unit -> how many times as much what is not ours takes now, or the yardstick."""

    changes: list[Change]
    drift: dict[str, float]
    warnings: list[str]

    def regressions(self, tolerance: float) -> list[Change]:
        return [change for change in self.changes if change.is_regression(tolerance)]


def figures(run: Run, tables: Iterable[Table]) -> list[Figure]:
    """Return every value of a run whose column says what is better, in the order of the tables."""
    found: dict[str, Figure] = {}
    for table, column in ((t, c) for t in tables for c in t.columns):
        for row in table.rows(run) if column.better is not None else []:
            value = row.values.get(column.name)
            if value is None or isinstance(value, str):
                continue
            name = ", ".join(map(str, [table.name, *row.keys.values(), column.name]))
            within = value if isinstance(value, Interval) else None
            assert column.better is not None
            found[name] = Figure(
                name, column.unit, row.repeats(column.name), column.better, row.is_ours, within
            )
    return list(found.values())


def compare(old: Run, new: Run, tables: Sequence[Table]) -> Comparison:
    """Return the change of every figure that both runs have, in the new run's order; a ratio needs
    something above zero."""
    before = {figure.name: figure for figure in figures(old, tables)}
    pairs = [(before[f.name], f) for f in figures(new, tables) if f.name in before]
    pairs = [pair for pair in pairs if all(f.values and median(f.values) > 0 for f in pair)]
    ratios = [_ratio(a, b) for a, b in pairs]
    drift: dict[str, float] = {}
    if new.is_of_machine:
        by_unit: dict[str, list[float]] = {}
        for (_, figure), (ratio, _) in zip(pairs, ratios, strict=True):
            if not figure.is_ours:
                by_unit.setdefault(figure.unit, []).append(ratio.value)
        times = times_as_slow(new.machine, old.machine)
        drift = {} if times is None else dict.fromkeys(_TIMES, times)
        drift |= {unit: median(values) for unit, values in by_unit.items()}
    changes = [
        Change(
            figure=b,
            old=median(a.values),
            new=median(b.values),
            ratio=ratio,
            worse=_worse(b, ratio, drift.get(b.unit, 1.0) if b.is_ours else 1.0),
            has_noise=has_noise,
        )
        for (a, b), (ratio, has_noise) in zip(pairs, ratios, strict=True)
    ]
    return Comparison(changes, drift, list(_warnings(old, new, drift)))


def _ratio(old: Figure, new: Figure) -> tuple[Interval, bool]:
    """new / old, and whether something says how much it varies. Nothing is drawn of repeats that
    may have zero as their median: a ratio to it would say nothing."""
    if all(len(f.values) >= _LEAST_REPEATS and min(f.values) > 0 for f in (old, new)):
        return ratio_of_medians(new.values, old.values), True
    ratio = median(new.values) / median(old.values)
    a, b = old.within, new.within
    if a is None or b is None or min(a.low, b.low) <= 0:
        return Interval(ratio, ratio, ratio), False
    less = hypot(log(b.value / b.low), log(a.high / a.value))
    more = hypot(log(b.high / b.value), log(a.value / a.low))
    return Interval(ratio, ratio * exp(-less), ratio * exp(more)), True


def _worse(figure: Figure, ratio: Interval, drift: float) -> Interval:
    low, value, high = (one / drift for one in (ratio.low, ratio.value, ratio.high))
    if figure.better == "lower":
        return Interval(value, low, high)
    return Interval(1 / value, 1 / high, 1 / low)


def _warnings(old: Run, new: Run, drift: dict[str, float]) -> Iterator[str]:
    """Why the two may not be comparable."""
    a, b = old.machine, new.machine
    for field in ("cpu", "cores", "memory_gib", "system", "python"):
        before, now = getattr(a, field), getattr(b, field)
        if before != now:
            yield f"{field}: {before} then, {now} now"
    for name in sorted({*a.packages, *b.packages}):
        before, now = a.packages.get(name, "none"), b.packages.get(name, "none")
        if before != now:
            yield f"{name}: {before} then, {now} now"
    for when, run in (("then", old), ("now", new)):
        machine = run.machine
        if machine.is_busy and not run.is_virtual:
            yield f"the machine was busy {when}: load average {machine.load_before}"
    before, now = (_OF_OUTPUT.sub("", run.command) for run in (old, new))
    if before != now:
        yield f"another command: `{before}` then, `{now}` now"
    for times in sorted(set(drift.values())):
        if not 0.95 <= times <= 1.05:
            units = ", ".join(unit for unit, found in drift.items() if found == times)
            yield f"what is not ours takes {times:.2f} × ({units}): ours is judged beside that"


def comparison_table(found: Comparison, tolerance: float) -> TerminalTable:
    """Return the changes as a table for a terminal."""
    table = TerminalTable(title="Beside the old run, medians", title_justify="left")
    for i, head in enumerate(("", "old", "new", "new / old (95 %)", "")):
        table.add_column(head, justify="left" if i in (0, 4) else "right")
    for change in found.changes:
        figure, ratio, verdict = change.figure, f"{change.ratio.value:.2f}", "noise not known"
        if change.has_noise:
            ratio = change.ratio.shown()
            verdict = "changed" if change.is_beyond_noise else "within the noise"
        if not figure.is_ours:
            verdict = "not ours"
        elif change.is_regression(tolerance):
            verdict = "worse"
        numbers = (f"{value:,.4g} {figure.unit}" for value in (change.old, change.new))
        table.add_row(figure.name, *numbers, ratio, verdict)
    return table
