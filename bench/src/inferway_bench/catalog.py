"""Every benchmark, in the order of docs/benchmarks/README.md."""

from __future__ import annotations

from typing import Any

from inferway_bench.autoscale.report import AUTOSCALE
from inferway_bench.chat_overhead import CHAT_OVERHEAD
from inferway_bench.dataplane.benchmark import DATAPLANE
from inferway_bench.dataplane.legs import LEGS
from inferway_bench.dataplane.workers import WORKERS
from inferway_bench.director import DIRECTOR
from inferway_bench.epp import EPP
from inferway_bench.harness import Benchmark
from inferway_bench.index.benchmark import INDEX
from inferway_bench.loading.run import LOAD
from inferway_bench.outages.benchmark import OUTAGES
from inferway_bench.peers.benchmark import PEERS, PEERS_REAL
from inferway_bench.prompts import PROMPTS
from inferway_bench.ray_serve.benchmark import RAY, RAY_ONE_SYSTEM
from inferway_bench.scale import SCALE
from inferway_bench.sessions.benchmark import SESSIONS
from inferway_bench.simulate.cells import CELLS
from inferway_bench.simulate.hybrid import HYBRID
from inferway_bench.simulate.report import (
    POLICIES,
    POLICIES_FLEET,
    POLICIES_GATEWAYS,
    SIMULATE,
    SIMULATE_ENGINES,
    SIMULATE_SEEDS,
)
from inferway_bench.simulate.two_legs import KV_TRANSFER
from inferway_bench.simulate.validate import VALIDATE, VALIDATE_REAL
from inferway_bench.structured.benchmark import STRUCTURED
from inferway_bench.whatif.proven import PROVEN, PROVEN_REAL

BENCHMARKS: tuple[Benchmark[Any], ...] = (
    *(
        PEERS,
        PEERS_REAL,
        OUTAGES,
        POLICIES,
        POLICIES_FLEET,
        HYBRID,
        CELLS,
        POLICIES_GATEWAYS,
        KV_TRANSFER,
        AUTOSCALE,
        SESSIONS,
        SIMULATE,
        SIMULATE_ENGINES,
        SIMULATE_SEEDS,
        VALIDATE,
        VALIDATE_REAL,
        PROVEN,
        PROVEN_REAL,
        SCALE,
    ),
    *(
        CHAT_OVERHEAD,
        DATAPLANE,
        WORKERS,
        LEGS,
        PROMPTS,
        DIRECTOR,
        INDEX,
        STRUCTURED,
        EPP,
        RAY,
        RAY_ONE_SYSTEM,
        LOAD,
    ),
)
