"""Every benchmark, in the order of docs/benchmarks/README.md."""

from __future__ import annotations

from typing import Any

from inferway.bench.benchmark import Benchmark
from inferway.bench.chat_overhead.report import CHAT_OVERHEAD, CHAT_OVERHEAD_ENGINE
from inferway.bench.director.report import DIRECTOR
from inferway.bench.epp.report import EPP
from inferway.bench.index.report import INDEX
from inferway.bench.loading.report import LOAD
from inferway.bench.many_seeds.report import MANY_SEEDS
from inferway.bench.peers.report import PEERS, PEERS_REAL
from inferway.bench.policies.report import POLICIES, POLICIES_FLEET
from inferway.bench.prompts.report import PROMPTS
from inferway.bench.proxy.report import PROXY
from inferway.bench.route_report import ROUTE
from inferway.bench.scale.report import SCALE
from inferway.bench.simulate.report import SIMULATE, SIMULATE_ENGINES
from inferway.bench.simulate.validated import VALIDATE, VALIDATE_REAL
from inferway.bench.structured.report import STRUCTURED

BENCHMARKS: tuple[Benchmark[Any], ...] = (
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
