"""What a run of `inferway bench simulate` found."""

from __future__ import annotations

from inferway_bench.policies.results import Row
from inferway_bench.results import Figure, Goal, Run
from inferway_bench.simulate.plan import Plan

_MANY_ENGINES, _MANY_REQUESTS, _SECONDS = 1_000, 1_000_000, 600.0


class SimulateRun(Run, frozen=True):
    """A whole run."""

    plan: Plan
    about: str  # the workload
    requests: int  # of the workload
    block_tokens: int
    memory_gib: float  # the most that the process held
    rows: list[Row]  # judged on the requests that arrive in the second half
    kept: str = ""  # of policies that were simulated before: when, and at which commit

    @property
    def seeds(self) -> list[int]:
        return list(self.plan.seeds)

    @property
    def is_virtual(self) -> bool:
        return True

    def goals(self) -> list[Goal]:
        """How long a large simulation may take, of each policy; the oracle is none."""
        large = min(f.num_engines for f in self.plan.fleets) >= _MANY_ENGINES
        rows = [row for row in self.rows if row.policy != "oracle"]
        if not large or self.requests < _MANY_REQUESTS or not rows:
            return []
        slowest = max(rows, key=lambda row: row.cpu_seconds)
        per_million = slowest.cpu_seconds / self.requests * _MANY_REQUESTS
        return [
            Goal(
                f"simulating {_MANY_REQUESTS:,} requests to {_MANY_ENGINES:,} engines, a policy",
                "≤ 600 s of one core",
                f"{per_million:,.0f} s ({slowest.policy})",
                per_million <= _SECONDS,
            )
        ]

    def figures(self) -> list[Figure]:
        found = []
        for size in self.plan.sizes or (0,):
            for policy in self.policies():
                rows = self.select(policy, size)
                name = f"{policy}, {size:,} engines" if size else policy
                found += [
                    Figure(f"{name}: mean TTFT", "s", [row.ttft for row in rows]),
                    Figure(f"{name}: p90 TTFT", "s", [row.ttft_p90 for row in rows]),
                    Figure(f"{name}: cached", "", [row.cached_share for row in rows], "higher"),
                    Figure(f"{name}: simulating", "s", [row.cpu_seconds for row in rows]),
                ]
        return found

    def policies(self) -> list[str]:
        return list(dict.fromkeys(row.policy for row in self.rows))

    def select(self, policy: str, engines: int = 0) -> list[Row]:
        """By seed; of so many engines if they are not 0."""
        return [r for r in self.rows if r.policy == policy and engines in (0, r.engines)]
