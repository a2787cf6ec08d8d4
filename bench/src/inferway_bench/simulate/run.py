"""The simulations of a plan, in as many processes as there are cores: rates are found, and each
policy is simulated at each load with each seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import TypeVar

import msgspec

from inferway_bench.policies.catalog import LEARNED, OURS, POLICIES, alone, policy_named
from inferway_bench.policies.requests import Figures, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate, simulate_cells
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.rows import Row
from inferway_bench.simulate.plan import Setting, SimulatePlan
from inferway_bench.spread import doubling_rate

_SEARCHED = 2  # seeds whose mean TTFT is to double, and more where they have few requests:
_SEARCHED_REQUESTS = 1_600
_MOST_SEARCHED = 20_000  # requests of a seed, or so many for each engine:
_MOST_EACH = 25
_IDLE_GAP = 60.0  # seconds between requests that hardly ever meet
_FIRST = 0.01  # requests a second for each engine, from which on the search goes up
_MOST_STEPS = 50

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Processes:
    """So many processes that compute side by side; the only one is this process."""

    def __init__(self, number: int, on_step: OnStep) -> None:
        self._number = number
        self._on_step = on_step

    def map(self, function: Callable[[_In], _Out], given: Sequence[_In], what: str) -> list[_Out]:
        """Return what the function makes of each, in their order."""
        if self._number == 1:
            return [function(one) for one in self._told(given, what, len(given))]
        # Not forked: a progress display has a thread.
        with ProcessPoolExecutor(self._number, get_context("spawn")) as pool:
            futures = [pool.submit(function, one) for one in given]
            try:
                for future in self._told(as_completed(futures), what, len(given)):
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)  # of what has not begun, after an error
        return [future.result() for future in futures]

    def _told(self, each: Iterable[_In], what: str, total: int) -> Iterator[_In]:
        for number, one in enumerate(each):
            self._on_step(f"{what}: {number:,} of {total:,} simulations", number, total)
            yield one


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
    BenchError when a policy, a trace, a constant or a group of caches is not known."""
    plan = SimulatePlan(**msgspec.structs.asdict(plan))  # processes cannot import a preset
    names = plan.policy or tuple(POLICIES)
    for name in names:
        policy_named(name)
    for setting in plan.settings():  # an error is told before processes are started
        plan.fleet(setting).check(plan.workload(setting.trace, 1).block_tokens)
    firsts = [Setting(trace, plan.engines[0], plan.gateways[0]) for trace in plan.trace]
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
        keys = {**setting.keys, "load": f"{load:.0%}", "policy": policy}
        values: dict[str, list[float]] = {
            name: [getattr(found[task], name) for task in seeds]
            for name in Figures.__struct_fields__
        }
        is_ours = alone(policy) in (OURS, LEARNED)
        yield Row("simulations", keys, {"rate": seeds[0].rate, **values}, is_ours)


def perform(task: Task) -> Figures:
    """Simulate a task in a process of the pool."""
    plan, setting = task.plan, task.setting
    workload, fleet = plan.workload(setting.trace, task.seed), plan.fleet(setting)
    given = (workload, task.rate, fleet, policy_named(task.policy), task.seed)
    outcome = simulate_cells(*given, setting.cells) if setting.cells else simulate(*given)
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
        idle, rate = _round_robins_rate(searched, fleet, plan)
    values = {
        "cache": fleet.engine.cache_tokens,
        "requests": len(workload.requests),
        "idle_ttft": idle,
        "rate": rate,
        "about": f"{workload.about}; blocks of {workload.block_tokens} tokens",
    }
    return Row("traces", {"trace": setting.trace}, values)


def _round_robins_rate(
    workloads: Sequence[Workload], fleet: FleetSpec, plan: SimulatePlan
) -> tuple[float, float]:
    """Round-robin's mean TTFT on an idle fleet, in ms, and the rate at which it is twice that, in
    requests a second; the means are those over `workloads`, and the number of each is its seed."""
    round_robin = policy_named("round-robin")

    def ttft(rate: float) -> float:
        return fmean(
            simulate(each, rate, fleet, round_robin, seed).figures(each, rate, plan.warm_up).ttft
            for seed, each in enumerate(workloads, start=1)
        )

    idle, first = ttft(1 / _IDLE_GAP), _FIRST * fleet.num_engines
    try:
        low, _ = doubling_rate(ttft, idle, (first, first), 1.5, _MOST_STEPS, plan.bisections)
    except ValueError as e:
        raise BenchError(f"round-robin: {e}; fix: more requests, or --rate") from e
    return idle, low
