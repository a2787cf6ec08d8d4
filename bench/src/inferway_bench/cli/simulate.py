"""`inferway bench simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from inferway_bench.cli.data_option import data_option
from inferway_bench.cli.output import Output, output_options
from inferway_bench.policies.engine import EngineSpec

if TYPE_CHECKING:
    from inferway_bench.progress import OnCountedStep
    from inferway_bench.simulate.results import SimulateRun

_OF_ENGINES = [field.name for field in msgspec.structs.fields(EngineSpec)]


@click.command()
@click.option(
    "--trace",
    default="chats",
    show_default=True,
    metavar="FILE",
    help="Replay this trace: Mooncake's JSON lines, an agent's sessions, Azure's CSV or ServeGen's "
    "clients, packed by gzip or xz, or not. The names mooncake, agentic, azure and servegen take "
    "the one of --data, and chats generates multi-turn chats.",
)
@click.option(
    "--engines",
    "sizes",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="NUMBER",
    help="Simulate a fleet of this number of engines. Repeat the flag for several fleets with the "
    "same load for each engine (results/simulate_engines.json).  [default: 8]",
)
@click.option(
    "--slow",
    type=click.IntRange(min=0),
    default=0,
    metavar="NUMBER",
    help="Make this number of the engines three times as slow.  [default: 0]",
)
@click.option(
    "--gateways",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="Put this number of gateways before the fleet; each knows its own requests only.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Simulate this policy, one of those of `inferway serve --policy` or of a peer. Repeat the "
    "flag for more.  [default: round-robin, expected-ttft]",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATE",
    help="Send this number of requests a second.  [default: the trace's own rate]",
)
@click.option(
    "--load",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SHARE",
    help="Send requests at this share of the rate at which round-robin's mean TTFT doubles, "
    "instead of --rate.",
)
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    metavar="SEED",
    help="Draw what is drawn with this seed. Repeat the flag for more runs.  [default: 1]",
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    help="Simulate this number of requests. If the trace has fewer, copies of it run side by side, "
    "each with blocks of its own.  [default: the trace's]",
)
@click.option(
    "--cache-tokens",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Give each engine a KV cache of this number of tokens.",
)
@click.option(
    "--engine",
    "words",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set this constant of every engine. Repeat the flag for more. The keys are "
    f"{', '.join(_OF_ENGINES)}.",
)
@click.option(
    "--think",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Multiply the time between an answer and the next turn by this.",
)
@data_option("traces")
@click.option(
    "--add",
    is_flag=True,
    help="Keep the other policies of what --save has written before, and their rate.",
)
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
    """Replay a trace on a simulated fleet in virtual time, with the scheduling code of production,
    an engine's steps and its KV cache."""
    from inferway_bench.policies.simulate import FleetSpec
    from inferway_bench.simulate.plan import Plan, engine_spec
    from inferway_bench.simulate.report import SIMULATE, SIMULATE_ENGINES
    from inferway_bench.simulate.run import run_more, run_simulate

    if rate is not None and load is not None:
        raise click.UsageError("--rate and --load: give one of them")
    if add and output.save is None:
        raise click.UsageError("--add: what was before is where --save writes; give it, too")
    sizes = sizes or (FleetSpec().num_engines,)
    if slow > min(sizes):
        raise click.UsageError(f"--slow {slow}: there are {min(sizes)} engines")
    benchmark = SIMULATE_ENGINES if len(sizes) > 1 else SIMULATE

    def measure(on_step: OnCountedStep) -> SimulateRun:
        default, usual = FleetSpec(), Plan(trace)
        spec = engine_spec(words, default.engine)
        if cache_tokens is not None:
            spec = msgspec.structs.replace(spec, cache_tokens=cache_tokens)
        fleet = msgspec.structs.replace(
            default, num_engines=sizes[0], num_slow=slow, num_gateways=gateways, engine=spec
        )
        plan = Plan(
            trace=trace,
            policies=policies or usual.policies,
            fleet=fleet,
            requests=requests,
            rate=rate,
            load=load,
            seeds=seeds or usual.seeds,
            think=think,
            sizes=sizes if len(sizes) > 1 else (),
        )
        if add and output.save is not None:
            return run_more(benchmark.load(output.save), plan, data, on_step)
        return run_simulate(plan, data, on_step)

    output.measure(benchmark, measure)
