"""`inferway bench policies`, from the traces to the whole run: simulations in as many processes as
there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import msgspec

from inferway_bench.machine import this_machine
from inferway_bench.policies.catalog import BEST_WEIGHTED, ENTRIES, policy_named
from inferway_bench.policies.chats import ChatSpec, chats
from inferway_bench.policies.measured import WARM, command, doubling, row
from inferway_bench.policies.plan import OTHER_CACHES, Plan
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.results import Described, Loaded, PoliciesRun, Row
from inferway_bench.policies.simulate import simulate
from inferway_bench.policies.trace_files import FILES, read_trace, stored
from inferway_bench.policies.weighted import Weights, weighted
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep

_REFERENCE = "round-robin"
_WARM_FIT = 0.2


class Task(msgspec.Struct, frozen=True):
    """One simulation."""

    plan: Plan
    traces: Path
    workload: str
    policy: str
    seed: int
    rate: float
    load: float = 0.0
    gateways: int = 1
    weights: Weights | None = None
    first_half: bool = False  # to fit on


def run_policies(plan: Plan, traces: Path, on_step: OnStep) -> PoliciesRun:
    """Raises BenchError, with the cure, when a trace is not there."""
    machine = this_machine()
    names = _names(plan)
    for workload in plan.workloads:
        _load(plan, traces, workload, 1)  # an error is told before processes are started
    with _pool(plan) as pool:
        work = _Work(plan, traces, pool, on_step)
        loaded = work.rates()
        loaded = work.fitted(loaded) if BEST_WEIGHTED in names else loaded
        rows = work.rows(loaded, names)
    return PoliciesRun(
        machine=machine,
        command=command(),
        plan=msgspec.structs.replace(plan, grid=()),
        policies=_described(names),
        workloads=loaded,
        rows=rows,
    )


def run_more(before: PoliciesRun, plan: Plan, traces: Path, on_step: OnStep) -> PoliciesRun:
    """`before` with the workloads of `plan`, in place of those of their names. All else of the
    plan but loads must be as it was. Raises BenchError."""
    new = msgspec.structs.replace(plan, policies=tuple(before.names()))
    added = run_policies(new, traces, on_step)
    kept = [w for w in before.workloads if w.name not in plan.workloads]
    names = {w.name for w in kept}
    workloads = [*kept, *added.workloads]
    made = f"{before.machine.date} UTC, commit {before.machine.commit}"
    return msgspec.structs.replace(
        added,
        plan=msgspec.structs.replace(
            added.plan,
            workloads=tuple(w.name for w in workloads),
            loads=tuple(sorted({*before.plan.loads, *plan.loads})),
        ),
        workloads=workloads,
        rows=[*(row for row in before.rows if row.workload in names), *added.rows],
        kept=before.kept or f"{', '.join(names)}: {made}",
    )


def run_again(
    before: PoliciesRun,
    policies: Sequence[str],
    traces: Path,
    on_step: OnStep,
    processes: int | None = None,
) -> PoliciesRun:
    """`before`, these policies simulated anew: a run depends on nothing but its code and seeds, so
    what has not changed need not be. Rates and weights are those of before. Raises BenchError."""
    machine = this_machine()
    plan = msgspec.structs.replace(before.plan, processes=processes)
    names = _names(msgspec.structs.replace(plan, policies=tuple(policies)))
    with _pool(plan) as pool:
        rows = _Work(plan, traces, pool, on_step).rows(before.workloads, names)
    known = {*before.names(), *names}
    made = f"{before.machine.date} UTC, commit {before.machine.commit}"
    return msgspec.structs.replace(
        before,
        machine=machine,
        command=command(),
        policies=_described(known),
        rows=[*(row for row in before.rows if row.policy not in names), *rows],
        kept=before.kept or f"{', '.join(n for n in before.names() if n not in names)}: {made}",
    )


def _pool(plan: Plan) -> ProcessPoolExecutor:
    # Not forked: a progress display has a thread.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(plan.processes or os.cpu_count(), mp_context=context)


def _described(names: Collection[str]) -> list[Described]:
    return [Described(e.name, e.about, e.is_model) for e in ENTRIES if e.name in names]


def _names(plan: Plan) -> list[str]:
    known = [entry.name for entry in ENTRIES]
    for name in plan.policies:
        if name not in known:
            raise BenchError(f"no policy {name!r}; known: {', '.join(known)}")
    return [name for name in known if not plan.policies or name in plan.policies]


class _Work:
    """Hands tasks to processes, and puts together what comes back."""

    def __init__(
        self, plan: Plan, traces: Path, pool: ProcessPoolExecutor, on_step: OnStep
    ) -> None:
        self._plan = plan
        self._sent = msgspec.structs.replace(plan, grid=())  # what tasks need of it
        self._traces = traces
        self._pool = pool
        self._on_step = on_step

    def rates(self) -> list[Loaded]:
        """Where round-robin's mean TTFT is twice that of an idle fleet, by workload."""
        found: list[Future[Loaded]] = [
            self._pool.submit(find_rate, self._sent, self._traces, name)
            for name in self._plan.workloads
        ]
        self._on_step("finding the rate at which round-robin's TTFT doubles")
        return [future.result() for future in found]

    def fitted(self, loaded: Sequence[Loaded]) -> list[Loaded]:
        """With the best weights of the grid at each load."""
        plan = self._plan
        cases = [(w, load) for w in loaded for load in plan.loads]
        tasks = [self._fit(w, load, weights, 1) for w, load in cases for weights in plan.grid]
        first = self._tried(tasks, "fitting weights")
        finals = [
            self._fit(w, load, weights, seed)
            for w, load in cases
            for weights in _ranked(first, w, load)[: plan.fit_finalists]
            for seed in range(1, plan.seeds + 1)
        ]
        tried = self._tried(finals, "fitting weights: finals")
        return [
            msgspec.structs.replace(
                w, weights={f"{load:g}": _ranked(tried, w, load)[0] for load in plan.loads}
            )
            for w in loaded
        ]

    def _fit(self, w: Loaded, load: float, weights: Weights, seed: int) -> Task:
        rate = w.doubling_rate * load
        return Task(
            self._sent, self._traces, w.name, BEST_WEIGHTED, seed, rate, load,
            gateways=self._plan.fit_gateways, weights=weights, first_half=True,
        )  # fmt: skip

    def _tried(self, tasks: Sequence[Task], what: str) -> list[tuple[Task, float]]:
        """With their mean TTFT."""
        rows = self._all(tasks, what)
        return [(task, row.ttft) for task, row in zip(tasks, rows, strict=True)]

    def rows(self, loaded: Sequence[Loaded], names: Sequence[str]) -> list[Row]:
        """All policies at all loads."""
        tasks = [task for w in loaded for task in self._tasks(w, names)]
        return self._all(tasks, "policies")

    def _tasks(self, w: Loaded, names: Sequence[str]) -> Iterable[Task]:
        plan = self._plan
        for load in sorted({*plan.loads, *plan.curve}):
            is_judged = load in plan.loads
            many = is_judged and load >= plan.many_gateways_from
            for gateways in plan.gateways if many else plan.gateways[:1]:
                for name in names:
                    weights = _weights(w, load) if name == BEST_WEIGHTED else None
                    for seed in range(1, plan.seeds + 1 if is_judged else 2):
                        rate = w.doubling_rate * load
                        yield Task(
                            self._sent, self._traces, w.name, name, seed, rate, load, gateways,
                            weights,
                        )  # fmt: skip

    def _all(self, tasks: Sequence[Task], what: str) -> list[Row]:
        """In the order of the tasks."""
        futures = {self._pool.submit(perform, task): i for i, task in enumerate(tasks)}
        rows: dict[int, Row] = {}
        try:
            for future in as_completed(futures):
                rows[futures[future]] = future.result()
                self._on_step(f"{what}: {len(rows):,} of {len(tasks):,} simulations")
        except BaseException:
            self._pool.shutdown(cancel_futures=True)
            raise
        return [rows[i] for i in range(len(tasks))]


