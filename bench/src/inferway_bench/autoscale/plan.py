"""What is asked of a fleet that grows and shrinks: traces with the rate of a day, goals, and how
engines come and go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from inferway_bench.flags import data_flag, flag
from inferway_bench.policies.daily import Daily, daily
from inferway_bench.policies.repeated import repeated
from inferway_bench.policies.scaling import Elastic
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.processes import BenchError
from inferway_bench.simulate.plan import Setting, SimulatePlan


class TraceCase(NamedTuple):
    """How a trace is asked of a fleet."""

    copies: float  # times its own requests
    slower: float  # than the usual engine: a larger model
    goal_seconds: float  # to the first token


CASES = {
    "azure": TraceCase(1.0, 8.0, 4.0),
    "mooncake": TraceCase(1.0, 2.0, 8.0),
    "agentic": TraceCase(2.0, 1.0, 10.0),
}


class AutoscalePlan(msgspec.Struct, frozen=True):
    """The flags of `inferway bench autoscale`."""

    # fmt: off
    trace: Annotated[tuple[str, ...], flag(
        "Replay this trace: azure, mooncake or agentic. NAME@TOKENS gives the engines KV caches of"
        " this number of tokens.", metavar="NAME",
    )] = ("azure", "mooncake", "agentic@1048576")
    minutes: Annotated[float, flag("Let a day take this number of minutes.", gt=0)] = 70.0
    warm_up: Annotated[float, flag("Do not count the first minutes.", ge=0)] = 10.0
    requests: Annotated[float, flag("Send this share of the requests.", gt=0, le=1)] = 1.0
    most: Annotated[int, flag("Have at most this number of engines.", ge=2)] = 20
    refine: Annotated[int, flag(
        "Let the oracle try to do without an engine in this number of windows.", ge=0,
    )] = 0
    beside: Annotated[bool, flag(
        "Leave out what is usual: requests in flight for each engine, and a fixed number of them.",
    )] = True
    processes: Annotated[int | None, flag(
        "Simulate this number of traces at a time, instead of one a core.", ge=1,
    )] = None
    data: Annotated[Path | None, data_flag("traces")] = None
    # fmt: on
    share: float = 0.9  # of requests that are to be in time
    depth: float = 0.6  # of the day: the rate goes from 1 - depth to 1 + depth times the mean
    window_seconds: float = 120.0  # for which the oracle chooses a number
    bisections: int = 4
    seed: int = 1

    def setup(self, trace: str) -> Setup:
        """Return what is simulated of a trace. Raises BenchError if it is not known."""
        return _setup(self, trace)


@dataclass(frozen=True, eq=False)
class Setup:
    """A trace, the fleet it is asked of, and what is to be held."""

    trace: str
    workload: Daily
    rate: float
    fleet: FleetSpec
    goal_seconds: float
    elastic: Elastic

    @property
    def seconds(self) -> float:
        return len(self.workload.requests) / self.rate


@lru_cache(maxsize=1)
def _setup(plan: AutoscalePlan, trace: str) -> Setup:
    name = trace.partition("@")[0]
    if name not in CASES:
        raise BenchError(f"--trace {trace!r}: known: {', '.join(CASES)}, and NAME@TOKENS")
    case = CASES[name]
    simulated = SimulatePlan(trace=(trace,), data=plan.data)
    whole = simulated.workload(trace, plan.seed)
    number = max(1, round(len(whole.requests) * case.copies * plan.requests))
    workload = daily(repeated(whole, number), plan.depth)
    fleet = simulated.fleet(Setting(trace, plan.most, 1))
    fleet = msgspec.structs.replace(fleet, engine=fleet.engine.slower(case.slower))
    rate = number / (plan.minutes * 60)
    return Setup(trace, workload, rate, fleet, case.goal_seconds, Elastic(most=plan.most))
