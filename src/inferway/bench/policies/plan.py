"""How much is simulated."""

from __future__ import annotations

import msgspec

from inferway.bench.policies.chats import ChatSpec
from inferway.bench.policies.simulate import FleetSpec
from inferway.bench.policies.weighted import Weights, grid


class Plan(msgspec.Struct, frozen=True):
    """What a run does."""

    workloads: tuple[str, ...] = ("mooncake", "chats", "agentic")
    requests: int | None = None  # of a trace; None: all
    policies: tuple[str, ...] = ()  # none named: all
    fleet: FleetSpec = FleetSpec()
    chats: ChatSpec = ChatSpec()
    # of each engine, so small that it evicts: chats have short prompts, and few of them at a time
    cache_tokens: dict[str, int] = msgspec.field(
        default_factory=lambda: {"mooncake": 524_288, "chats": 65_536, "agentic": 1_048_576}
    )
    loads: tuple[float, ...] = (0.5, 0.75, 0.9)  # of the rate at which round-robin's TTFT doubles
    seeds: int = 5
    gateways: tuple[int, ...] = (1, 4)
    many_gateways_from: float = 0.75  # the least load at which more than one is simulated
    curve: tuple[float, ...] = (0.25, 1.5, 2.5)  # more loads, of one seed, for the plot
    grid: tuple[Weights, ...] = tuple(grid())
    fit_finalists: int = 4  # of the grid, tried again with all seeds
    bisections: int = 8
    processes: int | None = None  # None: one a core

    def fleet_for(self, workload: str, gateways: int) -> FleetSpec:
        tokens = self.cache_tokens[workload]
        engine = msgspec.structs.replace(self.fleet.engine, cache_tokens=tokens)
        return msgspec.structs.replace(self.fleet, num_gateways=gateways, engine=engine)


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
