"""`inferway bench policies-hybrid`: how much it gains that the index knows all groups of KV caches
of engines with hybrid models, and not full attention alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated

import msgspec
import numpy as np

from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.policies.catalog import OURS, policy_named
from inferway_bench.policies.groups import HybridSpec
from inferway_bench.policies.requests import Outcome, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Row, Run, Value
from inferway_bench.simulate.plan import Setting, SimulatePlan
from inferway_bench.simulate.processes import Processes
from inferway_bench.spread import mean_interval

FULL_ALONE, ALL_GROUPS = "full attention", "all groups"
_RULES = {FULL_ALONE: False, ALL_GROUPS: True}  # whether the index knows the groups


class HybridPlan(msgspec.Struct, frozen=True):
    """Which engines are simulated, and what they are asked."""

    trace: Annotated[
        str, flag("Replay this file, or a trace of bench simulate.", metavar="FILE")
    ] = "mooncake"
    kv_groups: Annotated[
        tuple[str, ...],
        flag(
            "Give engines these groups of KV caches, as --kv-groups of inferway simulate takes "
            "them; with +eagle or +mtp behind them the last block of a hit is computed again.",
            metavar="GROUPS",
        ),
    ] = ("full,mamba:align", "full,mamba:align+eagle")
    engines: Annotated[int, flag("Simulate this number of engines.", ge=1)] = 8
    policy: Annotated[str, flag("Choose engines by this policy.", metavar="NAME")] = OURS
    # At this rate round-robin's mean TTFT doubles on eight engines with one group (kv-transfer).
    rate: Annotated[
        float, flag("Let loads be shares of this rate, in requests a second.", gt=0)
    ] = 4.4
    load: Annotated[
        tuple[float, ...],
        flag("Send requests at this share of the rate.", metavar="SHARE", gt=0),
    ] = (0.5, 0.9)
    requests: Annotated[int, flag("Simulate this number of requests.", ge=1)] = 1_500
    seeds: Annotated[int, flag("Simulate this number of seeds.", ge=1)] = 5
    processes: Annotated[
        int | None, flag("Simulate in this number of processes at a time.", ge=1)
    ] = None
    warm_up: float = 0.5

    @property
    def simulated(self) -> SimulatePlan:
        """The same as a plan of `bench simulate`."""
        return SimulatePlan(
            trace=(self.trace,),
            engines=(self.engines,),
            requests=self.requests,
            processes=self.processes,
            seeds=self.seeds,
        )

    @property
    def setting(self) -> Setting:
        """The trace on the fleet."""
        return Setting(self.trace, self.engines, 1)

    def fleet(self, groups: str, rule: str) -> FleetSpec:
        """Return the fleet whose engines have these groups."""
        words, _, speculation = groups.partition("+")
        hybrid = HybridSpec(words, speculation or "none", _RULES[rule])
        return msgspec.structs.replace(self.simulated.fleet(self.setting), hybrid=hybrid)


class HybridTask(msgspec.Struct, frozen=True):
    """One simulation."""

    plan: HybridPlan
    groups: str
    load: float
    rate: float
    rule: str
    seed: int


class HybridFigures(msgspec.Struct, frozen=True):
    """The figures of a run's requests that count: times in ms, shares in %, tokens of the mean
    prompt."""

    ttft_p50: float
    ttft_p90: float
    cached: float
    computed: float  # tokens
    overestimated: float  # requests of which more was believed to be reusable than was reused
    excess: float  # tokens that were believed to be reusable, and were not


def measure(plan: HybridPlan, on_step: OnStep) -> Findings:
    """Simulate the plan. Raises BenchError when the trace, the policy or a group is not known."""
    policy_named(plan.policy)
    simulated = plan.simulated
    workload = simulated.workload(plan.trace, 1)
    size = workload.block_tokens
    for groups in plan.kv_groups:
        fleet = plan.fleet(groups, ALL_GROUPS)
        assert fleet.hybrid is not None
        fleet.hybrid.kv_groups(size, fleet.engine.max_batched_tokens)
    processes = Processes(simulated.num_processes, on_step)
    cases = list(product(plan.kv_groups, plan.load))
    seeds = list(simulated.all_seeds)
    tasks = [
        HybridTask(plan, groups, load, plan.rate * load, rule, seed)
        for seed, (groups, load), rule in product(seeds, cases, _RULES)
    ]
    found = dict(zip(tasks, processes.map(perform, tasks, "simulating"), strict=True))
    about = [
        f"- {simulated.fleet(plan.setting).about}",
        f"- The blocks of all groups have {size} tokens and share the cache. With +eagle a draft "
        "model has the last block of a hit computed again. Engines hold, evict and reuse as vLLM "
        "0.32 does (`inferway simulate --kv-groups`).",
        f"- One gateway has the policy {plan.policy}. Its index believes that an engine reuses the "
        f"prefix that its {FULL_ALONE} holds, or what {ALL_GROUPS} allow.",
        f"- The requests are {plan.requests:,} of {plan.trace}: {workload.about}.",
        f"- Loads are shares of {plan.rate:g} requests a second. Requests that arrive in the first "
        f"{plan.warm_up:.0%} of a run do not count.",
    ]
    return Findings(rows=list(_rows(cases, found)), about=about, seeds=seeds)


def perform(task: HybridTask) -> HybridFigures:
    """Simulate a task in a process of the pool."""
    plan = task.plan
    workload = plan.simulated.workload(plan.trace, task.seed)
    fleet, make = plan.fleet(task.groups, task.rule), policy_named(plan.policy)
    outcome = simulate(workload, task.rate, fleet, make, task.seed)
    return figures(outcome, workload, task.rate, plan.warm_up)


def figures(outcome: Outcome, workload: Workload, rate: float, warm_up: float) -> HybridFigures:
    """Return the figures of the requests that are judged."""
    judged = outcome.judged(workload, rate, warm_up)
    prompt = workload.columns.prompt_tokens[judged]
    cached, believed = outcome.cached_tokens[judged], outcome.believed_tokens[judged]
    p50, p90 = np.percentile(outcome.ttft[judged], (50, 90)) * 1e3
    return HybridFigures(
        ttft_p50=float(p50),
        ttft_p90=float(p90),
        cached=float(cached.sum() / prompt.sum()) * 100,
        computed=float((prompt - cached).mean()),
        overestimated=float((believed > cached).mean()) * 100,
        excess=float(np.maximum(believed - cached, 0).mean()),
    )


def _rows(
    cases: Sequence[tuple[str, float]], found: Mapping[HybridTask, HybridFigures]
) -> Iterator[Row]:
    for groups, load in cases:
        values: dict[str, dict[str, list[float]]] = {}
        for rule in _RULES:
            mine = [
                one
                for task, one in found.items()
                if (task.groups, task.load, task.rule) == (groups, load, rule)
            ]
            values[rule] = {
                name: [getattr(one, name) for one in mine]
                for name in HybridFigures.__struct_fields__
            }
        for rule, figures in values.items():
            keys = {"groups": groups, "load": f"{load:.0%}", "index": rule}
            more = _compared(values) if rule == ALL_GROUPS else {}
            yield Row("hybrid", keys, {**figures, "share": load * 100, **more}, rule == ALL_GROUPS)


def _compared(values: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Value]:
    """The figures of all groups beside those of full attention alone, seed by seed."""
    pairs = {
        name: list(zip(values[ALL_GROUPS][name], values[FULL_ALONE][name], strict=True))
        for name in ("cached", "computed", "ttft_p50", "ttft_p90")
    }
    ratios: dict[str, Value] = {
        f"{name}_ratio": mean_interval([ours / theirs for ours, theirs in pairs[name]])
        for name in ("computed", "ttft_p50", "ttft_p90")
    }
    points = mean_interval([ours - theirs for ours, theirs in pairs["cached"]])
    return {"cached_difference": points, **ratios}


def losses(run: Run) -> list[str]:
    """Return where the index that knows all groups is behind, beyond chance."""
    found = []
    for row in run.select("hybrid", index=ALL_GROUPS):
        for name, said in (("ttft_p50", "p50 TTFT"), ("ttft_p90", "p90 TTFT")):
            times = row.interval(f"{name}_ratio")
            if times.low > 1:
                found.append(
                    "{groups}, load: {load}".format_map(row.keys)
                    + f": the {said} of {ALL_GROUPS} is {times.shown('{:.3f}')} times that of "
                    f"{FULL_ALONE}"
                )
    return found


_PLOT = Plot(
    "hybrid", (), x="share", by="index", x_label="load, %", title="{groups}", mean=True
)  # fmt: skip

HYBRID = Benchmark(
    "policies-hybrid",
    "Simulate engines of hybrid models behind an index that knows all groups of their KV caches, "
    "and behind one that knows full attention alone, in virtual time.",
    HybridPlan,
    measure,
    [
        Table(
            "hybrid",
            "**{groups}**: the share of prompt tokens that came from a cache; tokens of the mean "
            "prompt that were computed; TTFT in ms; the share of requests whose reuse the index "
            "overestimated, and by how many tokens of the mean prompt. The last columns compare "
            f"{ALL_GROUPS} with {FULL_ALONE}: the mean of the seeds' differences and ratios (95 %)",
            ["load", "index"],
            [
                Column("cached", "cached", "{:.1f}%", "mean alone", "higher", "%"),
                Column("computed", "computed", "{:,.0f}", "mean alone", "lower", "tokens"),
                Column("ttft_p50", "p50", "{:,.0f}", "mean alone", "lower", "ms"),
                Column("ttft_p90", "p90", "{:,.0f}", "mean alone", "lower", "ms"),
                Column("overestimated", "overestimated", "{:.1f}%", "mean alone"),
                Column("excess", "excess", "{:,.0f}", "mean alone"),
                Column("cached_difference", "cached, points", "{:+.1f}"),
                Column("computed_ratio", "computed, ratio", "{:.3f}"),
                Column("ttft_p50_ratio", "p50, ratio", "{:.3f}"),
                Column("ttft_p90_ratio", "p90, ratio", "{:.3f}"),
            ],
            split=("groups",),
        ),
    ],
    Chart(
        "Engines of hybrid models in virtual time",
        (
            replace(_PLOT, y=("cached",), y_label="prompt tokens from a cache, %"),
            replace(_PLOT, y=("ttft_p50",), y_label="p50 TTFT, ms"),
            replace(_PLOT, y=("ttft_p90",), y_label="p90 TTFT, ms"),
        ),
        split=("groups",),
    ),
    quick={"requests": 500, "load": (0.5,), "seeds": 2},
    losses=losses,
    question="how much it gains that the index knows all groups of KV caches of hybrid models",
    takes="6 minutes",
    times="virtual",
)  # fmt: skip
policies_hybrid = HYBRID.command()
