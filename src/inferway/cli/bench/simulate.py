"""`inferway bench simulate`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from inferway.bench.policies.engine import EngineSpec
from inferway.bench.policies.simulate import FleetSpec
from inferway.bench.simulate.plan import Plan, engine_spec
from inferway.bench.simulate.report import SIMULATE, SIMULATE_ENGINES
from inferway.bench.simulate.results import SimulateRun
from inferway.bench.simulate.run import run_more, run_simulate
from inferway.cli.bench.data_option import data_option
from inferway.cli.bench.output import OnStep, Output, output_options

_DEFAULT = Plan("")
_OF_ENGINES = [field.name for field in msgspec.structs.fields(EngineSpec)]


@click.command()
@click.option(
    "--trace", default="chats", show_default=True, metavar="FILE",
    help="Mooncake's JSON lines, an agent's sessions, Azure's CSV or ServeGen's clients (the file "
    "shows which), packed by gzip or xz, or not; mooncake, agentic, azure, servegen: that of "
    "--data; chats: generated multi-turn chats.",
)  # fmt: skip
@click.option(
    "--engines", "sizes", type=click.IntRange(min=1), multiple=True, metavar="NUMBER",
    help="Repeat for several fleets with the same load for each engine: "
    "results/simulate_engines.json; the rate is the first one's.  [default: 8]",
)  # fmt: skip
@click.option("--slow", type=click.IntRange(min=0), default=0, help="Engines 3 × as slow.")
@click.option("--gateways", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME",
    help=f"Repeat for more.  [default: {', '.join(_DEFAULT.policies)}]",
)  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests a second.")
@click.option(
    "--load", type=click.FloatRange(min=0, min_open=True), metavar="SHARE",
    help="Of the rate at which round-robin's mean TTFT doubles.  [default: the trace's own rate]",
)  # fmt: skip
@click.option("--seed", "seeds", type=int, multiple=True, help="Repeat for more.  [default: 1]")
@click.option(
    "--requests", type=click.IntRange(min=1),
    help="The first so many; of more than the trace has, copies of it run side by side, each with "
    "blocks of its own.  [default: the trace's]",
)  # fmt: skip
@click.option("--cache-tokens", type=click.IntRange(min=1), help="Of an engine's KV cache.")
@click.option(
    "--engine", "words", multiple=True, metavar="KEY=VALUE",
    help=f"Of every engine: {', '.join(_OF_ENGINES)}.",
)  # fmt: skip
@click.option(
    "--think", type=click.FloatRange(min=0), default=1.0, show_default=True, metavar="FACTOR",
    help="Between an answer and the next turn, times what the trace says.",
)  # fmt: skip
@data_option("traces")
@click.option(
    "--add", is_flag=True,
    help="Keep the other policies of what --save has written before, and their rate.",
)  # fmt: skip
@output_options("simulate")
def simulate(
    trace: str,
    sizes: tuple[int, ...],
    slow: int,
    gateways: int,
    policies: tuple[str, ...],
    rate: float | None,
    load: float | None,
    seeds: tuple[int, ...],
    requests: int | None,
    cache_tokens: int | None,
    words: tuple[str, ...],
    think: float,
    data: Path,
    add: bool,
    output: Output,
) -> None:
    """A trace on a simulated fleet in virtual time: the scheduling code of production, an engine's
    steps and its KV cache."""
    if rate is not None and load is not None:
        raise click.UsageError("--rate and --load: give one of them")
    if add and output.save is None:
        raise click.UsageError("--add: what was before is where --save writes; give it, too")
    sizes = sizes or (FleetSpec().num_engines,)
    if slow > min(sizes):
        raise click.UsageError(f"--slow {slow}: there are {min(sizes)} engines")
    benchmark = SIMULATE_ENGINES if len(sizes) > 1 else SIMULATE

    def measure(on_step: OnStep) -> SimulateRun:
        default = FleetSpec()
        spec = engine_spec(words, default.engine)
        if cache_tokens is not None:
            spec = msgspec.structs.replace(spec, cache_tokens=cache_tokens)
        fleet = msgspec.structs.replace(
            default, num_engines=sizes[0], num_slow=slow, num_gateways=gateways, engine=spec
        )
        plan = Plan(
            trace=trace,
            policies=policies or _DEFAULT.policies,
            fleet=fleet,
            requests=requests,
            rate=rate,
            load=load,
            seeds=seeds or _DEFAULT.seeds,
            think=think,
            sizes=sizes if len(sizes) > 1 else (),
        )
        if add and output.save is not None:
            return run_more(benchmark.load(output.save), plan, data, on_step)
        return run_simulate(plan, data, on_step)

    output.measure(benchmark, measure)
