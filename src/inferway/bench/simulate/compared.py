"""The same chats over HTTP and simulated, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from inferway.bench.loading.samples import Sample
from inferway.bench.policies.catalog import policy_named
from inferway.bench.policies.requests import Workload
from inferway.bench.policies.simulate import FleetSpec, simulate
from inferway.bench.processes import BenchError


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


def compared(
    router: str,
    policy: str,
    seed: int,
    samples: Sequence[Sample],
    workload: Workload,
    fleet: FleetSpec,
) -> Compared:
    """Raises BenchError when requests failed: then they are not the same."""
    failed = [sample for sample in samples if not sample.ok]
    if failed or len(samples) != len(workload.requests):
        said = failed[0].detail or failed[0].error if failed else "some were not sent"
        raise BenchError(f"{router}: {len(failed)} of {len(samples)} requests failed: {said}")
    outcome = simulate(workload, workload.own_rate, fleet, policy_named(policy), seed)
    apart = None
    if fleet.engine.beside != 1.0:
        engine = msgspec.structs.replace(fleet.engine, beside=1.0)
        alone = msgspec.structs.replace(fleet, engine=engine)
        apart = simulate(workload, workload.own_rate, alone, policy_named(policy), seed)
    ttft = np.array([sample.ttft for sample in samples], float)
    return Compared(
        router=router,
        policy=policy,
        seed=seed,
        requests=len(samples),
        rate=round(workload.own_rate, 3),
        ttft=float(ttft.mean()),
        simulated_ttft=float(outcome.ttft.mean()),
        ttft_p90=float(np.percentile(ttft, 90)),
        simulated_ttft_p90=float(np.percentile(outcome.ttft, 90)),
        cached_share=sum(s.cached_tokens or 0 for s in samples)
        / sum(s.prompt_tokens or 0 for s in samples),
        simulated_cached_share=outcome.cached_share(workload),
        token_seconds=float(np.mean([s.itl for s in samples if s.itl is not None])),
        simulated_token_seconds=outcome.token_seconds(workload),
        apart_ttft=None if apart is None else float(apart.ttft.mean()),
    )
