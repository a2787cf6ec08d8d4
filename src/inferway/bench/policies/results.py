"""What a run of `inferway bench policies` found, kept as JSON lines: the head, then a line a
simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferway.bench.machine import Machine
from inferway.bench.policies.catalog import BEST_WEIGHTED, LLM_D, ORACLE, OURS
from inferway.bench.policies.plan import Plan
from inferway.bench.policies.weighted import Weights
from inferway.bench.spread import Interval, mean_interval


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


class Described(msgspec.Struct, frozen=True):
    """A policy."""

    name: str
    about: str
    is_model: bool


class Goal(msgspec.Struct, frozen=True):
    """Something that was asked for, at one load of one workload."""

    workload: str
    gateways: int
    load: float
    what: str
    asked: str
    found: Interval  # a ratio
    is_met: bool
    oracle: Interval | None  # the same ratio, of the oracle


class PoliciesRun(msgspec.Struct, frozen=True):
    """A whole run."""

    machine: Machine
    command: str
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

    def names(self) -> list[str]:
        return [policy.name for policy in self.policies]

    def ttft_ratio(
        self, workload: str, gateways: int, load: float, policy: str, other: str
    ) -> Interval | None:
        """Mean TTFT of `policy` over that of `other`, seed by seed."""
        return self._ratio("ttft", self.select(workload, gateways, load, policy),
                           self.select(workload, gateways, load, other))  # fmt: skip

    def _ratio(self, field: str, over: Sequence[Row], under: Sequence[Row]) -> Interval | None:
        if not over or not under:
            return None
        pairs = zip(over, under, strict=True)
        return mean_interval([getattr(a, field) / getattr(b, field) for a, b in pairs])

    def goals(self) -> list[Goal]:
        """Empty if expected-ttft was not among the policies."""
        found: list[Goal] = []
        for workload in self.workloads:
            for gateways in self.plan.gateways:
                for load in self.plan.loads:
                    found += self._goals_at(workload.name, gateways, load)
        return found

    def _goals_at(self, workload: str, gateways: int, load: float) -> list[Goal]:
        ours = self.select(workload, gateways, load, OURS)
        oracle = self.select(workload, gateways, load, ORACLE)
        asked = [
            ("TTFT / best weighted profile's", "≤ 1.02", BEST_WEIGHTED, "ttft", 1.02),
            ("cached tokens / the oracle's", "≥ 0.95", ORACLE, "cached_share", 0.95),
        ]
        if load >= 0.75:
            what = "TTFT / llm-d's default's"
            asked.insert(1, (what, "≤ 0.75", LLM_D, "ttft", 0.75))
        goals = []
        for what, bar, other, field, limit in asked:
            theirs = self.select(workload, gateways, load, other)
            ratio, best = self._ratio(field, ours, theirs), self._ratio(field, oracle, theirs)
            if ratio is not None:
                met = ratio.value >= limit if field == "cached_share" else ratio.value <= limit
                goals.append(Goal(workload, gateways, load, what, bar, ratio, met, best))
        return goals


def write_lines(run: PoliciesRun) -> str:
    """JSON lines: what was run on what, then a line a simulated run."""
    head: dict[str, Any] = msgspec.to_builtins(run)
    rows = head.pop("rows")
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in (head, *rows))


def read_lines(text: str) -> PoliciesRun:
    """What `write_lines` wrote."""
    head, *rows = (msgspec.json.decode(line) for line in text.splitlines())
    return msgspec.convert({**head, "rows": rows}, PoliciesRun)


def load_run(path: Path) -> PoliciesRun:
    return read_lines(path.read_text())
