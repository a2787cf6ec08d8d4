"""`inferway bench route`: CPU time that a router takes per request, ours beside its peers.

Each router gets two trivial engines of its own. All of them are started first and then loaded
in turns, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferway_bench.cpu import resident_bytes
from inferway_bench.load import LoadResult
from inferway_bench.machine import command_line, this_machine
from inferway_bench.parts import measure_parts
from inferway_bench.placed import Case, Placed, cases, placed, tell_events
from inferway_bench.progress import OnStep
from inferway_bench.route_results import Measurement, RouteRun
from inferway_bench.routers import BLOCK_SIZE, Router, since


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often."""

    repeats: int = 7
    seconds: int = 4
    warm_up_seconds: int = 2
    connections: int = 8
    part_repeats: int = 400


QUICK = Plan(repeats=2, seconds=1, warm_up_seconds=1, part_repeats=60)


@dataclass(slots=True)
class Started:
    """A router that runs, and what was measured of it."""

    placed: Placed
    results: dict[str, list[tuple[LoadResult, float]]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def router(self) -> Router:
        return self.placed.router


def run_route(routers: Sequence[Router], root: Path, plan: Plan, on_step: OnStep) -> RouteRun:
    """Measure all `routers` with the model in the directory `root`.

    Raises BenchError when something cannot be started, fails a request, or does not match what
    it should match.
    """
    model = str(root)
    loads = cases(model, plan.connections)
    machine = this_machine()
    with placed(routers, model, on_step) as ready:
        tell_events(ready, model, on_step)
        started = [Started(one) for one in ready]
        _measure(started, loads, plan, on_step)
        measurements = [_measurement(s, case.name) for s in started for case in loads]
    on_step("timing the steps of our path")
    parts = measure_parts(root, loads[-1].load.templates, BLOCK_SIZE, plan.part_repeats)
    return RouteRun(
        machine=machine,
        command=shlex.join(command_line()),
        seconds=plan.seconds,
        connections=plan.connections,
        bodies={case.name: case.what for case in loads},
        measurements=measurements,
        parts=parts,
    )


def _measure(
    started: Sequence[Started], loads: Sequence[Case], plan: Plan, on_step: OnStep
) -> None:
    numbers = iter(range(1, 10**9, 10**6))
    for case in loads:
        for s in started:
            on_step(f"{case.name}: warming up {s.router.label}")
            if plan.warm_up_seconds:
                case.load.run(s.placed.place.url, plan.warm_up_seconds, next(numbers))
        before = [s.router.counters(s.placed.place) for s in started]
        for repeat in range(plan.repeats):
            for s in started:
                on_step(f"{case.name}: {s.router.label}, {repeat + 1} of {plan.repeats}")
                measured = s.placed.measure(case.load, plan.seconds, next(numbers))
                s.results.setdefault(case.name, []).append(measured)
        for s, counters in zip(started, before, strict=True):
            s.notes[case.name] = s.router.evidence(
                since(counters, s.router.counters(s.placed.place))
            )


def _measurement(s: Started, case: str) -> Measurement:
    results = s.results[case]
    return Measurement(
        router=s.router.label,
        version=s.router.version,
        case=case,
        cpu_us=[round(used / r.requests * 1e6, 1) for r, used in results],
        requests_per_second=[round(r.requests_per_second) for r, _ in results],
        p50_us=[r.p50_us for r, _ in results],
        p99_us=[r.p99_us for r, _ in results],
        resident_mib=round(resident_bytes(s.placed.pid) / 2**20, 1),
        note=s.notes[case],
    )
