"""Plan and run of simulations, in as many processes as there are cores: rates are found, and each
policy is simulated at each load with each seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache, partial
from itertools import product
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from inferway_bench.flags import data_flag, default_data_dir, flag
from inferway_bench.policies.bound import bound
from inferway_bench.policies.catalog import (
    HELD,
    LEARNED,
    ORACLE,
    OURS,
    POLICIES,
    alone,
    policy_named,
)
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.groups import HybridSpec
from inferway_bench.policies.outcome import Figures, Limits
from inferway_bench.policies.requests import (
    FILES,
    ChatSpec,
    SmgSpec,
    Workload,
    chats,
    read_trace,
    repeated,
    smg,
    stored,
)
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError, OnStep
from inferway_bench.rows import Key, Row

_SEARCHED = 2  # seeds whose mean TTFT is to double, and more where they have few requests:
_SEARCHED_REQUESTS = 1_600
_MOST_SEARCHED = 20_000  # requests of a seed, or so many for each engine:
_MOST_EACH = 25
_IDLE_GAP = 60.0  # seconds between requests that hardly ever meet
_FIRST = 0.01  # requests a second for each engine, from which on the search goes up
_MOST_STEPS = 50
_GOOD = 0.9

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Processes:
    """A pool of processes that compute side by side; a single one is this process."""

    def __init__(self, number: int, on_step: OnStep) -> None:
        self._number = number
        self._on_step = on_step

    def map(self, function: Callable[[_In], _Out], given: Sequence[_In], what: str) -> list[_Out]:
        """Return what the function makes of each, in their order."""
        if self._number == 1:
            return [function(one) for one in self._told(given, what, len(given))]
        # Each has one core: threads of its matrix products would only wait for each other.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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
    """A simulation of one policy at one rate."""

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
    first = (plan.engines[0], plan.gateways[0], plan.slow[0])
    firsts = [Setting(trace, *first) for trace in plan.trace]
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
        is_ours = alone(policy) in (OURS, LEARNED, HELD)
        yield Row("simulations", keys, {"rate": seeds[0].rate, **values}, is_ours)


def perform(task: Task) -> Figures:
    """Simulate a task in a process of the pool."""
    plan, setting = task.plan, task.setting
    workload, fleet = plan.workload(setting.trace, task.seed), plan.fleet(setting)
    outcome = simulate(workload, task.rate, fleet, policy_named(task.policy), task.seed)
    figures = outcome.figures(workload, task.rate, plan.warm_up)
    if not plan.capacity:
        return figures
    since = plan.warm_up * len(workload.requests) / task.rate
    least, most = bound(workload, fleet, outcome, since)
    return msgspec.structs.replace(figures, least_ttft=least * 1e3, most_good_rate=most)


def find_rate(plan: SimulatePlan, setting: Setting) -> Row:
    """Return how fast the requests of a trace come, in a process of the pool: the rate that is
    given, the trace's own, or (for loads) the one that they are shares of."""
    workload = plan.workload(setting.trace, 1)
    rate, idle, fleet = plan.rate or workload.own_rate, None, plan.fleet(setting)
    if plan.load and plan.rate is None:
        most = max(_MOST_SEARCHED, _MOST_EACH * setting.engines)
        num_seeds = max(_SEARCHED, _SEARCHED_REQUESTS // len(workload.requests))
        searched = [
            plan.workload(setting.trace, seed).part(most) for seed in plan.all_seeds[:num_seeds]
        ]
        idle, rate = _rate_of_one(searched, fleet, plan)
    values = {
        "cache": fleet.engine.cache_tokens,
        "requests": len(workload.requests),
        "idle_ttft": idle,
        "rate": rate,
        "about": f"{workload.about}; blocks of {workload.block_tokens} tokens",
    }
    return Row("traces", {"trace": setting.trace}, values)


def _rate_of_one(
    workloads: Sequence[Workload], fleet: FleetSpec, plan: SimulatePlan
) -> tuple[float, float]:
    """The mean TTFT on an idle fleet, in ms, and the rate that loads are shares of, in requests a
    second: round-robin's TTFT is twice as long there, or with `plan.capacity` the greedy oracle
    keeps the limits for 90 % of the requests for which an idle fleet does. The means are those over
    `workloads`, and the number of each is its seed."""
    policy = policy_named(ORACLE if plan.capacity else "round-robin")

    def means(rate: float) -> tuple[float, float]:
        figures = [
            simulate(each, rate, fleet, policy, seed).figures(each, rate, plan.warm_up)
            for seed, each in enumerate(workloads, start=1)
        ]
        return fmean([each.ttft for each in figures]), fmean([each.good for each in figures])

    idle, most_good = means(1 / _IDLE_GAP)

    def is_over(rate: float) -> bool:
        ttft, good = means(rate)
        return good < _GOOD * most_good if plan.capacity else ttft >= 2 * idle

    low = high = _FIRST * fleet.num_engines
    for _ in range(_MOST_STEPS):
        if is_over(high):
            break
        low, high = high, high * 1.5
    else:
        raise BenchError(
            f"at {low:g} requests a second the fleet is not full (idle TTFT {idle:,.0f} ms); fix: "
            "more requests, or --rate"
        )
    for _ in range(plan.bisections):
        middle = sqrt(low * high)
        low, high = (low, middle) if is_over(middle) else (middle, high)
    return idle, low


CHATS, SMG = "chats", "smg"
_UNSEEDED = ("mooncake", "azure")  # a seed changes only when their requests arrive
_CONSTANTS = EngineSpec.__struct_fields__
_LARGE = 100_000  # requests; from so many on one process at a time has the memory


class Setting(NamedTuple):
    """A trace on a fleet."""

    trace: str  # as the plan names it
    engines: int
    gateways: int
    slow: int = 0  # engines
    groups: str = ""  # of KV caches, if engines have several

    @property
    def keys(self) -> dict[str, Key]:
        """The setting as a row names it."""
        return {k: v for k, v in self._asdict().items() if v}


class SimulatePlan(msgspec.Struct, frozen=True):
    """The flags of `inferway bench simulate`; other benchmarks have other defaults."""

    # fmt: off
    trace: Annotated[tuple[str, ...], flag(
        "Replay this file, or mooncake, agentic or azure of --data, or chats or smg, which are"
        " generated. FILE@TOKENS gives the engines KV caches of this number of tokens.",
        metavar="FILE",
    )] = (CHATS,)
    engines: Annotated[tuple[int, ...], flag(
        "Simulate a fleet of this number of engines, each with the same load.", ge=1,
    )] = (8,)
    slow: Annotated[tuple[int, ...], flag(
        "Make this number of the engines three times as slow.", ge=0,
    )] = (0,)
    gateways: Annotated[tuple[int, ...], flag(
        "Put this number of gateways before the fleet. Each knows its own requests, unless the"
        " policy has them told.", ge=1,
    )] = (1,)
    kv_groups: Annotated[tuple[str, ...], flag(
        "Give engines these groups of KV caches, as --kv-groups of inferway simulate takes them;"
        " with +eagle or +mtp behind them the last block of a hit is computed again.",
        metavar="GROUPS",
    )] = ()
    policy: Annotated[tuple[str, ...], flag(
        "Simulate this policy, of inferway serve --policy or of a peer. NAME+workers, NAME+load@MS"
        " and NAME+peers@MS have its gateways tell each other what they do.", metavar="NAME",
    )] = ("round-robin", "expected-ttft")
    rate: Annotated[float | None, flag(
        "Send this number of requests a second, instead of the trace's own.", gt=0,
    )] = None
    load: Annotated[tuple[float, ...], flag(
        "Send requests at this share of --rate; without --rate, of the rate at which round-robin's"
        " mean TTFT doubles.", metavar="SHARE", gt=0,
    )] = ()
    seeds: Annotated[int, flag("Simulate this number of seeds.", ge=1)] = 1
    requests: Annotated[int | None, flag(
        "Simulate this number of requests. If the trace has fewer, copies of it run side by side,"
        " each with blocks of its own.", ge=1,
    )] = None
    engine: Annotated[tuple[str, ...], flag(
        f"Set a constant of every engine. The keys are {', '.join(_CONSTANTS)}.",
        metavar="KEY=VALUE",
    )] = ()
    ttft_limit: Annotated[float, flag(
        "Count a request as good if its first token takes so many seconds at most.", gt=0,
    )] = Limits().ttft
    itl_limit: Annotated[float, flag(
        "Count a request as good if the gaps between its tokens take so many seconds on average,"
        " at most.", gt=0,
    )] = Limits().itl
    capacity: bool = False  # loads are shares of the greedy oracle's capacity
    warm_up: Annotated[float, flag(
        "Do not count what arrives in this first share of a run.", ge=0, le=0.9,
    )] = 0.5
    bisections: int = 6  # to find the rate at which round-robin's mean TTFT doubles
    processes: Annotated[int | None, flag(
        "Simulate in this number of processes at a time, instead of one a core; 100,000 requests"
        " or more are simulated in one.", ge=1,
    )] = None
    data: Annotated[Path | None, data_flag("traces")] = None
    # fmt: on

    @property
    def all_seeds(self) -> range:
        """The seeds that are simulated."""
        return range(1, 1 + self.seeds)

    @property
    def num_processes(self) -> int:
        """The number of simulations at a time."""
        usual = 1 if (self.requests or 0) >= _LARGE else os.cpu_count() or 1
        return self.processes or usual

    def settings(self) -> list[Setting]:
        """Return every trace on every fleet."""
        each = (self.trace, self.engines, self.gateways, self.slow, self.kv_groups or ("",))
        return [Setting(*one) for one in product(*each)]

    def fleet(self, setting: Setting) -> FleetSpec:
        """Return the fleet of a setting. Raises BenchError for a constant that does not exist."""
        cache = _split(setting.trace)[1]
        constants: dict[str, Any] = dict(word.partition("=")[::2] for word in self.engine)
        constants |= {"cache_tokens": cache} if cache else {}
        try:
            engine = msgspec.convert(constants, EngineSpec, strict=False)
        except msgspec.ValidationError as e:
            raise BenchError(f"--engine: {e}; the keys are {', '.join(_CONSTANTS)}") from e
        groups, _, speculation = setting.groups.partition("+")
        return FleetSpec(
            setting.engines,
            setting.slow,
            engine=engine,
            num_gateways=setting.gateways,
            hybrid=HybridSpec(groups, speculation or "none") if groups else None,
            limits=Limits(self.ttft_limit, self.itl_limit),
        )

    def workload(self, trace: str, seed: int) -> Workload:
        """Return the requests of a trace; what is drawn is drawn with the seed. Raises BenchError
        when the trace is not there."""
        name = _split(trace)[0]
        traces = (self.data or default_data_dir()) / "traces"
        return _workload(name, 1 if name in _UNSEEDED else seed, self.requests, traces)


def preset(name: str, **defaults: Any) -> type[SimulatePlan]:
    """Return a plan whose fields have other defaults."""
    hints = get_type_hints(SimulatePlan, include_extras=True)
    fields = [(field, hints[field], value) for field, value in defaults.items()]
    made: Any = msgspec.defstruct(name, fields, bases=(SimulatePlan,), frozen=True)
    kind: type[SimulatePlan] = made
    return kind


def _split(trace: str) -> tuple[str, int | None]:
    """NAME@TOKENS"""
    name, _, tokens = trace.rpartition("@")
    return (name, int(tokens)) if name and tokens.isdecimal() else (trace, None)


@lru_cache(maxsize=16)
def _workload(name: str, seed: int, requests: int | None, traces: Path) -> Workload:
    """A process keeps those that it has made last."""
    if name == SMG:
        return smg(seed, SmgSpec() if requests is None else SmgSpec(num_requests=requests))
    if name == CHATS:
        most = ChatSpec().num_requests
        workload = chats(seed, ChatSpec(num_requests=min(requests or most, most)))
    else:
        is_named = name in FILES and not Path(name).exists()
        workload = read_trace(stored(traces, name) if is_named else Path(name), seed)
    return workload if requests is None else repeated(workload, requests)
