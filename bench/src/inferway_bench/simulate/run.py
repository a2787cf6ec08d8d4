"""The simulations of a plan, in as many processes as there are cores: rates are found, weights are
fitted, and each policy is simulated at each load with each seed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from functools import partial
from itertools import product
from math import sqrt
from statistics import fmean
from typing import TypeVar

import msgspec
import numpy as np

from inferway_bench.policies.catalog import BEST_WEIGHTED, OURS, POLICIES, policy_named
from inferway_bench.policies.configured import Weights, grid, weighted
from inferway_bench.policies.requests import Outcome, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnCountedStep
from inferway_bench.rows import Row
from inferway_bench.simulate.plan import Setting, SimulatePlan

_WARM_UP_OF_FIT = 0.2
_SEARCHED = 2  # seeds whose mean TTFT is to double, and more where they have few requests:
_SEARCHED_REQUESTS = 1_600
_MOST_SEARCHED = 20_000  # requests of a seed, or so many for each engine:
_MOST_EACH = 25
_IDLE_GAP = 60.0  # seconds between requests that hardly ever meet
_MOST_STEPS = 50
_FIRST = 0.01  # requests a second for each engine, from which on the search goes up

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Rates(msgspec.Struct, frozen=True):
    """A workload, and how fast its requests come to the first of the fleets."""

    workload: str
    cache: int
    about: str
    requests: int
    block_tokens: int
    idle_ttft: float | None  # ms, round-robin's mean when requests hardly ever meet
    rate: float  # requests/s at which it is twice that, as given, or the trace's own
    weights: dict[float, Weights] = {}  # load -> the best on the first half


class Task(msgspec.Struct, frozen=True):
    """One simulation."""

    plan: SimulatePlan
    setting: Setting
    load: float
    policy: str
    seed: int
    rate: float
    weights: Weights | None = None
    is_fit: bool = False  # of the first half


class Figures(msgspec.Struct, frozen=True):
    """What one simulation has found, of the requests that count; times in ms, shares in %."""

    ttft: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    itl: float
    cached: float
    cpu_seconds: float  # of the simulation
    cpu_us: float  # of each request


def simulated(plan: SimulatePlan, on_step: OnCountedStep) -> tuple[list[Rates], list[Row]]:
    """Return the workloads with their rates, and a row for each case. Raises BenchError when a
    policy, a trace or a constant is not known."""
    plan = SimulatePlan(
        **msgspec.structs.asdict(plan)
    )  # a preset is no class that processes can import
    names = plan.policy or tuple(POLICIES)
    for name in names:
        policy_named(name)
    for setting in plan.settings():
        plan.workload(setting.workload, 1)  # an error is told before processes are started
    pool = _pool(plan.num_processes) if plan.num_processes > 1 else None
    with pool or nullcontext():
        work = _Work(plan, pool, on_step)
        rates = work.rates()
        if BEST_WEIGHTED in names:
            rates = work.fitted(rates)
        return rates, work.rows(rates, names)


def _pool(processes: int) -> ProcessPoolExecutor:
    # Not forked: a progress display has a thread.
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


class _Work:
    """Hands tasks to processes, and puts together what comes back."""

    def __init__(
        self, plan: SimulatePlan, pool: ProcessPoolExecutor | None, on_step: OnCountedStep
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._on_step = on_step

    def rates(self) -> list[Rates]:
        """Return each workload once, with its rate."""
        firsts = {setting[:2]: setting for setting in reversed(self._plan.settings())}
        settings = list(reversed(firsts.values()))
        return self._all(partial(find_rate, self._plan), settings, "finding rates")

    def fitted(self, rates: Sequence[Rates]) -> list[Rates]:
        """Return them with the best weights at each load."""
        plan = self._plan
        cases = [(one, load) for one in rates for load in plan.load]
        tasks = [self._fit(*case, w, 1) for case in cases for w in grid(plan.weights)]
        first = self._tried(tasks, "fitting weights")
        finals = [
            self._fit(one, load, weights, seed)
            for one, load in cases
            for weights in _ranked(first, one, load)[: plan.finalists]
            for seed in range(1, plan.seeds + 1)
        ]
        tried = self._tried(finals, "fitting weights: finals")
        return [
            msgspec.structs.replace(
                one, weights={load: _ranked(tried, one, load)[0] for load in plan.load}
            )
            for one in rates
        ]

    def _fit(self, one: Rates, load: float, weights: Weights, seed: int) -> Task:
        plan = self._plan
        setting = Setting(one.workload, one.cache, plan.engines[0], plan.fit_gateways)
        rate = one.rate * load
        return Task(plan, setting, load, BEST_WEIGHTED, seed, rate, weights, is_fit=True)

    def _tried(self, tasks: Sequence[Task], what: str) -> list[tuple[Task, float]]:
        """With their mean TTFT."""
        found = self._all(perform, tasks, what)
        return [(task, one.ttft) for task, one in zip(tasks, found, strict=True)]

    def rows(self, rates: Sequence[Rates], names: Sequence[str]) -> list[Row]:
        """Return a row for each policy at each load, with the figures of all seeds."""
        tasks = sorted(self._tasks(rates, names), key=lambda task: task.seed)  # kept workloads
        by_case: dict[tuple[Setting, float, str], list[tuple[Task, Figures]]] = {}
        for task, found in zip(tasks, self._all(perform, tasks, "simulating"), strict=True):
            by_case.setdefault((task.setting, task.load, task.policy), []).append((task, found))
        cases = [(task.setting, task.load, task.policy) for task in self._tasks(rates, names)]
        rows = [self._row(by_case[case]) for case in dict.fromkeys(cases)]
        curve = [_point(row) for row in rows if row.keys["gateways"] == self._plan.gateways[0]]
        judged = [row for row in rows if row.table == "simulations"]
        return [*judged, *(curve if self._plan.curve else [])]

    def _tasks(self, rates: Sequence[Rates], names: Sequence[str]) -> Iterator[Task]:
        plan = self._plan
        by_workload = {(one.workload, one.cache): one for one in rates}
        for setting in plan.settings():
            one = by_workload[setting[:2]]
            curve = plan.curve if setting.gateways == plan.gateways[0] else ()
            for load, name in product((*(plan.load or (1.0,)), *curve), names):
                rate = one.rate * load * setting.engines / plan.engines[0]
                weights = _weights(one, load) if name == BEST_WEIGHTED else None
                for seed in range(1, 1 + (1 if load in curve else plan.seeds)):
                    yield Task(plan, setting, load, name, seed, rate, weights)

    def _row(self, found: Sequence[tuple[Task, Figures]]) -> Row:
        task = found[0][0]
        keys = {
            "setting": self._plan.label(task.setting), **task.setting._asdict(),
            "load": f"{task.load:.0%}" if self._plan.load else "the given load",
            "policy": task.policy,
        }  # fmt: skip
        values = {
            name: [getattr(figures, name) for _, figures in found]
            for name in Figures.__struct_fields__
        }
        table = "curve" if task.load in self._plan.curve else "simulations"
        return Row(table, keys, {"rate": task.rate, **values}, is_ours=task.policy == OURS)

    def _all(self, function: Callable[[_In], _Out], given: Sequence[_In], what: str) -> list[_Out]:
        """In the order of what is given."""
        total = len(given)
        if self._pool is None:
            found: list[_Out] = []
            for one in given:
                self._on_step(f"{what}: {len(found):,} of {total:,} simulations", len(found), total)
                found.append(function(one))
            return found
        futures = [self._pool.submit(function, one) for one in given]
        try:
            self._on_step(f"{what}: 0 of {total:,} simulations", 0, total)
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                self._on_step(f"{what}: {done:,} of {total:,} simulations", done, total)
        except BaseException:
            self._pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _point(row: Row) -> Row:
    values = {name: fmean(row.repeats(name)) for name in ("rate", "ttft", "cached")}
    return Row("curve", row.keys, values, row.is_ours)


def _ranked(tried: Sequence[tuple[Task, float]], one: Rates, load: float) -> list[Weights]:
    """By the mean over all seeds, the best first."""
    means: dict[Weights, list[float]] = {}
    for task, ttft in tried:
        where = (task.setting.workload, task.setting.cache, task.load)
        if where == (one.workload, one.cache, load) and task.weights is not None:
            means.setdefault(task.weights, []).append(ttft)
    return sorted(means, key=lambda weights: (fmean(means[weights]), weights))


def _weights(one: Rates, load: float) -> Weights:
    """At a load that was not fitted, those of the nearest that was."""
    return one.weights[min(one.weights, key=lambda fitted: abs(fitted - load))]


def perform(task: Task) -> Figures:
    """Simulate a task in a process of the pool."""
    plan, warm_up = task.plan, task.plan.warm_up
    workload = plan.workload(task.setting.workload, task.seed)
    if task.is_fit:
        workload, warm_up = workload.part(len(workload.requests) // 2), _WARM_UP_OF_FIT
    make = policy_named(task.policy) if task.weights is None else weighted(task.weights)
    outcome = simulate(workload, task.rate, plan.fleet(task.setting), make, task.seed)
    return figures(workload, outcome, task.rate, warm_up)


def figures(workload: Workload, outcome: Outcome, rate: float, warm_up: float) -> Figures:
    """Return what a run has found of the requests that arrive behind its first `warm_up`, as a
    share, and before its end."""
    end = len(workload.requests) / rate * (1 + 1e-9)  # the last one's time has been rounded
    judged = np.flatnonzero((outcome.arrived >= warm_up * end) & (outcome.arrived <= end))
    prompt = workload.columns.prompt_tokens[judged]
    gaps = workload.columns.output_tokens[judged] - 1
    ttft = outcome.ttft[judged]
    p50, p90, p99 = np.percentile(ttft, (50, 90, 99)) * 1e3
    decoded = outcome.latency[judged] - ttft
    return Figures(
        ttft=float(ttft.mean()) * 1e3,
        ttft_p50=float(p50),
        ttft_p90=float(p90),
        ttft_p99=float(p99),
        itl=float(decoded.sum() / max(1, gaps.sum())) * 1e3,
        cached=float(outcome.cached_tokens[judged].sum() / prompt.sum()) * 100,
        cpu_seconds=outcome.cpu_seconds,
        cpu_us=outcome.cpu_seconds / len(workload.requests) * 1e6,
    )


def find_rate(plan: SimulatePlan, setting: Setting) -> Rates:
    """Return how fast the requests of a workload come, in a process of the pool: the rate that is
    given, the trace's own, or (for loads) the one at which round-robin's mean TTFT doubles."""
    workload = plan.workload(setting.workload, 1)
    rate, idle = plan.rate or workload.own_rate, None
    if plan.load and plan.rate is None:
        most = max(_MOST_SEARCHED, _MOST_EACH * setting.engines)
        num_seeds = max(_SEARCHED, _SEARCHED_REQUESTS // len(workload.requests))
        searched = [
            plan.workload(setting.workload, seed).part(most)
            for seed in range(1, min(num_seeds, plan.seeds) + 1)
        ]
        fleet = plan.fleet(setting)
        idle, rate = doubling_rate(searched, fleet, plan.bisections, plan.warm_up)
    return Rates(
        workload=setting.workload,
        cache=setting.cache,
        about=workload.about,
        requests=len(workload.requests),
        block_tokens=workload.block_tokens,
        idle_ttft=idle,
        rate=rate,
    )


def doubling_rate(
    workloads: Sequence[Workload],
    fleet: FleetSpec,
    bisections: int,
    warm_up: float = 0.0,
) -> tuple[float, float]:
    """Return round-robin's mean TTFT on an idle fleet, in ms, and the rate at which it is twice
    that, in requests a second; the means are those over `workloads`, and the number of each is its
    seed. Raises BenchError when it does not double."""
    round_robin = policy_named("round-robin")

    def ttft(rate: float) -> float:
        return fmean(
            figures(
                workload, simulate(workload, rate, fleet, round_robin, seed), rate, warm_up
            ).ttft
            for seed, workload in enumerate(workloads, start=1)
        )

    idle = ttft(1 / _IDLE_GAP)
    low = high = _FIRST * fleet.num_engines
    for _ in range(_MOST_STEPS):
        if ttft(high) >= 2 * idle:
            break
        low, high = high, high * 1.5
    else:
        raise BenchError(
            f"round-robin's mean TTFT, {idle:,.0f} ms, does not double with any rate; the "
            "cure: more requests, or --rate"
        )
    for _ in range(bisections):
        middle = sqrt(low * high)
        low, high = (middle, high) if ttft(middle) < 2 * idle else (low, middle)
    return idle, low
