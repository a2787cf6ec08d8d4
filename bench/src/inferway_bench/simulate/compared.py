"""The same chats over HTTP and simulated, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec
import numpy as np

from inferway_bench.loading.samples import Sample
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.requests import Outcome, Workload
from inferway_bench.policies.simple import Divided
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError

# Of engines whose times scatter, a run is one of many that could have been: ours reuses 1.5 points
# more or less from one to the next.
DRAWS = 16
_NEXT_DRAW = 10_000  # seeds


@dataclass(frozen=True, slots=True)
class Sent:
    """One seed's chats, answered through one router."""

    router: str
    policy: str  # that simulates it
    seed: int
    samples: Sequence[Sample]
    workload: Workload  # the same as a simulation gets them
    rows: Mapping[int, int] | None = None  # where each session was, if the policy goes by that

    def __post_init__(self) -> None:
        """Raises BenchError when requests failed: then a simulation has others."""
        failed = [sample for sample in self.samples if not sample.ok]
        if failed or len(self.samples) != len(self.workload.requests):
            said = failed[0].detail or failed[0].error if failed else "some were not sent"
            raise BenchError(
                f"{self.router}: {len(failed)} of {len(self.samples)} requests failed: {said}"
            )

    @property
    def ttft(self) -> float:
        """Seconds, mean."""
        return float(np.mean([sample.ttft for sample in self.samples]))

    def simulated(self, fleet: FleetSpec) -> list[Outcome]:
        """More than one where times scatter."""
        rows, named, work = self.rows, policy_named(self.policy), self.workload
        make = named if rows is None else lambda _: Policy(Divided(rows))
        seeds = range(self.seed, self.seed + _NEXT_DRAW * DRAWS, _NEXT_DRAW)
        return [
            simulate(work, work.own_rate, fleet, make, seed)
            for seed in (seeds if fleet.engine.scatter else seeds[:1])
        ]

    def simulated_ttft(self, fleet: FleetSpec) -> float:
        """Seconds, mean."""
        return fmean(float(outcome.ttft.mean()) for outcome in self.simulated(fleet))


class Compared(msgspec.Struct, frozen=True):
    """One load carried by one router, and the same simulated."""

    router: str
    policy: str
    seed: int
    requests: int  # that were answered
    rate: float
    ttft: float  # seconds, mean, over HTTP
    simulated_ttft: float
    ttft_p90: float
    simulated_ttft_p90: float
    cached_share: float  # as the engines' answers say
    simulated_cached_share: float
    token_seconds: float
    simulated_token_seconds: float
    apart_ttft: float | None = None  # simulated with engines that do not slow each other

    @property
    def ttft_error(self) -> float:
        """Of the simulation, as a share of what was measured."""
        return self.simulated_ttft / self.ttft - 1

    @property
    def cached_points(self) -> float:
        """By how many points the simulation is off."""
        return (self.simulated_cached_share - self.cached_share) * 100


def compared(sent: Sent, fleet: FleetSpec) -> Compared:
    samples, workload = sent.samples, sent.workload
    outcomes = sent.simulated(fleet)
    ttft = np.concatenate([outcome.ttft for outcome in outcomes])
    apart = None
    if fleet.engine.beside != 1.0:
        apart = sent.simulated_ttft(fleet.with_beside(1.0))
    return Compared(
        router=sent.router,
        policy=sent.policy,
        seed=sent.seed,
        requests=len(samples),
        rate=round(workload.own_rate, 3),
        ttft=sent.ttft,
        simulated_ttft=float(ttft.mean()),
        ttft_p90=float(np.percentile([sample.ttft for sample in samples], 90)),
        simulated_ttft_p90=float(np.percentile(ttft, 90)),
        cached_share=sum(s.cached_tokens or 0 for s in samples)
        / sum(s.prompt_tokens or 0 for s in samples),
        simulated_cached_share=fmean(one.cached_share(workload) for one in outcomes),
        token_seconds=float(np.mean([s.itl for s in samples if s.itl is not None])),
        simulated_token_seconds=fmean(one.token_seconds(workload) for one in outcomes),
        apart_ttft=apart,
    )
