"""`inferway bench simulate`, from the trace to the rows: one simulation after the other, in this
process."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

import msgspec

from inferway_bench.machine import this_machine
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.measured import command, doubling, row
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.results import Row
from inferway_bench.policies.simulate import simulate
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnCountedStep
from inferway_bench.simulate.plan import Plan, load
from inferway_bench.simulate.results import SimulateRun

_BISECTIONS = 6
_SEARCH = 5_000  # requests to find a rate with, and so many more for each engine:
_SEARCH_EACH = 25


def run_more(before: SimulateRun, plan: Plan, data: Path, on_step: OnCountedStep) -> SimulateRun:
    """`before` with the policies of `plan`, in place of those of their names, at the rate that was
    found then. All else must be as it was. Raises BenchError."""
    policies = tuple(dict.fromkeys((*before.plan.policies, *plan.policies)))
    if msgspec.structs.replace(plan, policies=before.plan.policies) != before.plan:
        raise BenchError(
            "--add: what was simulated before was another trace, fleet, rate or seed "
            f"({before.command}); the cure: the same flags, or none of --add"
        )
    added = run_simulate(plan, data, on_step, before.rows[0].rate)
    kept = [row for row in before.rows if row.policy not in plan.policies]
    names = ", ".join(name for name in before.plan.policies if name not in plan.policies)
    return msgspec.structs.replace(
        added,
        plan=msgspec.structs.replace(plan, policies=policies),
        memory_gib=max(before.memory_gib, added.memory_gib),
        rows=sorted([*kept, *added.rows], key=lambda row: policies.index(row.policy)),
        kept=before.kept or f"{names}: {before.machine.date} UTC, commit {before.machine.commit}",
    )


def run_simulate(
    plan: Plan, data: Path, on_step: OnCountedStep, rate: float | None = None
) -> SimulateRun:
    """At `rate`, if it is given, whatever the plan says of rates. Raises BenchError, with the
    cure: no such trace, no such policy."""
    machine = this_machine()
    policies = {name: policy_named(name) for name in plan.policies}
    on_step("reading the trace")
    first = load(plan, data, plan.seeds[0])
    if rate is None:
        rate = _rate(plan, first, on_step)
    rows: list[Row] = []
    for seed in plan.seeds:
        workload = first if seed == plan.seeds[0] else load(plan, data, seed)
        for fleet, (name, make) in product(plan.fleets, policies.items()):
            what = f"{name}, {fleet.num_engines:,} engines, seed {seed}"
            tell = _tell(on_step, what, len(workload.requests))
            tell(0)
            of_fleet = rate * fleet.num_engines / plan.fleets[0].num_engines
            outcome = simulate(workload, of_fleet, fleet, make, seed, tell)
            rows.append(
                row(
                    workload, outcome, of_fleet, policy=name, seed=seed,
                    gateways=fleet.num_gateways, load=plan.load or 0.0,
                )
            )  # fmt: skip
    return SimulateRun(
        machine=machine,
        command=command(),
        plan=plan,
        about=first.about,
        requests=len(first.requests),
        block_tokens=first.block_tokens,
        memory_gib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        rows=rows,
    )


def _rate(plan: Plan, workload: Workload, on_step: OnCountedStep) -> float:
    """Requests a second."""
    if plan.rate is not None:
        return plan.rate
    if plan.load is None:
        return workload.own_rate
    fleet = plan.fleets[0]
    part = workload.part(_SEARCH + _SEARCH_EACH * fleet.num_engines)
    make = policy_named("round-robin")

    def ttft(rate: float) -> float:
        on_step(f"finding the rate at which round-robin's TTFT doubles: {rate:.2f} requests/s")
        outcomes = [simulate(part, rate, fleet, make, seed) for seed in (1, 2)]
        return fmean(row(part, o, rate, policy="round-robin").ttft for o in outcomes)

    return plan.load * doubling(ttft, fleet.num_engines / 100, _BISECTIONS)[1]


def _tell(on_step: OnCountedStep, what: str, total: int) -> Callable[[int], None]:
    return partial(_told, on_step, what, total)


def _told(on_step: OnCountedStep, what: str, total: int, done: int) -> None:
    on_step(f"{what}: {done:,} of {total:,} requests", done, total)
