"""`inferway bench proxy`."""

from __future__ import annotations

import click
import msgspec

from inferway_bench.cli.output import Output, output_options
from inferway_bench.cli.router_options import (
    NO_PEERS_OPTION,
    QUICK_OPTION,
    SECONDS_OPTION,
    routers,
)


@click.command()
@QUICK_OPTION
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Load each router this number of times, in turns.  [default: 9]",
)
@SECONDS_OPTION
@NO_PEERS_OPTION
@output_options("proxy")
def proxy(
    quick: bool,
    repeats: int | None,
    seconds: int | None,
    no_peers: bool,
    output: Output,
) -> None:
    """Measure what the data plane costs beside other routers: CPU time, added latency and memory.
    It needs the program wrk."""
    from inferway.prompts.prepare import prepare_smollm2
    from inferway_bench.proxy.plan import QUICK, Plan
    from inferway_bench.proxy.report import PROXY
    from inferway_bench.proxy.run import run_proxy

    plan = QUICK if quick else Plan()
    plan = msgspec.structs.replace(
        plan, repeats=repeats or plan.repeats, seconds=seconds or plan.seconds
    )
    output.measure(
        PROXY,
        lambda on_step: run_proxy(
            routers(no_peers, on_step, "round_robin"), prepare_smollm2(), plan, on_step
        ),
    )
