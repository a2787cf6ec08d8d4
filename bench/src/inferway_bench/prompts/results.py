"""What `inferway bench prompts` keeps: every single measurement, so that all else follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import commonprefix
from statistics import median

import msgspec

from inferway_bench.results import Figure, Goal, Run
from inferway_bench.spread import Interval, ratio_of_medians


class Series(msgspec.Struct, frozen=True):
    """One value per repeat, in order. `cpu` is in microseconds and empty where it says nothing."""

    wall: list[float]
    cpu: list[float] = []

    @property
    def compared(self) -> list[float]:
        """What a ratio is made of: CPU time where there is one. On a busy machine wall time
        would flatter whoever is shorter, because the longer one is interrupted more often."""
        return self.cpu or self.wall


class Target(msgspec.Struct, frozen=True):
    """What is asked. Judged by medians: ratios by CPU time, limits by wall time."""

    times: float | None = None  # the other's is at least so many times ours
    share: float | None = None  # ours is at most this share of the other's
    most: float | None = None  # ours is at most this, in the row's unit

    def is_met(self, ours: Series, theirs: Series | None) -> bool:
        if self.most is not None and median(ours.wall) > self.most:
            return False
        if theirs is None:
            return True
        own, other = median(ours.compared), median(theirs.compared)
        if self.times is not None and other < self.times * own:
            return False
        return self.share is None or own <= self.share * other

    def words(self, unit: str) -> str:
        parts = []
        if self.times is not None:
            parts.append(f"≥ {self.times:g} × faster")
        if self.share is not None:
            parts.append(f"≤ {self.share:g} × theirs (ratio ≥ {1 / self.share:.2f})")
        if self.most is not None:
            parts.append(f"≤ {self.most:g} {unit}")
        return ", ".join(parts)


class Row(msgspec.Struct, frozen=True):
    """One thing measured on both sides, or on ours alone."""

    table: str
    name: str
    unit: str
    ours: Series
    theirs: Series | None = None
    target: Target | None = None
    seed: str = ""  # what seed 003 says of it
    note: str = ""

    @property
    def ratio(self) -> Interval | None:
        """theirs / ours."""
        if self.theirs is None:
            return None
        return ratio_of_medians(self.theirs.compared, self.ours.compared)

    @property
    def is_met(self) -> bool | None:
        return None if self.target is None else self.target.is_met(self.ours, self.theirs)


class PromptsRun(Run, frozen=True):
    """A whole run."""

    versions: dict[str, str]  # of what was compared
    seed: int
    text: str  # where the chats are from
    left_out: list[str]
    rows: list[Row]

    @property
    def seeds(self) -> list[int]:
        return [self.seed]

    def goals(self) -> list[Goal]:
        """Of rows that are asked the same, one."""
        by_bar: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            if row.target is not None:
                kind = row.name.split(",")[0] if row.target.share is None else ""
                by_bar.setdefault((row.table, row.target.words(row.unit) + kind), []).append(row)
        return [_goal(rows) for rows in by_bar.values()]

    def figures(self) -> list[Figure]:
        found = []
        for row in self.rows:
            found.append(Figure(f"{row.table}: {row.name}", row.unit, row.ours.wall))
            if row.theirs is not None:
                name = f"{row.table}: {row.name}, transformers"
                found.append(Figure(name, row.unit, row.theirs.wall, is_ours=False))
        return found


def _goal(rows: Sequence[Row]) -> Goal:
    first = rows[0]
    assert first.target is not None
    common = commonprefix([row.name for row in rows]).rstrip(", ")  # noqa: RUF071
    what = common or first.table
    return Goal(
        what if len(rows) == 1 else f"{what}, worst of {len(rows)}",
        first.target.words(first.unit),
        ", ".join(_found(rows, first.target, first.unit)),
        all(row.is_met for row in rows),
    )


def _found(rows: Sequence[Row], target: Target, unit: str) -> Iterator[str]:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios and (target.times is not None or target.share is not None):
        worst = min(ratios, key=lambda ratio: ratio.value)
        yield f"{worst.shown('{:.1f}')} ×"
    if target.most is not None:
        yield f"{max(median(row.ours.wall) for row in rows):,.4g} {unit}"
