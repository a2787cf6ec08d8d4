"""What `inferway bench prompts` keeps: every single measurement, so that all else follows."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec

from inferway.bench.machine import Machine
from inferway.bench.spread import Interval, ratio_of_medians


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


class PromptsRun(msgspec.Struct, frozen=True):
    """A whole run."""

    machine: Machine
    command: str
    versions: dict[str, str]  # of what was compared
    seed: int
    text: str  # where the chats are from
    left_out: list[str]
    rows: list[Row]


def write_run(run: PromptsRun) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def load_run(path: Path) -> PromptsRun:
    return msgspec.json.decode(path.read_bytes(), type=PromptsRun)
