"""`inferway bench …`: measurements that anybody can repeat."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferway.cli.lazy import LazyGroup
from inferway.errors import InferwayError

if TYPE_CHECKING:
    from inferway_bench.harness import Benchmark

# In the order of docs/benchmarks/README.md.
COMMANDS = {
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
        "inferway_bench.simulate.report", "policies_hybrid",
        "Compare what an index knows of hybrid models.",
    ),
    "policies-smg": (
        "inferway_bench.simulate.report", "policies_smg", "Repeat SMG's published experiment.",
    ),
    "policies-goodput": (
        "inferway_bench.simulate.report", "policies_goodput",
        "Compare how many requests are answered in time.",
    ),
    "kv-transfer": (
        "inferway_bench.simulate.report", "kv_transfer",
        "Compare when prompts are computed apart from their answers.",
    ),
    "simulate": (
        "inferway_bench.simulate.report", "simulate", "Replay traces on a simulated fleet.",
    ),
    "scale": ("inferway_bench.scale", "scale", "Measure how many engines one process can serve."),
    "dataplane": (
        "inferway_bench.dataplane.benchmark", "dataplane",
        "Measure the data plane's CPU time, latency and memory.",
    ),
    "index": (
        "inferway_bench.index.benchmark", "index", "Measure the index beside Dynamo's RadixTree.",
    ),
    "structured": (
        "inferway_bench.structured.benchmark", "structured",
        "Measure structured output beside four libraries.",
    ),
    "epp": (
        "inferway_bench.epp", "epp", "Measure the endpoint picker behind a real Envoy.",
    ),
    "load": ("inferway_bench.loading.run", "load", "Load an OpenAI endpoint and measure it."),
    "compare": (
        "inferway_bench.loading.compare", "compare", "Compare two endpoints before one fleet.",
    ),
    "docs": ("inferway_bench.cli", "docs", "Write the benchmarks' pages from stored results."),
}  # fmt: skip


@click.group(cls=LazyGroup, table=COMMANDS)
def bench() -> None:
    """Measure gateways, engines and routing policies.

    The commands compare, load and simulate are for users. The others measure Inferway
    itself, for its maintainers."""


def benchmarks() -> list[Benchmark[Any]]:
    """Return every benchmark that the modules of the commands define, in their order."""
    from inferway_bench.harness import Benchmark

    found: dict[str, Benchmark[Any]] = {}
    for module in dict.fromkeys(module for module, _, _ in COMMANDS.values()):
        for value in vars(import_module(module)).values():
            if isinstance(value, Benchmark):
                found.setdefault(value.name, value)
    return list(found.values())


@click.command()
@click.argument(
    "docs", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("docs")
)
def docs(docs: Path) -> None:
    """Write every table and picture of DOCS/benchmarks from the stored runs in DOCS/results, and
    say how old each run is.

    DOCS is the folder docs unless it is given. Nothing is measured.
    """
    from inferway_bench import pages

    all_of_them = benchmarks()
    try:
        for path in pages.write(docs, all_of_them):
            click.echo(path)
        for benchmark in all_of_them:
            run = benchmark.stored(docs)
            if run is not None:
                benchmark.draw(run, docs / "results", ("svg",))
        for line in pages.lines(pages.ages(docs)):
            click.echo(line)
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
