"""`inferway bench cells`: what is lost if a fleet is divided into cells that know nothing of each
other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Annotated

import msgspec

from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.policies.catalog import OURS, policy_named
from inferway_bench.policies.cells import CellFigures, simulate_cells
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Row
from inferway_bench.simulate.plan import Setting, SimulatePlan
from inferway_bench.simulate.processes import Processes
from inferway_bench.simulate.report import TRACES
from inferway_bench.simulate.run import find_rate


class CellsPlan(msgspec.Struct, frozen=True):
    """Into how many cells a fleet is divided, and what it is asked."""

    trace: Annotated[
        tuple[str, ...],
        flag("Replay this file, or a trace of bench simulate.", metavar="FILE"),
    ] = ("mooncake", "agentic@1048576")
    engines: Annotated[int, flag("Simulate this number of engines in total.", ge=1)] = 256
    cells: Annotated[
        tuple[int, ...], flag("Divide the engines into this number of cells.", ge=1)
    ] = (1, 2, 4, 8, 16, 32)
    policy: Annotated[str, flag("Choose engines by this policy.", metavar="NAME")] = OURS
    load: Annotated[
        tuple[float, ...],
        flag("Send requests at this share of the rate.", metavar="SHARE", gt=0),
    ] = (0.5, 0.75)
    requests: Annotated[int, flag("Simulate this number of requests.", ge=1)] = 50_000
    seeds: Annotated[int, flag("Simulate this number of seeds.", ge=1)] = 2
    processes: Annotated[
        int | None, flag("Simulate in this number of processes at a time.", ge=1)
    ] = None
    warm_up: float = 0.5
    bisections: int = 5

    @property
    def simulated(self) -> SimulatePlan:
        """The same as a plan of `bench simulate`."""
        return SimulatePlan(
            trace=self.trace,
            engines=(self.engines,),
            load=self.load,
            requests=self.requests,
            warm_up=self.warm_up,
            bisections=self.bisections,
            processes=self.processes,
        )


class CellTask(msgspec.Struct, frozen=True):
    """One simulation."""

    plan: CellsPlan
    trace: str
    load: float
    rate: float
    cells: int
    seed: int


def measure(plan: CellsPlan, on_step: OnStep) -> Findings:
    """Simulate the plan. Raises BenchError when a trace or the policy is not known, or the engines
    cannot be divided."""
    for cells in plan.cells:
        if plan.engines % cells:
            raise BenchError(f"--cells {cells}: it must divide the {plan.engines} engines evenly")
    policy_named(plan.policy)
    simulated = plan.simulated
    settings = simulated.settings()
    processes = Processes(simulated.num_processes, on_step)
    traces = processes.map(partial(find_rate, simulated), settings, "finding rates")
    rates = {str(row.keys["trace"]): row.median("rate") for row in traces}
    cases = [
        (trace, load, cells) for trace in plan.trace for load in plan.load for cells in plan.cells
    ]
    tasks = [
        CellTask(plan, trace, load, rates[trace] * load, cells, seed)
        for seed, (trace, load, cells) in product(range(1, plan.seeds + 1), cases)
    ]
    found = dict(zip(tasks, processes.map(perform, tasks, "simulating"), strict=True))
    about = [
        f"- {simulated.fleet(settings[0]).about}",
        f"- Each cell has its share of the {plan.engines} engines, and one gateway with the policy "
        f"{plan.policy}. A session stays in the cell that the hash of its name says.",
        "- Loads are shares of the rate in the table of traces. Requests that arrive in the first "
        f"{plan.warm_up:.0%} of a run do not count.",
    ]
    return Findings(
        rows=[*traces, *_rows(cases, found)],
        about=about,
        facts={"all_engines": plan.engines},
        seeds=list(range(1, plan.seeds + 1)),
    )


def perform(task: CellTask) -> CellFigures:
    """Simulate a task in a process of the pool."""
    simulated = task.plan.simulated
    workload = simulated.workload(task.trace, task.seed)
    fleet = simulated.fleet(Setting(task.trace, task.plan.engines, 1))
    make = policy_named(task.plan.policy)
    return simulate_cells(
        workload, task.rate, fleet, make, task.seed, task.cells, task.plan.warm_up
    )


def _rows(cases: list[tuple[str, float, int]], found: dict[CellTask, CellFigures]) -> Iterator[Row]:
    for case in cases:
        mine = [one for task, one in found.items() if (task.trace, task.load, task.cells) == case]
        trace, load, cells = case
        values = {
            name: [getattr(one, name) for one in mine] for name in CellFigures.__struct_fields__
        }
        yield Row("cells", {"trace": trace, "load": f"{load:.0%}", "cells": cells}, values)


CELLS = Benchmark(
    "cells",
    "Divide a simulated fleet into cells that know nothing of each other, in virtual time, with "
    "the scheduling code of production.",
    CellsPlan,
    measure,
    [
        Table(
            "cells",
            "**{trace}, {all_engines} engines, load: {load}**: mean TTFT and p90 in ms, the share "
            "of prompt tokens that came from a cache, and the load of the busiest cell divided by "
            "that of the average one",
            ["cells"],
            [
                Column("ttft", "TTFT", "{:,.0f}", "mean alone", "lower", "ms"),
                Column("ttft_p90", "p90", "{:,.0f}", "mean alone", "lower", "ms"),
                Column("cached", "cached", "{:.1f}%", "mean alone", "higher", "%"),
                Column("busiest", "busiest", "{:.2f}", "mean alone"),
            ],
            split=("trace", "load"),
        ),
        TRACES,
    ],
    quick={
        "engines": 16, "cells": (1, 4), "requests": 2_000, "load": (0.5,), "seeds": 1,
        "bisections": 2,
    },
    question="what is lost if a fleet is divided into cells that know nothing of each other",
    takes="20 minutes",
    times="virtual",
)  # fmt: skip
cells = CELLS.command()
