"""The rate at which round-robin's mean time to the first token doubles, in virtual time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from inferway_bench.peers.search import doubling_rate
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec, simulate

_SELDOM = 0.1  # requests under way, about, where they hardly ever meet


def simulated_doubling_rate(
    workloads: Sequence[Workload],
    fleet: FleetSpec,
    bisections: int,
    on_rate: Callable[[float], None] = lambda _: None,
) -> float:
    """Requests a second, by the mean over `workloads`; `on_rate` hears of each rate that is
    tried."""
    tokens = int(fmean(workload.columns.prompt_tokens.mean() for workload in workloads))
    round_robin = policy_named("round-robin")

    def mean_ttft(rate: float) -> float:
        on_rate(rate)
        return fmean(
            float(simulate(workload, rate, fleet, round_robin, seed).ttft.mean())
            for seed, workload in enumerate(workloads)
        )

    return doubling_rate(mean_ttft, _SELDOM / fleet.engine.idle_ttft(tokens), bisections)[1]
