"""`inferway bench policies`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from inferway_bench.cli.data_option import data_option
from inferway_bench.cli.output import Output, output_options

if TYPE_CHECKING:
    from inferway_bench.policies.results import PoliciesRun
    from inferway_bench.progress import OnCountedStep


@click.command()
@click.option(
    "--quick", is_flag=True, help="Simulate few requests at one load: a look, not a result."
)
@click.option(
    "--fleet",
    "is_fleet",
    is_flag=True,
    help="Simulate 16 engines alike behind 1 and 4 gateways, with and without pressure on caches "
    "(results/policies_fleet.json).",
)
@click.option(
    "--only",
    multiple=True,
    metavar="POLICY",
    help="Simulate this policy alone. Repeat the flag for more.",
)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME",
    help="Simulate this workload alone: mooncake, agentic, chats, azure or servegen. NAME@TOKENS "
    "gives the engines caches of this number of tokens. Repeat the flag for more.  "
    "[default: the first three; with --fleet all]",
)
@click.option(
    "--load",
    "loads",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    metavar="SHARE",
    help="Send requests at this share of the rate at which round-robin's mean TTFT doubles. Repeat "
    "the flag for more.  [default: 0.5, 0.75, 0.9; with --fleet without the first]",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Simulate in this number of processes at a time.  [default: one a core]",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Simulate each case with this number of seeds.  [default: 5]",
)
@click.option(
    "--engines",
    type=click.IntRange(min=2),
    metavar="NUMBER",
    help="Simulate a fleet of this number of engines.  [default: 8]",
)
@click.option(
    "--gateways",
    type=click.IntRange(min=1),
    multiple=True,
    help="Put this number of gateways before the fleet. Repeat the flag for more cases.  "
    "[default: 1, 4]",
)
@click.option(
    "--attention-tokens",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Let a prompt token cost twice where it looks at this number of tokens before it.  "
    "[default: all cost the same]",
)
@data_option("traces")
@click.option(
    "--again",
    multiple=True,
    metavar="POLICY",
    help="Simulate this policy anew and keep the rest of what --save has written before. "
    "Repeat the flag for more.",
)
@click.option(
    "--add",
    is_flag=True,
    help="Keep the other workloads of what --save has written before, and add --workload to them.",
)
@output_options("policies")
def policies(
    quick: bool,
    is_fleet: bool,
    only: tuple[str, ...],
    workloads: tuple[str, ...],
    loads: tuple[float, ...],
    processes: int | None,
    seeds: int | None,
    engines: int | None,
    gateways: tuple[int, ...],
    attention_tokens: int | None,
    data: Path,
    again: tuple[str, ...],
    add: bool,
    output: Output,
) -> None:
    """Compare policies on one simulated fleet in virtual time: real traces and generated chats, the
    scheduling code of production, and an oracle."""
    from inferway_bench.policies.plan import FLEET, QUICK, Plan
    from inferway_bench.policies.report import POLICIES, POLICIES_FLEET
    from inferway_bench.policies.run import run_again, run_more, run_policies

    plan = FLEET if is_fleet else QUICK if quick else Plan()
    benchmark = POLICIES_FLEET if is_fleet else POLICIES
    engine = msgspec.structs.replace(plan.fleet.engine, attention_tokens=attention_tokens or 0)
    fleet = msgspec.structs.replace(
        plan.fleet, num_engines=engines or plan.fleet.num_engines, engine=engine
    )
    plan = msgspec.structs.replace(
        plan,
        policies=only or plan.policies,
        workloads=workloads or plan.workloads,
        loads=loads or plan.loads,
        processes=processes,
        seeds=seeds or plan.seeds,
        gateways=gateways or plan.gateways,
        fleet=fleet,
    )

    def measure(on_step: OnCountedStep) -> PoliciesRun:
        if not again and not add:
            return run_policies(plan, data / "traces", on_step)
        if output.save is None:
            flag = "--add" if add else "--again"
            raise click.UsageError(f"{flag}: what was before is where --save writes; give it, too")
        if add:
            return run_more(benchmark.load(output.save), plan, data / "traces", on_step)
        before = benchmark.load(output.save)
        return run_again(before, again, data / "traces", on_step, processes)

    output.measure(benchmark, measure)
