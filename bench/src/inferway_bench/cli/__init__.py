"""`inferway bench …`: measurements that anybody can repeat."""

from __future__ import annotations

import click

from inferway.cli.lazy import LazyGroup

_HERE = "inferway_bench.cli"

COMMANDS = {
    "chat-overhead": (
        f"{_HERE}.chat_overhead", "chat_overhead",
        "Measure what a chat adds to the time to first token.",
    ),
    "director": (
        "inferway_bench.director.benchmark", "director",
        "Measure a decision's CPU time as chats grow.",
    ),
    "docs": (f"{_HERE}.docs", "docs", "Write the benchmarks' pages from stored results."),
    "epp": (f"{_HERE}.epp", "epp", "Measure the endpoint picker behind a real Envoy."),
    "index": (
        "inferway_bench.index.benchmark", "index", "Measure the index beside Dynamo's RadixTree.",
    ),
    "load": (f"{_HERE}.load", "load", "Load an OpenAI endpoint and measure it."),
    "many-seeds": (
        f"{_HERE}.many_seeds", "many_seeds",
        "Count the seeds that it takes to see a difference.",
    ),
    "peers": (f"{_HERE}.peers", "peers", "Compare routers in front of one fleet."),
    "policies": (f"{_HERE}.policies", "policies", "Compare policies on one simulated fleet."),
    "prompts": (
        "inferway_bench.prompts.benchmark", "prompts",
        "Measure rendering and tokenizing, beside transformers.",
    ),
    "proxy": (f"{_HERE}.proxy", "proxy", "Measure the data plane's CPU, latency and memory."),
    "route": (f"{_HERE}.route", "route", "Measure the CPU time of a routed request."),
    "scale": (f"{_HERE}.scale", "scale", "Measure how many engines one process can serve."),
    "simulate": (f"{_HERE}.simulate", "simulate", "Replay a trace on a simulated fleet."),
    "structured": (
        "inferway_bench.structured.benchmark", "structured",
        "Measure structured output beside four libraries.",
    ),
    "validate": (
        f"{_HERE}.validate", "validate", "Compare the simulation with real routers and engines.",
    ),
}  # fmt: skip


@click.group(cls=LazyGroup, table=COMMANDS)
def bench() -> None:
    """Measure gateways, engines and routing policies."""
