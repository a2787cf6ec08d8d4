"""The simulations of a plan, in as many processes as there are cores: rates are found, and each
policy is simulated at each load with each seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean

import msgspec

from inferway_bench.doubling import doubling_rate
from inferway_bench.policies.catalog import LEARNED, OURS, POLICIES, alone, policy_named
from inferway_bench.policies.requests import Figures, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.rows import Row
from inferway_bench.simulate.plan import Setting, SimulatePlan
from inferway_bench.simulate.processes import Processes

_SEARCHED = 2  # seeds whose mean TTFT is to double, and more where they have few requests:
_SEARCHED_REQUESTS = 1_600
_MOST_SEARCHED = 20_000  # requests of a seed, or so many for each engine:
_MOST_EACH = 25
_IDLE_GAP = 60.0  # seconds between requests that hardly ever meet
_FIRST = 0.01  # requests a second for each engine, from which on the search goes up
_MOST_STEPS = 50


class Task(msgspec.Struct, frozen=True):
    """One simulation."""

    plan: SimulatePlan
    setting: Setting
    load: float
    policy: str
    seed: int
    rate: float


def simulated(plan: SimulatePlan, on_step: OnStep) -> list[Row]:
    """Return a row for each trace with its rate, and one for each policy in each case. Raises
    BenchError when a policy, a trace or a constant is not known."""
    plan = SimulatePlan(**msgspec.structs.asdict(plan))  # processes cannot import a preset
    names = plan.policy or tuple(POLICIES)
    for name in names:
        policy_named(name)
    firsts = [Setting(trace, plan.engines[0], plan.gateways[0]) for trace in plan.trace]
    for first in firsts:
        plan.workload(first.trace, 1)  # an error is told before processes are started
    processes = Processes(plan.num_processes, on_step)
    traces = processes.map(partial(find_rate, plan), firsts, "finding rates")
    rates = {str(row.keys["trace"]): row.median("rate") for row in traces}
    tasks = list(_tasks(plan, names, rates))
    by_seed = sorted(tasks, key=lambda task: task.seed)  # a process keeps the last workloads
    found = dict(zip(by_seed, processes.map(perform, by_seed, "simulating"), strict=True))
    return [*traces, *_rows(tasks, found)]


def _tasks(plan: SimulatePlan, names: Sequence[str], rates: Mapping[str, float]) -> Iterator[Task]:
    for setting in plan.settings():
        rate = rates[setting.trace] * setting.engines / plan.engines[0]
        for load, name, seed in product(plan.load or (1.0,), names, plan.all_seeds):
            if setting.gateways == 1 and name != alone(name):
                continue  # it has nobody to tell
            yield Task(plan, setting, load, name, seed, rate * load)


def _rows(tasks: Sequence[Task], found: Mapping[Task, Figures]) -> Iterator[Row]:
    """A row for each case."""
    by_case: dict[tuple[Setting, float, str], list[Task]] = {}
    for task in tasks:
        by_case.setdefault((task.setting, task.load, task.policy), []).append(task)
    for (setting, load, policy), seeds in by_case.items():
        keys = {**setting._asdict(), "load": f"{load:.0%}", "policy": policy}
        values: dict[str, list[float]] = {
            name: [getattr(found[task], name) for task in seeds]
            for name in Figures.__struct_fields__
        }
        is_ours = alone(policy) in (OURS, LEARNED)
        yield Row("simulations", keys, {"rate": seeds[0].rate, **values}, is_ours)


def perform(task: Task) -> Figures:
    """Simulate a task in a process of the pool."""
    plan, workload = task.plan, task.plan.workload(task.setting.trace, task.seed)
    fleet, make = plan.fleet(task.setting), policy_named(task.policy)
    outcome = simulate(workload, task.rate, fleet, make, task.seed)
    return outcome.figures(workload, task.rate, plan.warm_up)


def find_rate(plan: SimulatePlan, setting: Setting) -> Row:
    """Return how fast the requests of a trace come, in a process of the pool: the rate that is
    given, the trace's own, or (for loads) the one at which round-robin's mean TTFT doubles."""
    workload = plan.workload(setting.trace, 1)
    rate, idle, fleet = plan.rate or workload.own_rate, None, plan.fleet(setting)
    if plan.load and plan.rate is None:
        most = max(_MOST_SEARCHED, _MOST_EACH * setting.engines)
        num_seeds = max(_SEARCHED, _SEARCHED_REQUESTS // len(workload.requests))
        searched = [
            plan.workload(setting.trace, seed).part(most) for seed in plan.all_seeds[:num_seeds]
        ]
        idle, rate = round_robins_rate(searched, fleet, plan.bisections, plan.warm_up)
    values = {
        "cache": fleet.engine.cache_tokens,
        "requests": len(workload.requests),
        "idle_ttft": idle,
        "rate": rate,
        "about": f"{workload.about}; blocks of {workload.block_tokens} tokens",
    }
    return Row("traces", {"trace": setting.trace}, values)


def round_robins_rate(
    workloads: Sequence[Workload], fleet: FleetSpec, bisections: int, warm_up: float = 0.0
) -> tuple[float, float]:
    """Return round-robin's mean TTFT on an idle fleet, in ms, and the rate at which it is twice
    that, in requests a second; the means are those over `workloads`, and the number of each is its
    seed. Raises BenchError when it does not double."""
    round_robin = policy_named("round-robin")

    def ttft(rate: float) -> float:
        return fmean(
            simulate(each, rate, fleet, round_robin, seed).figures(each, rate, warm_up).ttft
            for seed, each in enumerate(workloads, start=1)
        )

    idle, first = ttft(1 / _IDLE_GAP), _FIRST * fleet.num_engines
    try:
        low, _ = doubling_rate(ttft, idle, (first, first), 1.5, _MOST_STEPS, bisections)
    except ValueError as e:
        raise BenchError(f"round-robin: {e}; fix: more requests, or --rate") from e
    return idle, low