def _ranked(tried: Sequence[tuple[Task, float]], w: Loaded, load: float) -> list[Weights]:
    """By the mean over all seeds, the best first."""
    means: dict[Weights, list[float]] = {}
    for task, ttft in tried:
        if (task.workload, task.load) == (w.name, load) and task.weights is not None:
            means.setdefault(task.weights, []).append(ttft)
    return sorted(means, key=lambda weights: (fmean(means[weights]), weights))


def _weights(w: Loaded, load: float) -> Weights:
    """At a load that was not fitted, those of the nearest that was."""
    nearest = min(w.weights, key=lambda fitted: abs(float(fitted) - load))
    return w.weights[nearest]


def perform(task: Task) -> Row:
    """In a process of the pool."""
    workload = _load(task.plan, task.traces, task.workload, task.seed)
    fleet = task.plan.fleet_for(task.workload, task.gateways)
    warm = WARM
    if task.first_half:
        workload, warm = _first_half(task.plan, task.traces, task.workload, task.seed), _WARM_FIT
    make = weighted(task.weights) if task.weights is not None else policy_named(task.policy)
    outcome = simulate(workload, task.rate, fleet, make, task.seed)
    found = row(
        workload, outcome, task.rate, policy=task.policy, seed=task.seed, gateways=task.gateways,
        load=task.load, warm=warm,
    )  # fmt: skip
    return msgspec.structs.replace(found, workload=task.workload)  # with its caches, if named


def find_rate(plan: Plan, traces: Path, name: str) -> Loaded:
    """In a process of the pool: by bisection, the mean of two seeds."""
    workload = _load(plan, traces, name, 1)
    seeds = range(1, min(2, plan.seeds) + 1)

    def ttft(rate: float) -> float:
        return fmean(_reference_ttft(plan, traces, name, rate, seed) for seed in seeds)

    idle, low = doubling(ttft, 0.1, plan.bisections)
    return Loaded(name, workload.about, len(workload.requests), idle, low, {})


def _reference_ttft(plan: Plan, traces: Path, name: str, rate: float, seed: int) -> float:
    task = Task(plan, traces, name, _REFERENCE, seed, rate)
    return perform(task).ttft


def _load(plan: Plan, traces: Path, name: str, seed: int) -> Workload:
    """A process keeps those that it has made."""
    name = name.partition(OTHER_CACHES)[0]
    if name == "chats":
        return _chats(seed, plan.chats)
    if name not in FILES:
        raise BenchError(f"no workload {name!r}; known: chats, {', '.join(FILES)}")
    # Of these the seed only changes when requests arrive.
    drawn = 1 if name in ("mooncake", "azure") else seed
    return read_trace(stored(traces, name), drawn, plan.requests or plan.most.get(name))


@lru_cache(maxsize=8)
def _chats(seed: int, spec: ChatSpec) -> Workload:
    return chats(seed, spec)


def _first_half(plan: Plan, traces: Path, name: str, seed: int) -> Workload:
    return _half(_load(plan, traces, name, seed))


@lru_cache(maxsize=8)
def _half(workload: Workload) -> Workload:
    return workload.part(len(workload.requests) // 2)
