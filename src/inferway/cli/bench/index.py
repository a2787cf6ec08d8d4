"""`inferway bench index`."""

from __future__ import annotations

import click

from inferway.bench.index.plan import QUICK, Plan
from inferway.bench.index.report import INDEX
from inferway.bench.index.run import run_index
from inferway.cli.bench.output import Output, output_options


@click.command()
@click.option("--quick", is_flag=True, help="Small indexes: a look, not a result.")
@click.option("--no-peer", is_flag=True, help="Without ai-dynamo-runtime.")
@output_options("index")
def index(quick: bool, no_peer: bool, output: Output) -> None:
    """The index: matching, events, memory and stalls, beside Dynamo's RadixTree."""
    plan = QUICK if quick else Plan()
    output.measure(INDEX, lambda on_step: run_index(plan, on_step, beside_peer=not no_peer))
