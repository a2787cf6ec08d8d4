"""What a run of `inferway bench policies` found, and what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from inferway_bench.policies.catalog import (
    APPROXIMATE,
    BEST_WEIGHTED,
    EVENT_DRIVEN,
    LLM_D,
    ORACLE,
    OURS,
)
from inferway_bench.policies.plan import OTHER_CACHES, Plan
from inferway_bench.policies.weighted import Weights
from inferway_bench.results import Figure, Goal, Run
from inferway_bench.spread import Interval, mean_interval


class Loaded(msgspec.Struct, frozen=True):
    """A workload, and the rates that its loads stand for."""

    name: str
    about: str
    requests: int
    idle_ttft: float  # seconds, round-robin's mean when requests hardly ever meet
    doubling_rate: float  # requests/s at which it is twice that
    weights: dict[str, Weights]  # load -> the best of the grid on the first half


class Row(msgspec.Struct, frozen=True):
    """One simulated run, judged on the requests that arrive in its second half."""

    workload: str
    gateways: int
    load: float
    policy: str
    seed: int
    rate: float
    requests: int  # judged
    ttft: float  # seconds, mean; and the percentiles
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    token_seconds: float  # mean time between two tokens of an answer
    cached_share: float  # of prompt tokens
    slow_share: float  # of requests that went to slow engines
    cpu_seconds: float  # of the simulation
    engines: int = 0  # 0: as many as the plan says (results before 2026-11-22)


class Described(msgspec.Struct, frozen=True):
    """A policy."""

    name: str
    about: str
    is_model: bool


class LoadGoal(msgspec.Struct, frozen=True):
    """Something that was asked for, at one load of one workload."""

    workload: str
    gateways: int
    load: float
    what: str
    asked: str
    found: Interval  # a ratio
    is_met: bool
    oracle: Interval | None  # the same ratio, of the oracle
    other: str | None = None  # beside whom, where it is the best of several


class PoliciesRun(Run, frozen=True):
    """A whole run."""

    plan: Plan
    policies: list[Described]
    workloads: list[Loaded]
    rows: list[Row]
    kept: str = ""  # of policies that were not simulated again: when, and at which commit

    def select(self, workload: str, gateways: int, load: float, policy: str) -> list[Row]:
        """By seed."""
        rows = (r for r in self.rows if (r.workload, r.gateways) == (workload, gateways))
        found = [r for r in rows if (r.load, r.policy) == (load, policy)]
        return sorted(found, key=lambda row: row.seed)

    def loads(self, workload: str, gateways: int) -> list[float]:
        """Those of the plan that were simulated so, with all seeds."""
        first = self.policies[0].name
        return [load for load in self.plan.loads if self.select(workload, gateways, load, first)]

    def names(self) -> list[str]:
        return [policy.name for policy in self.policies]

    def ttft_ratio(
        self, workload: str, gateways: int, load: float, policy: str, other: str
    ) -> Interval | None:
        """Mean TTFT of `policy` over that of `other`, seed by seed."""
        return self._ratio("ttft", self.select(workload, gateways, load, policy),
                           self.select(workload, gateways, load, other))  # fmt: skip

    def p90_ratio(
        self, workload: str, gateways: int, load: float, policy: str, other: str
    ) -> Interval | None:
        """The same of the p90."""
        return self._ratio("ttft_p90", self.select(workload, gateways, load, policy),
                           self.select(workload, gateways, load, other))  # fmt: skip

    def _ratio(self, field: str, over: Sequence[Row], under: Sequence[Row]) -> Interval | None:
        if not over or not under:
            return None
        pairs = zip(over, under, strict=True)
        return mean_interval([getattr(a, field) / getattr(b, field) for a, b in pairs])

    @property
    def seeds(self) -> list[int]:
        return [1 + i for i in range(self.plan.seeds)]

    @property
    def is_virtual(self) -> bool:
        return True

    def goals(self) -> list[Goal]:
        """One for each kind of `load_goals`: how many hold, and the range of what was found."""
        by_kind: dict[tuple[str, str], list[LoadGoal]] = {}
        for goal in self.load_goals():
            by_kind.setdefault((goal.what, goal.asked), []).append(goal)
        found = []
        for (what, asked), goals in by_kind.items():
            ratios = [goal.found.value for goal in goals]
            met = sum(goal.is_met for goal in goals)
            shown = f"{min(ratios):.2f} to {max(ratios):.2f}; {met} of {len(goals)} met"
            found.append(Goal(f"{OURS}: {what}", asked, shown, met == len(goals)))
        return found

    def losses(self) -> list[str]:
        """Policies that the judged one is behind, and by how much."""
        found = []
        judged = [
            (w.name, n, load, other)
            for w in self.workloads
            for n in self.plan.gateways
            for load in self.plan.loads
            for other in self.names()
            if other != OURS
        ]
        for workload, gateways, load, other in judged:
            times = self.ttft_ratio(workload, gateways, load, OURS, other)
            if times is not None and times.low > 1:
                where = f"{workload_named(workload)}, {gateways_named(gateways)}, {load:.0%}"
                found.append(
                    f"{where}: the mean TTFT of {OURS} is {times.shown('{:.3f}')} times that of "
                    f"{'the ' * (other == ORACLE)}{other}"
                )
        return found

    def figures(self) -> list[Figure]:
        by_case: dict[str, list[Row]] = {}
        for row in self.rows:
            case = f"{row.workload}, {row.gateways} gateways, {row.load:.0%}, {row.policy}"
            by_case.setdefault(case, []).append(row)
        return [
            figure
            for case, rows in by_case.items()
            for figure in (
                Figure(f"{case}: mean TTFT", "s", [row.ttft for row in rows]),
                Figure(f"{case}: cached", "", [row.cached_share for row in rows], "higher"),
            )
        ]

    def load_goals(self) -> list[LoadGoal]:
        """Empty if expected-ttft was not among the policies."""
        found: list[LoadGoal] = []
        for workload in self.workloads:
            for gateways in self.plan.gateways:
                for load in self.plan.loads:
                    found += self._goals_at(workload.name, gateways, load)
        return found

    def _goals_at(self, workload: str, gateways: int, load: float) -> list[LoadGoal]:
        if self.plan.asked == "peers":
            return self._beside_peers(workload, gateways, load)
        ours = self.select(workload, gateways, load, OURS)
        oracle = self.select(workload, gateways, load, ORACLE)
        asked = [
            (f"mean TTFT / that of {BEST_WEIGHTED}", "≤ 1.02", BEST_WEIGHTED, "ttft", 1.02),
            (f"cached tokens / those of the {ORACLE}", "≥ 0.95", ORACLE, "cached_share", 0.95),
        ]
        if load >= 0.75:
            what = f"mean TTFT / that of {LLM_D}"
            asked.insert(1, (what, "≤ 0.75", LLM_D, "ttft", 0.75))
        goals = []
        for what, bar, other, field, limit in asked:
            theirs = self.select(workload, gateways, load, other)
            ratio, best = self._ratio(field, ours, theirs), self._ratio(field, oracle, theirs)
            if ratio is not None:
                met = ratio.value >= limit if field == "cached_share" else ratio.value <= limit
                goals.append(LoadGoal(workload, gateways, load, what, bar, ratio, met, best))
        return goals

    def _beside_peers(self, workload: str, gateways: int, load: float) -> list[LoadGoal]:
        """The p90 of the best of each kind of peers, over ours."""
        if workload not in ("mooncake", "agentic") or gateways == 1:
            return []
        ours = self.select(workload, gateways, load, OURS)
        oracle = self.select(workload, gateways, load, ORACLE)
        asked = [
            ("approximate", APPROXIMATE, 1.5),
            ("event-driven", EVENT_DRIVEN, 1.1),
        ]
        goals = []
        for kind, names, limit in asked:
            best = self.best(workload, gateways, load, names)
            theirs = self.select(workload, gateways, load, best) if best else []
            ratio = self._ratio("ttft_p90", theirs, ours)
            if ratio is not None:
                what = f"p90 TTFT of the best {kind} policy / that of {OURS}"
                most = self._ratio("ttft_p90", theirs, oracle)
                bar, met = f"≥ {limit:g}", ratio.value >= limit
                goals.append(LoadGoal(workload, gateways, load, what, bar, ratio, met, most, best))
        return goals

    def best(self, workload: str, gateways: int, load: float, names: Sequence[str]) -> str | None:
        """Of these, the one with the least mean p90; None if none of them was simulated."""
        found = {name: self.select(workload, gateways, load, name) for name in names}
        means = {name: fmean(r.ttft_p90 for r in rows) for name, rows in found.items() if rows}
        return min(means, key=means.__getitem__, default=None)


def gateways_named(number: int) -> str:
    return "one gateway" if number == 1 else f"{number} gateways"


def workload_named(name: str) -> str:
    name, _, tokens = name.partition(OTHER_CACHES)
    return f"{name}, caches of {int(tokens):,} tokens" if tokens else name
