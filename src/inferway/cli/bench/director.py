"""`inferway bench director`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from inferway.bench.chats import default_data_dir
from inferway.bench.director.plan import Plan
from inferway.bench.director.report import markdown, missed, terminal_tables
from inferway.bench.director.results import DirectorRun, write_run
from inferway.bench.director.run import run_director
from inferway.bench.document import update_document
from inferway.errors import InferwayError

_FULL = Plan()
_QUICK = Plan(chats=2, longest=8_000, probes=8, others=50)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter chats: a look, not a result.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=default_data_dir,
    metavar="DIR",
    help="The project's data: DIR/chat.  [default: ../shared/data]",
)
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output, not tables.")
@click.option(
    "--save",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DOCS",
    help="Write DOCS/results/director.json and the tables in DOCS/performance.md.",
)
def director(quick: bool, data: Path, as_json: bool, save: Path | None) -> None:
    """Decide on chats that grow turn by turn: what a decision costs, and how it grows."""
    try:
        with Console(stderr=True).status("starting") as status:
            run = run_director(data, _QUICK if quick else _FULL, status.update)
        if save is not None:
            _save(run, save)
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if as_json:
        click.echo(write_run(run), nl=False)
    else:
        _show(run, Console())


def _save(run: DirectorRun, docs: Path) -> None:
    (docs / "results").mkdir(exist_ok=True)
    (docs / "results" / "director.json").write_bytes(write_run(run))
    update_document(docs / "performance.md", "director", markdown(run))


def _show(run: DirectorRun, console: Console) -> None:
    for table in terminal_tables(run):
        console.print(table)
    for name in missed(run):
        console.print(f"  not as asked: {name}", highlight=False)
    console.print(f"  {run.machine.cores} cores of {run.machine.cpu}, {run.machine.date} UTC")
