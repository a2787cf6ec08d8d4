"""What many seeds say, and how many it takes to say it. Pure."""

from __future__ import annotations

from math import ceil, sqrt
from statistics import fmean, stdev

import msgspec

from inferway_bench.peers.plan import REAL
from inferway_bench.peers.plan import Plan as PeersPlan
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.results import Figure, Run
from inferway_bench.spread import Interval, mean_interval

OURS = "expected-ttft"
_SIGMAS = 1.96  # of a mean, on either side: 95 %


class Plan(msgspec.Struct, frozen=True):
    """The chats of `bench peers --real` on engines as `bench validate --real` found them."""

    fleet: FleetSpec
    fitted: str  # when, at which commit
    chats: PeersPlan = msgspec.structs.replace(REAL, seeds=100)
    policies: tuple[str, ...] = (
        *(OURS, "consistent-hash", "kv-aware", "cache-aware", "round-robin", "oracle"),
    )
    few: int = 5  # seeds, which are measured on real engines


class Cell(msgspec.Struct, frozen=True):
    """One policy, one load, one seed. Seconds, means over all requests."""

    policy: str
    load: float
    seed: int
    ttft: float
    token_seconds: float
    cached_share: float


class Difference(msgspec.Struct, frozen=True):
    """Ours less another, in seconds of mean TTFT, seed by seed."""

    mean: Interval  # of all seeds
    deviation: float  # of one seed's

    def of(self, seeds: int) -> Interval:
        """Where the mean of so many seeds lies, 95 times in 100."""
        half = _SIGMAS * self.deviation / sqrt(seeds)
        return Interval(self.mean.value, self.mean.value - half, self.mean.value + half)

    @property
    def seeds(self) -> int | None:
        """How many it takes until their 95 % interval is off zero, as a rule; None: there is no
        difference, as far as all of them can tell."""
        if self.mean.low <= 0 <= self.mean.high:
            return None
        return max(2, ceil((_SIGMAS * self.deviation / self.mean.value) ** 2))


class ManySeedsRun(Run, frozen=True):
    """A whole run."""

    plan: Plan
    rate: float  # requests a second at which round-robin's mean TTFT doubles
    cells: list[Cell]

    @property
    def is_virtual(self) -> bool:
        return True

    @property
    def loads(self) -> list[float]:
        return sorted({cell.load for cell in self.cells})

    def select(self, policy: str, load: float) -> list[Cell]:
        """By seed."""
        found = [cell for cell in self.cells if (cell.policy, cell.load) == (policy, load)]
        return sorted(found, key=lambda cell: cell.seed)

    def ttft(self, policy: str, load: float) -> Interval:
        return mean_interval([cell.ttft for cell in self.select(policy, load)])

    def cached(self, policy: str, load: float) -> float:
        return fmean(cell.cached_share for cell in self.select(policy, load))

    def difference(self, other: str, load: float) -> Difference:
        pairs = zip(self.select(OURS, load), self.select(other, load), strict=True)
        less = [ours.ttft - theirs.ttft for ours, theirs in pairs]
        return Difference(mean_interval(less), stdev(less))

    def losses(self) -> list[str]:
        return [
            f"at {load:.0%} first tokens come sooner with {policy}"
            for load in self.loads
            for policy in self.plan.policies
            if policy != OURS and self.difference(policy, load).mean.low > 0
        ]

    def figures(self) -> list[Figure]:
        return [
            Figure(
                f"{policy} at {load:.0%}: mean TTFT", "s",
                [cell.ttft for cell in self.select(policy, load)], is_ours=policy == OURS,
            )
            for policy in self.plan.policies
            for load in self.loads
        ]  # fmt: skip
