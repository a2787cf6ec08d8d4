"""What `inferway bench structured` keeps, and what was asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from inferway_bench.results import Figure, Goal, Run
from inferway_bench.structured.plan import Plan
from inferway_bench.structured.systems import OURS, VLLM


class Judged(msgspec.Struct, frozen=True, omit_defaults=True):
    """One schema, by one system. Instances in the order of the file."""

    error: str | None = None  # why it was not compiled, or not judged
    seconds: float | None = None  # from the schema to the first mask
    cpu_ms: dict[str, float] = {}  # CPU time of that, by step
    named: list[bool] = []  # instances that violate named keywords alone; empty: none is named
    taken: list[bool] = []
    ordered: list[bool] = []  # the same instances in schema order


class Masks(msgspec.Struct, frozen=True):
    """Microseconds, along valid instances."""

    num: int
    p50: float
    p95: float
    p99: float
    p999: float
    max: float


class System(msgspec.Struct, frozen=True):
    name: str
    masks: Masks  # wall time
    judged: list[Judged]
    masks_cpu: Masks | None = None  # CPU time of the thread that asked: others do not lengthen it


class Schema(msgspec.Struct, frozen=True):
    id: str
    valid: list[bool]  # its instances


class Count(NamedTuple):
    """Over all schemas, with instances as they came or in schema order."""

    compiled: int
    valid_taken: int
    valid: int  # of schemas compiled
    invalid_refused: int
    invalid: int
    right: int  # schemas compiled, and every instance judged rightly
    refusing: int  # schemas that refuse a valid instance
    letting: int  # schemas that let an invalid one through
    letting_unnamed: int  # and do not name the keyword that it violates


class StructuredRun(Run, frozen=True):
    """A whole run."""

    file: str
    tokenizer: str
    plan: Plan
    versions: dict[str, str]
    schemas: list[Schema]
    systems: list[System]
    batch_ms: dict[str, dict[str, float]]  # whose -> way -> a step
    load_after: float

    def count(self, system: System, *, ordered: bool) -> Count:
        found = [_count(*pair, ordered) for pair in zip(self.schemas, system.judged, strict=True)]
        return Count(*map(sum, zip(*found, strict=True)))

    def right(self, system: System, *, ordered: bool) -> list[bool]:
        return [
            _count(*pair, ordered).right == 1
            for pair in zip(self.schemas, system.judged, strict=True)
        ]

    def best_library(self, *, ordered: bool) -> System | None:
        """That judges most schemas rightly."""
        libraries = [system for system in self.systems if system.name not in (OURS, VLLM)]
        return max(libraries, key=lambda one: sum(self.right(one, ordered=ordered)), default=None)

    def gained_and_lost(self, other: System, *, ordered: bool) -> tuple[int, int]:
        """Schemas that only we judge rightly, and that only the other does."""
        pairs = list(
            zip(
                self.right(self.ours, ordered=ordered),
                self.right(other, ordered=ordered),
                strict=True,
            )
        )
        return sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)

    @property
    def ours(self) -> System:
        return self.system(OURS)

    def system(self, name: str) -> System:
        return next(system for system in self.systems if system.name == name)

    def compile_ms(self, system: System, beside: System | None = None) -> Sequence[float]:
        """Sorted; of what it compiled, and `beside` did, too."""
        pairs = zip(system.judged, (beside or system).judged, strict=True)
        return sorted(
            one.seconds * 1000
            for one, other in pairs
            if one.seconds is not None and other.seconds is not None
        )

    def cpu_ms(
        self, system: System, steps: Sequence[str], beside: System | None = None
    ) -> Sequence[float]:
        """As `compile_ms`, in CPU time of some steps; empty where it was not measured."""
        pairs = zip(system.judged, (beside or system).judged, strict=True)
        return sorted(
            sum(one.cpu_ms.get(step, 0.0) for step in steps)
            for one, other in pairs
            if one.cpu_ms and other.seconds is not None
        )

    def goals(self) -> list[Goal]:
        return [*self._kept_goals(), *self._speed_goals()]

    def figures(self) -> list[Figure]:
        found = []
        for system in self.systems:
            is_ours = system.name == OURS
            count, times = self.count(system, ordered=True), self.compile_ms(system)
            found += [
                Figure(f"{system.name}: schemas right", "", [count.right], "higher", is_ours),
                Figure(f"{system.name}: compile", "ms", list(times), is_ours=is_ours),
                Figure(f"{system.name}: mask, p50", "µs", [system.masks.p50], is_ours=is_ours),
                Figure(f"{system.name}: mask, p99", "µs", [system.masks.p99], is_ours=is_ours),
            ]
        return found

    def _kept_goals(self) -> Iterator[Goal]:
        num = len(self.schemas)
        for ordered in (False, True):
            best = self.best_library(ordered=ordered)
            if best is None:
                continue
            gained, lost = self.gained_and_lost(best, ordered=ordered)
            how = "in schema order" if ordered else "as they came"
            yield Goal(
                f"schemas gained over the best library ({best.name}), instances {how}",
                "≥ 2 % more than lost, lost ≤ 1 %",
                f"{gained} gained, {lost} lost of {num}",
                gained - lost >= 0.02 * num and lost <= 0.01 * num,
            )
        count = self.count(self.ours, ordered=True)
        raw = self.count(self.ours, ordered=False)
        yield Goal(
            "schemas compiled",
            "≥ 97 %",
            f"{count.compiled / num:.1%}",
            count.compiled >= 0.97 * num,
        )
        unnamed = max(count.letting_unnamed, raw.letting_unnamed)
        yield Goal(
            "schemas that accept an invalid instance and name no unenforced keyword",
            "0",
            str(unnamed),
            unnamed == 0,
        )

    def _speed_goals(self) -> Iterator[Goal]:
        masks = self.ours.masks
        theirs = next((one for one in self.systems if one.name == "llguidance"), None)
        if theirs is not None:
            yield from self._compile_goals(theirs)
        yield Goal("mask, p50", "≤ 10 µs", f"{masks.p50:.1f} µs", masks.p50 <= 10)
        yield from _long_masks("wall time", masks)
        if self.ours.masks_cpu is not None:
            yield from _long_masks("CPU time", self.ours.masks_cpu)

    def _compile_goals(self, theirs: System) -> Iterator[Goal]:
        """In CPU time where it was measured: others beside it do not lengthen that."""
        ours_ms: Sequence[float] = self.cpu_ms(self.ours, ("check", "compile"), beside=theirs)
        what = "check and compile, CPU time"
        theirs_ms: Sequence[float] = self.cpu_ms(theirs, ("compile",))
        if not ours_ms:
            ours_ms, what = self.compile_ms(self.ours, beside=theirs), "compile"
            theirs_ms = self.compile_ms(theirs)
        ours, other = percentile(ours_ms, 0.95), percentile(theirs_ms, 0.95)
        yield Goal(
            f"{what}, p95, of the schemas that llguidance compiles",
            "≤ 1.2 × llguidance's",
            f"{ours:.1f} ms; llguidance {other:.1f} ms",
            ours <= 1.2 * other,
        )


def _long_masks(of_what: str, masks: Masks) -> Iterator[Goal]:
    for what, us, most_ms in (("p99.9", masks.p999, 5), ("longest", masks.max, 20)):
        found = f"{us / 1000:.2f} ms"
        yield Goal(f"mask, {what}, {of_what}", f"≤ {most_ms} ms", found, us <= most_ms * 1000)


def _count(schema: Schema, judged: Judged, ordered: bool) -> Count:
    answers = judged.ordered if ordered else judged.taken
    compiled = judged.seconds is not None
    pairs = list(zip(schema.valid, answers, strict=False))
    valid = [taken for is_valid, taken in pairs if is_valid]
    invalid = [taken for is_valid, taken in pairs if not is_valid]
    # one that was compiled and not judged, out of time, is not right
    judged_all = compiled and len(answers) == len(schema.valid)
    refusing, letting = not all(valid), any(invalid)
    named = judged.named or [False] * len(schema.valid)
    unnamed = [
        taken and not is_valid and not is_named
        for is_valid, taken, is_named in zip(schema.valid, answers, named, strict=False)
    ]
    return Count(
        compiled=int(compiled),
        valid_taken=sum(valid),
        valid=len(valid),
        invalid_refused=len(invalid) - sum(invalid),
        invalid=len(invalid),
        right=int(judged_all and not refusing and not letting),
        refusing=int(refusing),
        letting=int(letting),
        letting_unnamed=int(any(unnamed)),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def masks_of(nanoseconds: Sequence[int]) -> Masks:
    found = sorted(one / 1000 for one in nanoseconds)
    shares = (percentile(found, share) for share in (0.5, 0.95, 0.99, 0.999, 1.0))
    return Masks(len(found), *(round(one, 3) for one in shares))
