"""Every benchmark, in the order of docs/benchmarks/README.md."""

from __future__ import annotations

from typing import Any

from inferway_bench import harness
from inferway_bench.benchmark import Benchmark
from inferway_bench.chat_overhead.report import CHAT_OVERHEAD, CHAT_OVERHEAD_ENGINE
from inferway_bench.director.benchmark import DIRECTOR
from inferway_bench.epp.report import EPP
from inferway_bench.index.benchmark import INDEX
from inferway_bench.loading.report import LOAD
from inferway_bench.many_seeds.report import MANY_SEEDS
from inferway_bench.peers.report import PEERS, PEERS_REAL
from inferway_bench.policies.report import POLICIES, POLICIES_FLEET
from inferway_bench.prompts.benchmark import PROMPTS
from inferway_bench.proxy.report import PROXY
from inferway_bench.route_report import ROUTE
from inferway_bench.scale.report import SCALE
from inferway_bench.simulate.report import SIMULATE, SIMULATE_ENGINES
from inferway_bench.simulate.validated import VALIDATE, VALIDATE_REAL
from inferway_bench.structured.benchmark import STRUCTURED

BENCHMARKS: tuple[Benchmark[Any] | harness.Benchmark[Any], ...] = (
    *(
        PEERS,
        PEERS_REAL,
        MANY_SEEDS,
        POLICIES,
        POLICIES_FLEET,
        SIMULATE,
        SIMULATE_ENGINES,
        VALIDATE,
        VALIDATE_REAL,
        SCALE,
    ),
    *(CHAT_OVERHEAD, CHAT_OVERHEAD_ENGINE),
    *(ROUTE, PROXY, PROMPTS, DIRECTOR, INDEX, STRUCTURED, EPP, LOAD),
)
