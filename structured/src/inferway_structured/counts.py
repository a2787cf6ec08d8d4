"""Counters of structured output: plain numbers, for whichever page shows them.

`snapshot` is JSON; snapshots of several processes add up (`merged`). Labels are a few words of
ours; what a client chose is never one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

# Seconds. llguidance compiles in 1 ms, the slowest index may take 15 s; a mask takes 6 µs.
COMPILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 5.0, 15.0)
STEP_BUCKETS = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.1)

# A counter with more different labels than this counts the rest as "other".
_MAX_SERIES = 200

Snapshot = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    type: str  # counter, gauge, histogram
    help: str
    labels: tuple[str, ...] = ()


class Numbers:
    """A counter or gauge. Any thread may write it."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._values: dict[tuple[str, ...], float] = {}
        self._lock = Lock()

    def add(self, *labels: str, by: float = 1) -> None:
        with self._lock:
            labels = self._bounded(labels)
            self._values[labels] = self._values.get(labels, 0) + by

    def set(self, value: float, *labels: str) -> None:
        with self._lock:
            self._values[self._bounded(labels)] = value

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0)

    def snapshot(self) -> dict[str, float]:
        """Return the numbers by their label values, with a slash between those."""
        with self._lock:
            return {"/".join(labels): value for labels, value in self._values.items()}

    def _bounded(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        if labels in self._values or len(self._values) < _MAX_SERIES:
            return labels
        return ("other",) * len(labels)


class Seconds:
    """A histogram of seconds. Any thread may write it."""

    def __init__(self, family: Family, bounds: tuple[float, ...]) -> None:
        self.family = family
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = Lock()

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, seconds)] += 1
            self._sum += seconds

    def count(self) -> int:
        with self._lock:
            return sum(self._counts)

    def snapshot(self) -> dict[str, float]:
        """Return how many were not above each upper bound and above the one before, by the bound;
        and the sum."""
        with self._lock:
            names = [*(str(bound) for bound in self._bounds), "+Inf"]
            return {**dict(zip(names, self._counts, strict=True)), "sum": self._sum}


class Counts:
    """The counters of one process. `Compilations` counts `requests` to `waiting_builds` and
    `compile_wall_seconds`, the verdict service `refusals` and `answers`, the engine's plugin the
    others."""

    def __init__(self) -> None:
        self.all: dict[str, Numbers | Seconds] = {}  # by the names of their families
        counter, gauge = partial(self._numbers, "counter"), partial(self._numbers, "gauge")
        self.requests = counter(
            "requests",
            "Requests for a compiled shape, by its kind, the backend and the outcome.",
            *("kind", "backend", "outcome"),
        )
        self.cache_hits = counter(
            "cache_hits",
            "Shapes that were not compiled anew, by the cache: memory or refused.",
            "level",
        )
        self.joins = counter(
            "joins", "Requests that waited for the compilation of another request."
        )
        self.builds_dropped = counter(
            "builds_dropped", "Compilations that were dropped because their clients had left."
        )
        self.refusals = counter(
            "refusals", "Shapes that were refused, by the keyword at fault.", "keyword"
        )
        self.unenforced = counter(
            "unenforced", "Keywords in compiled shapes that no backend enforces.", "keyword"
        )
        self.timeouts = counter(
            "timeouts",
            "Compilations that took too long, by place: queue, thread or child.",
            "where",
        )
        self.helper_kills = counter(
            "helper_kills", "Compilations whose child process was killed, by the limit.", "limit"
        )
        self.quarantined = gauge(
            "quarantined", "Shapes that are not compiled for a while: they killed a child process."
        )
        self.held_bytes = gauge(
            "held_bytes", "Estimated bytes of the compiled shapes, by the cache: memory.", "level"
        )
        self.held_specs = gauge("held_specs", "Compiled shapes in memory.")
        self.waiting_builds = gauge("waiting_builds", "Compilations that have not begun.")
        self.forced_tokens = counter(
            "forced_tokens", "Tokens that the grammar determined, proposed as drafts."
        )
        self.failed_grammars = counter(
            "failed_grammars",
            "Answers that ended early because their grammar failed, by the reason.",
            "reason",
        )
        self.answers = counter(
            "answers",
            "Finished answers, by whether they have their shape: true, false or unknown.",
            "valid",
        )
        self._add_times()

    def _add_times(self) -> None:
        self.compile_wall_seconds = self._seconds(
            "compile_wall_seconds",
            "Seconds of a compilation from its begin to its end.",
            COMPILE_BUCKETS,
        )
        self.compile_waited_seconds = self._seconds(
            "compile_waited_seconds",
            "Seconds that a request waited for its grammar.",
            COMPILE_BUCKETS,
        )
        self.compile_hidden_seconds = self._seconds(
            "compile_hidden_seconds",
            "Seconds of a request's wait for its grammar in which its prompt was computed.",
            COMPILE_BUCKETS,
        )
        self.mask_fill_seconds = self._seconds(
            "mask_fill_seconds", "Seconds to fill all masks of a step.", STEP_BUCKETS
        )

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Return family -> label values -> number; what has not been counted yet is an empty
        family."""
        return {name: each.snapshot() for name, each in self.all.items()}

    def _numbers(self, kind: str, name: str, words: str, *labels: str) -> Numbers:
        made = self.all[name] = Numbers(Family(name, kind, words, labels))
        return made

    def _seconds(self, name: str, words: str, bounds: tuple[float, ...]) -> Seconds:
        made = self.all[name] = Seconds(Family(name, "histogram", words), bounds)
        return made


# In the order of the page.
FAMILIES = {name: each.family for name, each in Counts().all.items()}


def merged(snapshots: Iterable[Snapshot]) -> dict[str, dict[str, float]]:
    """Return the sum of several processes' snapshots. What is not a family of ours is left out."""
    total: dict[str, dict[str, float]] = {name: {} for name in FAMILIES}
    for snapshot in snapshots:
        for name, values in snapshot.items():
            family = total.get(name, {})
            for label, value in values.items():
                family[label] = family.get(label, 0) + value
    return total
