"""What a run of `inferway bench proxy` found, and what was asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from inferway_bench.proxy.plan import Plan
from inferway_bench.results import Figure, Goal, Run
from inferway_bench.spread import mean_interval, ratio_of_medians

SHORT, LONG, STREAM = "0.7 kB chat", "8k-token chat", "stream of 500 chunks"

PLAIN = "inferway serve --no-scoring"
SCORING = "inferway serve"
VLLM = "vllm-router round_robin"
VLLM_KV = "vllm-router kv_aware"
VLLM_CACHE = "vllm-router cache_aware"
SGLANG = "sglang-router round_robin"
DIRECT = "no router"


class Cost(msgspec.Struct, frozen=True):
    """CPU of one router under one load; lists have one entry per repeat, in order."""

    router: str
    case: str
    cpu_us: list[float]  # per request, of streams per chunk
    per_second: list[float]  # requests, or chunks
    note: str  # what the router says that it did


class Latency(msgspec.Struct, frozen=True):
    """Time to the first token at one rate for all, µs, of those that were answered; one entry per
    repeat."""

    router: str  # or DIRECT
    p50_us: list[float]
    p99_us: list[float]
    failed: list[float]  # share of the requests


class Memory(msgspec.Struct, frozen=True):
    """MiB of the process tree, one entry per start."""

    router: str
    at_start: list[float]
    growth: list[float]  # with `Plan.held_streams` streams open


class ProxyRun(Run, frozen=True):
    """A whole run. Rates are of the latencies, requests a second: the one that was sent, and half
    of what the slowest router carries, above which it never is. `dropped`: see `Latencies`."""

    plan: Plan
    versions: dict[str, str]
    bodies: dict[str, str]  # case -> what its bodies are
    costs: list[Cost]
    rate: float
    latencies: list[Latency]
    memory: list[Memory]
    load_after: float
    half_of_the_slowest: float = 0.0
    dropped: dict[str, str] = msgspec.field(default_factory=dict)

    def cost(self, router: str, case: str) -> Cost | None:
        return next((c for c in self.costs if (c.router, c.case) == (router, case)), None)

    def latency(self, router: str) -> Latency | None:
        return next((one for one in self.latencies if one.router == router), None)

    @property
    def seeds(self) -> list[int]:
        """Of the arrivals, one for each repeat."""
        return list(range(self.plan.repeats))

    def goals(self) -> list[Goal]:
        """Those whose routers were measured."""
        found = [
            self._cpu(SHORT, PLAIN, VLLM, 0.5),
            self._cpu(SHORT, PLAIN, SGLANG, 0.4),
            self._cpu(LONG, SCORING, self._kv_aware(), 1.0),
            self._cpu(STREAM, PLAIN, VLLM, 0.5),
            self._added("p50", lambda one: one.p50_us),
            self._added("p99", lambda one: one.p99_us),
            *self._memory("memory at start, no tokenizer", lambda one: one.at_start, (VLLM,)),
            *self._memory(
                f"memory, growth to {self.plan.held_streams:,} streams",
                lambda one: one.growth,
                (VLLM, SGLANG),
            ),
        ]
        return [goal for goal in found if goal is not None]

    def figures(self) -> list[Figure]:
        found = []
        for cost in self.costs:
            of = "a chunk" if cost.case == STREAM else "a request"
            name = f"{cost.router}, {cost.case}: CPU {of}"
            found.append(Figure(name, "µs", cost.cpu_us, is_ours=_is_ours(cost.router)))
        for one in self.latencies:
            for name, us in (("p50", one.p50_us), ("p99", one.p99_us)):
                what = f"{one.router}: time to first token, {name}"
                found.append(Figure(what, "µs", us, is_ours=_is_ours(one.router)))
        for tree in self.memory:
            for name, mib in (("at start", tree.at_start), ("of streams", tree.growth)):
                what = f"{tree.router}: memory {name}"
                found.append(Figure(what, "MiB", mib, is_ours=_is_ours(tree.router)))
        return found

    def added_us(self, router: str, of: Callable[[Latency], list[float]]) -> list[float]:
        """What the router adds to the same percentile without one, repeat by repeat."""
        mine, direct = self.latency(router), self.latency(DIRECT)
        if mine is None or direct is None:
            return []
        return [a - b for a, b in zip(of(mine), of(direct), strict=True)]

    def _kv_aware(self) -> str:
        """vllm-router's kv_aware where it has tokenized, through its engines; else its
        cache_aware."""
        cost = self.cost(VLLM_KV, LONG)
        return VLLM_KV if cost is not None and "/render" in cost.note else VLLM_CACHE

    def _cpu(self, case: str, ours: str, theirs: str, bar: float) -> Goal | None:
        mine, other = self.cost(ours, case), self.cost(theirs, case)
        if mine is None or other is None:
            return None
        ratio = ratio_of_medians(mine.cpu_us, other.cpu_us)
        unit = "chunk" if case == STREAM else "request"
        return Goal(
            f"{case}, CPU per {unit}", f"≤ {bar:g} × {theirs}", ratio.shown(), ratio.value <= bar
        )

    def _added(self, name: str, of: Callable[[Latency], list[float]]) -> Goal | None:
        peers = [one.router for one in self.latencies if one.router not in (DIRECT, PLAIN)]
        added = {router: self.added_us(router, of) for router in (PLAIN, *peers)}
        if not peers or not added[PLAIN]:
            return None
        best = min(peers, key=lambda router: median(added[router]))
        # paired: both were measured in the same repeat
        above = mean_interval([a - b for a, b in zip(added[PLAIN], added[best], strict=True)])
        return Goal(
            f"added latency {name} at {self.rate:,.0f}/s, µs above {best}",
            "interval reaches 0",
            above.shown("{:.0f}"),
            above.low <= 0 and not any(self._failed(PLAIN)),
        )

    def _failed(self, router: str) -> list[float]:
        found = self.latency(router)
        return [] if found is None else found.failed

    def _memory(
        self, what: str, of: Callable[[Memory], list[float]], peers: Sequence[str]
    ) -> list[Goal]:
        by_router = {one.router: median(of(one)) for one in self.memory}
        if PLAIN not in by_router:
            return []
        return [
            Goal(
                what,
                f"≤ 1 × {peer}",
                f"{by_router[PLAIN]:.0f} MiB beside {by_router[peer]:.0f}",
                by_router[PLAIN] <= by_router[peer],
            )
            for peer in peers
            if peer in by_router
        ]


def _is_ours(router: str) -> bool:
    return router in (PLAIN, SCORING)
