"""`inferway bench many-seeds`, from the fitted engines to the cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.machine import this_machine
from inferway_bench.many_seeds.results import Cell, ManySeedsRun, Plan
from inferway_bench.peers.workload import chats
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.measured import command
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.progress import OnCountedStep
from inferway_bench.results import load_run
from inferway_bench.simulate.doubling import simulated_doubling_rate
from inferway_bench.simulate.sent import as_workload
from inferway_bench.simulate.validated import ValidateRun

_SEARCHED = 10  # seeds, of whose TTFT the mean is to double


def plan_like(validated: Path) -> Plan:
    """Engines as that run found them. Raises BenchError when it is none."""
    run = load_run(validated, ValidateRun)
    fleet = FleetSpec(num_engines=run.plan.engines.engines, num_slow=0, engine=run.engine)
    plan = Plan(fleet, fitted=f"{run.machine.date} UTC, commit {run.machine.commit}")
    spec = msgspec.structs.replace(plan.chats, engines=run.plan.engines)
    return msgspec.structs.replace(plan, chats=spec)


def run_many_seeds(plan: Plan, on_step: OnCountedStep) -> ManySeedsRun:
    machine = this_machine()
    workloads = _workloads(plan, on_step)
    rate = plan.chats.rate or _doubling_rate(plan, workloads[:_SEARCHED], on_step)
    cells: list[Cell] = []
    total = len(workloads) * len(plan.chats.loads) * len(plan.policies)
    for policy in plan.policies:
        for load in plan.chats.loads:
            on_step(f"{policy} at {load:.0%}", len(cells), total)
            cells += [
                _cell(plan.fleet, workload, policy, load, seed, rate)
                for seed, workload in zip(plan.chats.all_seeds, workloads, strict=True)
            ]
    return ManySeedsRun(machine, command(), plan, rate, cells)


def _workloads(plan: Plan, on_step: OnCountedStep) -> list[Workload]:
    """A seed's chats; what is simulated says how fast they come."""
    spec, seeds = plan.chats, plan.chats.all_seeds
    prompts = EnginePrompts(str(prepare_smollm2()))
    try:
        found = []
        for number, seed in enumerate(seeds):
            on_step(f"writing the chats of seed {seed}", number, len(seeds))
            sessions = chats(spec.chats, seed, str(seed), rate=1.0)
            found.append(as_workload(sessions, prompts, spec.engines.block_size))
    finally:
        prompts.close()
    return found


def _doubling_rate(plan: Plan, workloads: Sequence[Workload], on_step: OnCountedStep) -> float:
    return simulated_doubling_rate(
        workloads,
        plan.fleet,
        plan.chats.bisections,
        lambda rate: on_step(f"round-robin at {rate:.3g} requests a second"),
    )


def _cell(
    fleet: FleetSpec, workload: Workload, policy: str, load: float, seed: int, rate: float
) -> Cell:
    outcome = simulate(workload, load * rate, fleet, policy_named(policy), seed)
    return Cell(
        policy=policy,
        load=load,
        seed=seed,
        ttft=round(float(outcome.ttft.mean()), 6),
        token_seconds=round(outcome.token_seconds(workload), 6),
        cached_share=round(outcome.cached_share(workload), 5),
    )


def with_seeds(plan: Plan, seeds: int | None, rate: float | None, loads: Sequence[float]) -> Plan:
    """What is given in place of what is planned."""
    of = plan.chats
    changed = msgspec.structs.replace(
        of, seeds=seeds or of.seeds, rate=rate, loads=tuple(loads) or of.loads
    )
    return msgspec.structs.replace(plan, chats=changed)
