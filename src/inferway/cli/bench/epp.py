"""`inferway bench epp`."""

from __future__ import annotations

from dataclasses import replace

import click

from inferway.bench.epp.report import EPP
from inferway.bench.epp.run import Plan, run_epp
from inferway.cli.bench.output import Output, output_options
from inferway.prompts.prepare import prepare_smollm2

_QUICK = Plan(repeats=2, seconds=2, warm_up_seconds=1, idle_seconds=2.0)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter repeats: a look, not a result.")
@click.option(
    "--connections",
    default=Plan().connections,
    help="Requests at a time; with 1, no picker can take several messages at once.  [default: 8]",
)
@output_options("epp")
def epp(quick: bool, connections: int, output: Output) -> None:
    """The endpoint picker behind a real Envoy: CPU time of a pick, and of a streamed chunk."""
    plan = replace(_QUICK if quick else Plan(), connections=connections)
    output.measure(EPP, lambda on_step: run_epp(prepare_smollm2(), plan, on_step))
