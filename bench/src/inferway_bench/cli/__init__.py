"""`inferway bench …`: measurements that anybody can repeat."""

from __future__ import annotations

import click

from inferway.cli.lazy import LazyGroup

COMMANDS = {
    "autoscale": (
        "inferway_bench.autoscale.report", "autoscale",
        "Let engines come and go, beside an oracle.",
    ),
    "cells": (
        "inferway_bench.simulate.cells", "cells", "Divide a simulated fleet into cells.",
    ),
    "chat-overhead": (
        "inferway_bench.chat_overhead", "chat_overhead",
        "Measure what a chat adds to the time to first token.",
    ),
    "dataplane": (
        "inferway_bench.dataplane.benchmark", "dataplane",
        "Measure the data plane's CPU time, latency and memory.",
    ),
    "director": (
        "inferway_bench.director", "director",
        "Measure a decision's CPU time as chats grow.",
    ),
    "docs": ("inferway_bench.cli.docs", "docs", "Write the benchmarks' pages from stored results."),
    "epp": (
        "inferway_bench.epp", "epp", "Measure the endpoint picker behind a real Envoy.",
    ),
    "index": (
        "inferway_bench.index.benchmark", "index", "Measure the index beside Dynamo's RadixTree.",
    ),
    "kv-transfer": (
        "inferway_bench.simulate.two_legs", "kv_transfer",
        "Compare when prompts are computed apart from their answers.",
    ),
    "legs": (
        "inferway_bench.dataplane.legs", "legs",
        "Measure what requests in two legs cost beside vllm-router.",
    ),
    "load": ("inferway_bench.loading.run", "load", "Load an OpenAI endpoint and measure it."),
    "outages": (
        "inferway_bench.outages.benchmark", "outages",
        "Compare what clients see of an engine in trouble.",
    ),
    "peers": (
        "inferway_bench.peers.benchmark", "peers", "Compare routers in front of one fleet.",
    ),
    "policies": (
        "inferway_bench.simulate.report", "policies", "Compare policies on one simulated fleet.",
    ),
    "policies-fleet": (
        "inferway_bench.simulate.report", "policies_fleet",
        "Compare policies behind several gateways.",
    ),
    "policies-hybrid": (
        "inferway_bench.simulate.hybrid", "policies_hybrid",
        "Compare what an index knows of hybrid models.",
    ),
    "prompts": (
        "inferway_bench.prompts", "prompts",
        "Measure rendering and tokenizing, beside transformers.",
    ),
    "ray": ("inferway_bench.ray_serve.benchmark", "ray", "Compare routers in Ray Serve."),
    "scale": ("inferway_bench.scale", "scale", "Measure how many engines one process can serve."),
    "sessions": (
        "inferway_bench.sessions.benchmark", "sessions",
        "Simulate agents whose sessions do not fit the caches.",
    ),
    "simulate": (
        "inferway_bench.simulate.report", "simulate", "Replay traces on a simulated fleet.",
    ),
    "structured": (
        "inferway_bench.structured.benchmark", "structured",
        "Measure structured output beside four libraries.",
    ),
    "validate": (
        "inferway_bench.simulate.validate", "validate",
        "Compare the simulation with real routers and engines.",
    ),
    "what-if": (
        "inferway_bench.whatif.proven", "what_if",
        "Compare what inferway what-if says with what came true.",
    ),
    "workers": (
        "inferway_bench.dataplane.workers", "workers",
        "Measure what several processes carry beside one.",
    ),
}  # fmt: skip


@click.group(cls=LazyGroup, table=COMMANDS)
def bench() -> None:
    """Measure gateways, engines and routing policies.

    The commands load, simulate, validate and what-if are for users. The others measure Inferway
    itself, for its maintainers."""
