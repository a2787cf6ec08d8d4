"""`inferway bench index`."""

from __future__ import annotations

import click

from inferway_bench.cli.output import Output, output_options


@click.command()
@click.option("--quick", is_flag=True, help="Measure small indexes: a look, not a result.")
@click.option(
    "--no-peer",
    is_flag=True,
    help="Measure Inferway's index alone, and do not install ai-dynamo-runtime.",
)
@output_options("index")
def index(quick: bool, no_peer: bool, output: Output) -> None:
    """Measure the index beside Dynamo's RadixTree: matching, events, memory, and how long the event
    loop is held."""
    from inferway_bench.index.plan import QUICK, Plan
    from inferway_bench.index.report import INDEX
    from inferway_bench.index.run import run_index

    plan = QUICK if quick else Plan()
    output.measure(INDEX, lambda on_step: run_index(plan, on_step, beside_peer=not no_peer))
