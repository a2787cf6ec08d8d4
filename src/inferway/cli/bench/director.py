"""`inferway bench director`."""

from __future__ import annotations

from pathlib import Path

import click

from inferway.bench.chats import default_data_dir
from inferway.bench.director.plan import Plan
from inferway.bench.director.report import DIRECTOR
from inferway.bench.director.run import run_director
from inferway.cli.bench.output import Output, output_options

_FULL = Plan()
_QUICK = Plan(chats=2, longest=8_000, probes=8, others=50, repeats=50)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter chats: a look, not a result.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=default_data_dir,
    metavar="DIR",
    help="The project's data: DIR/chat.  [default: ../shared/data]",
)
@output_options("director")
def director(quick: bool, data: Path, output: Output) -> None:
    """Decide on chats that grow turn by turn: what a decision costs, and how it grows."""
    plan = _QUICK if quick else _FULL
    output.measure(DIRECTOR, lambda on_step: run_director(data, plan, on_step))
