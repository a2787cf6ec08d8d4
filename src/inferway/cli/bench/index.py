"""`inferway bench index`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from inferway.bench.index.plan import QUICK, Plan
from inferway.bench.index.report import markdown, terminal_tables
from inferway.bench.index.results import write_run
from inferway.bench.index.run import run_index
from inferway.cli.bench import ending
from inferway.errors import InferwayError


@click.command()
@click.option("--quick", is_flag=True, help="Small indexes: a look, not a result.")
@click.option("--no-peer", is_flag=True, help="Without ai-dynamo-runtime.")
@ending.output_options("index")
def index(quick: bool, no_peer: bool, as_json: bool, save: Path | None) -> None:
    """The index: matching, events, memory and stalls, beside Dynamo's RadixTree."""
    try:
        with Console(stderr=True).status("starting") as status:
            run = run_index(QUICK if quick else Plan(), status.update, beside_peer=not no_peer)
        if save is not None:
            ending.save(save, "index", write_run(run), "index", markdown(run))
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if as_json:
        click.echo(write_run(run), nl=False)
    else:
        ending.show(terminal_tables(run), (), run.machine)
