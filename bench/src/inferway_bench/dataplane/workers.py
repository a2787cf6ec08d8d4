"""`inferway bench workers`: what a gateway of several processes carries, beside one process.

As in `bench dataplane` each gateway gets two trivial engines, and they are loaded in turns. CPU
time is counted for the hub and its workers apart: clients and engines share the machine with them,
so what they carry is what their CPU time allows, not what was seen here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated

import msgspec

from inferway_bench import conversations
from inferway_bench.cpu import process_tree
from inferway_bench.dataplane.benchmark import LONG, SHORT
from inferway_bench.dataplane.testbed import Repeat, in_turns, publish_events, started_routers
from inferway_bench.dataplane.wrk import Load
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.routers import Counters, Inferway, Place, Router, RunningRouter
from inferway_bench.rows import Findings, Goal, Row, Run
from inferway_bench.spread import ratio_of_medians
from inferway_sim.prepare import prepare_smollm2

_HUB = "hub"
_CORES = 2  # of which the requirement speaks


class WorkersPlan(msgspec.Struct, frozen=True):
    """Seconds are of load, for each gateway and repeat."""

    workers: Annotated[
        tuple[int, ...],
        flag("Measure a gateway with this number of workers.", metavar="NUMBER", ge=1),
    ] = (1, 2, 4)
    repeats: Annotated[int, flag("Load each gateway this number of times, in turns.", ge=1)] = 9
    seconds: Annotated[int, flag("Load each gateway for this time in each repeat.", ge=1)] = 4
    connections: Annotated[
        int, flag("Send requests over this number of connections at a time.", ge=1)
    ] = 64


@dataclass(frozen=True, slots=True)
class WithWorkers(Inferway):
    """Ours with scoring and `workers`."""

    workers: int = 1

    @property
    def label(self) -> str:
        return f"inferway serve --workers {self.workers}"

    def command(self, place: Place) -> list[str]:
        return [*Inferway(scoring=True).command(place), "--workers", str(self.workers)]


def measure(plan: WorkersPlan, on_step: OnStep) -> Findings:
    """Measure one process, and the hub with so many workers. Raises BenchError when something
    cannot be started, or fails a request."""
    model = str(prepare_smollm2())
    routers: list[Router] = [WithWorkers(scoring=True, workers=number) for number in plan.workers]
    loads = (
        (SHORT, conversations.short_chat(model)),
        (LONG, conversations.chat_of_8k_tokens(model)),
    )
    rows: list[Row] = []
    with started_routers(routers, model, on_step) as ready:
        publish_events(ready, model, on_step)
        for name, templates in loads:
            load = Load(templates, plan.connections)
            rows += _cpu_rows(name, load, ready, plan, on_step)
        rows += [_memory_row(one) for one in ready]
    about = (
        f"{plan.repeats} repeats of {plan.seconds} s, {plan.connections} connections, all gateways "
        "in one run, taking turns. Each has two trivial engines, which answer at once. Clients and "
        "engines take their part of the same cores, so requests a second are what CPU time allows: "
        f"with {_CORES} cores for hub and workers together, and with a core for each process. "
        f"Load average after the run: {os.getloadavg()[0]:.2f}."
    )
    return Findings(rows=rows, about=[about], seeds=list(range(plan.repeats)))


def _cpu_rows(
    name: str, load: Load, ready: Sequence[RunningRouter], plan: WorkersPlan, on_step: OnStep
) -> Iterator[Row]:
    numbers = count(1, 10**6)
    measured = in_turns(ready, load, name, plan.seconds, plan.repeats, numbers, _used, on_step)
    for one, repeats in zip(ready, measured, strict=True):
        yield Row("cpu", {"load": name, "workers": _workers(one)}, figures(repeats, _workers(one)))


def figures(repeats: Sequence[Repeat], workers: int) -> dict[str, list[float]]:
    """Return the CPU time of each repeat, and what it allows to carry."""
    found: dict[str, list[float]] = {
        name: [] for name in ("cpu_us", "hub_us", "two_cores", "core_each", "seen")
    }
    for each in repeats:
        requests = each.result.requests
        all_us = each.cpu_seconds / requests * 1e6
        hub_us = each.counted[_HUB] / requests * 1e6 if workers > 1 else 0.0
        busiest = max(hub_us, (all_us - hub_us) / workers)
        found["cpu_us"].append(round(all_us, 1))
        found["hub_us"].append(round(hub_us, 1))
        found["two_cores"].append(round(1e6 / max(all_us / min(_CORES, workers), busiest), 1))
        found["core_each"].append(round(1e6 / busiest, 1))
        found["seen"].append(round(requests * 1e6 / each.result.microseconds, 1))
    return found


def _used(one: RunningRouter) -> Counters:
    """The CPU seconds of the root process, which with workers is the hub."""
    return {_HUB: process_tree(one.pid)[0].cpu_seconds}


def _memory_row(one: RunningRouter) -> Row:
    """What each process has to itself: what it does not share with the others."""
    hub, *workers = (_private_mib(process.pid) for process in process_tree(one.pid))
    values: dict[str, float | None] = {
        "hub_mib": hub,
        "worker_mib": round(sum(workers) / len(workers), 1) if workers else None,
    }
    return Row("memory", {"workers": _workers(one)}, values)


def _private_mib(pid: int) -> float:
    """The private memory of a process: Private_Clean and Private_Dirty of proc(5)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return round(kib / 1024, 1)


def _workers(one: RunningRouter) -> int:
    assert isinstance(one.router, WithWorkers)
    return one.router.workers


def goals(run: Run) -> list[Goal]:
    """Judge what two workers carry on two cores, beside one process on one."""
    found = []
    for load in (SHORT, LONG):
        alone, two = (run.find("cpu", load=load, workers=number) for number in (1, 2))
        if alone is not None and two is not None:
            ratio = ratio_of_medians(two.repeats("two_cores"), alone.repeats("two_cores"))
            what = f"{load}, requests a second of 2 workers on 2 cores"
            found.append(Goal(what, "≥ 1.8 × one process", ratio.shown(), ratio.value >= 1.8))
    return found


_RATE = "{:,.0f}"
WORKERS = Benchmark(
    "workers",
    "Measure what a gateway of several processes carries beside one process, by CPU time, and what "
    "memory each process takes. It needs the program wrk.",
    WorkersPlan,
    measure,
    [
        Table(
            "cpu",
            "CPU time for a request of all processes and of the hub, and the requests a second "
            "that this allows, median (lowest to highest of the repeats)",
            ["load", "workers"],
            [
                Column("cpu_us", "CPU, µs", _RATE, "range", "lower", "µs"),
                Column("hub_us", "of it the hub, µs", _RATE, "range"),
                Column("two_cores", "a second, on 2 cores", _RATE, "range", "higher"),
                Column("core_each", "a second, a core each", _RATE, "range", "higher"),
                Column("seen", "seen a second", _RATE, better="higher"),
            ],
        ),
        Table(
            "memory",
            "Private memory after the loads, MiB",
            ["workers"],
            [
                Column("hub_mib", "first process or hub", "{:,.0f}", better="lower", unit="MiB"),
                Column("worker_mib", "each worker", "{:,.0f}", better="lower", unit="MiB"),
            ],
        ),
    ],
    quick={"repeats": 2, "seconds": 2},
    goals=goals,
    question="how many requests a second a gateway of several processes carries",
    takes="6 minutes",
)  # fmt: skip
workers = WORKERS.command()
