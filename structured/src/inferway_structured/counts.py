"""What structured output counts: plain numbers, for whichever page shows them.

`snapshot` is JSON; snapshots of several processes add up (`merged`); `text` is what Prometheus
reads. Where prometheus_client runs (vLLM's processes, the gateway), its collector reads
`samples`. Labels are a few words of ours; what a client chose is never one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

# Seconds. llguidance compiles in 1 ms, the slowest index may take 15 s; a mask takes 6 µs.
COMPILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 5.0, 15.0)
STEP_BUCKETS = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.1)

# A counter with more different labels than this counts the rest as "other".
_MAX_SERIES = 200

Snapshot = Mapping[str, Mapping[str, Any]]


class Sample(NamedTuple):
    """A line of a Prometheus page: what is added to the family's name, labels, value."""

    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    type: str  # counter, gauge, histogram
    help: str
    labels: tuple[str, ...] = ()


class Numbers:
    """A counter or gauge. Any thread."""

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

    def total(self) -> float:
        with self._lock:
            return sum(self._values.values())

    def snapshot(self) -> dict[str, float]:
        """Label values, with a slash between them -> value."""
        with self._lock:
            return {"/".join(labels): value for labels, value in self._values.items()}

    def _bounded(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        if labels in self._values or len(self._values) < _MAX_SERIES:
            return labels
        return ("other",) * len(labels)


class Seconds:
    """A histogram. Any thread."""

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
        """Upper bound -> how many were not above it and above the one before; and the sum."""
        with self._lock:
            names = [*(str(bound) for bound in self._bounds), "+Inf"]
            return {**dict(zip(names, self._counts, strict=True)), "sum": self._sum}


_FAMILIES = {
    family.name: family
    for family in (
        Family(
            "requests",
            "counter",
            "Requests for a compiled shape, by its kind, the backend and the outcome.",
            ("kind", "backend", "outcome"),
        ),
        Family(
            "cache_hits",
            "counter",
            "Shapes that were not compiled anew, by the cache: memory, disk or refused.",
            ("level",),
        ),
        Family("joins", "counter", "Requests that waited for the compilation of another request."),
        Family(
            "builds_dropped",
            "counter",
            "Compilations that were dropped because their clients had left.",
        ),
        Family(
            "refusals",
            "counter",
            "Shapes that were refused, by the keyword at fault.",
            ("keyword",),
        ),
        Family(
            "unenforced",
            "counter",
            "Keywords in compiled shapes that no backend enforces.",
            ("keyword",),
        ),
        Family(
            "timeouts",
            "counter",
            "Compilations that took too long, by place: queue, thread or child.",
            ("where",),
        ),
        Family(
            "helper_kills",
            "counter",
            "Compilations whose child process was killed, by the limit.",
            ("limit",),
        ),
        Family(
            "quarantined",
            "gauge",
            "Shapes that are not compiled for a while: they killed a child process.",
        ),
        Family(
            "held_bytes",
            "gauge",
            "Estimated bytes of the compiled shapes, by the cache: memory or disk.",
            ("level",),
        ),
        Family("held_specs", "gauge", "Compiled shapes in memory."),
        Family("waiting_builds", "gauge", "Compilations that have not begun."),
        Family(
            "forced_tokens",
            "counter",
            "Tokens that the grammar determined, proposed as drafts.",
        ),
        Family(
            "failed_grammars",
            "counter",
            "Answers that ended early because their grammar failed, by the reason.",
            ("reason",),
        ),
        Family(
            "answers",
            "counter",
            "Finished answers, by whether they have their shape: true, false or unknown.",
            ("valid",),
        ),
        Family(
            "compile_wall_seconds",
            "histogram",
            "Seconds of a compilation from its begin to its end.",
        ),
        Family(
            "compile_waited_seconds",
            "histogram",
            "Seconds that a request waited for its grammar.",
        ),
        Family(
            "compile_hidden_seconds",
            "histogram",
            "Seconds of a request's wait for its grammar in which its prompt was computed.",
        ),
        Family("mask_fill_seconds", "histogram", "Seconds to fill all masks of a step."),
    )
}


class Counts:
    """One process's. Who counts what: `requests` to `waiting_builds` and `compile_wall_seconds`
    the CompilationManager, the others the engine's plugin."""

    def __init__(self) -> None:
        self.requests = _numbers("requests")
        self.cache_hits = _numbers("cache_hits")
        self.joins = _numbers("joins")
        self.builds_dropped = _numbers("builds_dropped")
        self.refusals = _numbers("refusals")
        self.unenforced = _numbers("unenforced")
        self.timeouts = _numbers("timeouts")
        self.helper_kills = _numbers("helper_kills")
        self.quarantined = _numbers("quarantined")
        self.held_bytes = _numbers("held_bytes")
        self.held_specs = _numbers("held_specs")
        self.waiting_builds = _numbers("waiting_builds")
        self.forced_tokens = _numbers("forced_tokens")
        self.failed_grammars = _numbers("failed_grammars")
        self.answers = _numbers("answers")
        self.compile_wall_seconds = _seconds("compile_wall_seconds", COMPILE_BUCKETS)
        self.compile_waited_seconds = _seconds("compile_waited_seconds", COMPILE_BUCKETS)
        self.compile_hidden_seconds = _seconds("compile_hidden_seconds", COMPILE_BUCKETS)
        self.mask_fill_seconds = _seconds("mask_fill_seconds", STEP_BUCKETS)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Family -> label values -> number; what has not been counted yet is an empty family."""
        return {name: getattr(self, name).snapshot() for name in _FAMILIES}


def _numbers(name: str) -> Numbers:
    return Numbers(_FAMILIES[name])


def _seconds(name: str, bounds: tuple[float, ...]) -> Seconds:
    return Seconds(_FAMILIES[name], bounds)


def merged(snapshots: Iterable[Snapshot]) -> dict[str, dict[str, float]]:
    """Of several processes. What is not a family of ours is left out."""
    total: dict[str, dict[str, float]] = {name: {} for name in _FAMILIES}
    for snapshot in snapshots:
        for name, values in snapshot.items():
            family = total.get(name, {})
            for label, value in values.items():
                family[label] = family.get(label, 0) + value
    return total


def families() -> Sequence[Family]:
    return tuple(_FAMILIES.values())


def samples(snapshot: Snapshot) -> Iterator[tuple[Family, list[Sample]]]:
    """As prometheus_client's Metric and add_sample want them."""
    for name, values in snapshot.items():
        family = _FAMILIES[name]
        yield (
            family,
            list(_histogram(values) if family.type == "histogram" else _plain(family, values)),
        )


def _plain(family: Family, values: Mapping[str, float]) -> Iterator[Sample]:
    suffix = "_total" if family.type == "counter" else ""
    if not family.labels:
        values = {"": 0, **values}  # there from the start, so that a rate can be taken
    for joined, value in values.items():
        given = joined.split("/") if family.labels else []
        yield Sample(suffix, tuple(zip(family.labels, given, strict=True)), value)


def _histogram(values: Mapping[str, float]) -> Iterator[Sample]:
    so_far = 0.0
    for bound, count in values.items():
        if bound != "sum":
            so_far += count
            yield Sample("_bucket", (("le", bound),), so_far)
    if values:
        yield Sample("_sum", (), values["sum"])
        yield Sample("_count", (), so_far)


def text(snapshot: Snapshot, prefix: str = "inferway_structured_") -> str:
    """Prometheus' text format (version 0.0.4)."""
    lines = []
    for family, found in samples(snapshot):
        name = prefix + family.name
        shown = name + "_total" if family.type == "counter" else name
        lines += [f"# HELP {shown} {family.help}", f"# TYPE {shown} {family.type}"]
        lines += [f"{name}{sample.suffix}{_labels(sample)} {sample.value:.10g}" for sample in found]
    return "\n".join([*lines, ""])


def _labels(sample: Sample) -> str:
    if not sample.labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
