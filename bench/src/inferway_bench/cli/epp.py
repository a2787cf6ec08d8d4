"""`inferway bench epp`."""

from __future__ import annotations

from dataclasses import replace

import click

from inferway_bench.cli.output import Output, output_options
from inferway_bench.cli.router_options import QUICK_OPTION


@click.command()
@QUICK_OPTION
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Send this number of requests at a time. With 1, no picker can take several messages "
    "at once.",
)
@output_options("epp")
def epp(quick: bool, connections: int, output: Output) -> None:
    """Measure the endpoint picker behind a real Envoy: the CPU time of a pick and of a streamed
    chunk. It needs Envoy in PATH or from scripts/install_envoy.sh, and the program wrk."""
    from inferway.prompts.prepare import prepare_smollm2
    from inferway_bench.epp.report import EPP
    from inferway_bench.epp.run import QUICK, Plan, run_epp

    plan = replace(QUICK if quick else Plan(), connections=connections)
    output.measure(EPP, lambda on_step: run_epp(prepare_smollm2(), plan, on_step))
