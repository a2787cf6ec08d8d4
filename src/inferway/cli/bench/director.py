"""`inferway bench director`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from inferway.bench.chats import default_data_dir
from inferway.bench.director.plan import Plan
from inferway.bench.director.report import markdown, missed, terminal_tables
from inferway.bench.director.results import write_run
from inferway.bench.director.run import run_director
from inferway.cli.bench import ending
from inferway.errors import InferwayError

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
@ending.output_options("director")
def director(quick: bool, data: Path, as_json: bool, save: Path | None) -> None:
    """Decide on chats that grow turn by turn: what a decision costs, and how it grows."""
    try:
        with Console(stderr=True).status("starting") as status:
            run = run_director(data, _QUICK if quick else _FULL, status.update)
        if save is not None:
            ending.save(save, "director", write_run(run), "director", markdown(run))
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if as_json:
        click.echo(write_run(run), nl=False)
    else:
        lines = [f"not as asked: {name}" for name in missed(run)]
        ending.show(terminal_tables(run), lines, run.machine)
