"""`inferway bench director`."""

from __future__ import annotations

from pathlib import Path

import click

from inferway_bench.cli.data_option import data_option
from inferway_bench.cli.output import Output, output_options


@click.command()
@click.option(
    "--quick", is_flag=True, help="Measure fewer and shorter chats: a look, not a result."
)
@data_option("chat")
@output_options("director")
def director(quick: bool, data: Path, output: Output) -> None:
    """Measure what a decision costs while chats grow turn by turn: the CPU time of each step, and a
    choice among 1,000 endpoints."""
    from inferway_bench.director.plan import QUICK, Plan
    from inferway_bench.director.report import DIRECTOR
    from inferway_bench.director.run import run_director

    plan = QUICK if quick else Plan()
    output.measure(DIRECTOR, lambda on_step: run_director(data, plan, on_step))
