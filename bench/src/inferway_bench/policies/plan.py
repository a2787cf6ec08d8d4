"""How much is simulated."""

from __future__ import annotations

from typing import Literal

import msgspec

from inferway_bench.policies.chats import ChatSpec
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.policies.weighted import Weights, grid

OTHER_CACHES = "@"  # NAME@TOKENS: a workload on engines with other caches than `Plan.cache_tokens`


class Plan(msgspec.Struct, frozen=True):
    """What a run does."""

    workloads: tuple[str, ...] = ("mooncake", "chats", "agentic")
    requests: int | None = None  # of a trace; None: all, or as many as `most` says
    most: dict[str, int] = {}  # by workload
    policies: tuple[str, ...] = ()  # none named: all
    fleet: FleetSpec = FleetSpec()
    chats: ChatSpec = ChatSpec()
    # of each engine, so small that it evicts: chats have short prompts, and few of them at a time
    cache_tokens: dict[str, int] = msgspec.field(
        default_factory=lambda: {
            "mooncake": 524_288,
            "chats": 65_536,
            "agentic": 1_048_576,
            "azure": 262_144,
            "servegen": 524_288,
        }
    )
    loads: tuple[float, ...] = (0.5, 0.75, 0.9)  # of the rate at which round-robin's TTFT doubles
    seeds: int = 5
    gateways: tuple[int, ...] = (1, 4)
    many_gateways_from: float = 0.75  # the least load at which more than one is simulated
    curve: tuple[float, ...] = (0.25, 1.5, 2.5)  # more loads, of one seed, for the plot
    grid: tuple[Weights, ...] = tuple(grid())
    fit_gateways: int = 1  # in front of the fleet while weights are fitted
    fit_finalists: int = 4  # of the grid, tried again with all seeds
    bisections: int = 8
    processes: int | None = None  # None: one a core
    asked: Literal["weights", "peers"] = "weights"  # beside whom expected-ttft is judged

    def cache_of(self, workload: str) -> int:
        """Tokens of each engine."""
        name, _, tokens = workload.partition(OTHER_CACHES)
        return int(tokens) if tokens else self.cache_tokens[name]

    def fleet_for(self, workload: str, gateways: int) -> FleetSpec:
        tokens = self.cache_of(workload)
        engine = msgspec.structs.replace(self.fleet.engine, cache_tokens=tokens)
        return msgspec.structs.replace(self.fleet, num_gateways=gateways, engine=engine)


_NO_PRESSURE = 8_388_608  # tokens: more than a run's prompts have
_FLEET_POLICIES = (
    *("round-robin", "least-request", "consistent-hash", "llm-d-default", "llm-d-whole"),
    *("cache-aware", "dynamo-cost", "best-weighted", "expected-ttft", "expected-ttft-deaf"),
    "oracle",
)

# Engines alike, several gateways: where hearing of KV events pays, and where it does not.
FLEET = Plan(
    workloads=(
        *("mooncake", "agentic", "azure", "servegen"),
        *(f"mooncake@{_NO_PRESSURE}", f"agentic@{_NO_PRESSURE}"),
    ),
    policies=_FLEET_POLICIES,
    most={"azure": 6_000, "servegen": 6_000},
    fleet=FleetSpec(num_engines=16, num_slow=0),
    loads=(0.75, 0.9),
    curve=(),
    grid=tuple(grid((0, 1, 2, 8))),
    fit_gateways=4,
    fit_finalists=2,
    bisections=5,
    asked="peers",
)
QUICK = Plan(
    workloads=("mooncake", "chats"),
    requests=1_500,
    chats=ChatSpec(num_requests=2_000, mean_turns=4.0, think_seconds=2.0),
    loads=(0.75,),
    seeds=2,
    gateways=(1,),
    curve=(),
    grid=tuple(grid((0, 1, 3))),
    fit_finalists=1,
    bisections=3,
)
