"""`inferway bench structured`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from inferway.bench.structured.plan import QUICK, Plan
from inferway.bench.structured.report import markdown, terminal_tables
from inferway.bench.structured.results import write_run
from inferway.bench.structured.run import run_structured
from inferway.cli.bench import ending
from inferway.errors import InferwayError


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--model",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("~/.cache/inferway/smollm2"),
    show_default=True,
    help="A model's directory: its tokenizer.json and config.json.",
)
@click.option("--quick", is_flag=True, help="Few schemas, short limits: a look, not a result.")
@ending.output_options("structured")
def structured(file: Path, model: Path, quick: bool, as_json: bool, save: Path | None) -> None:
    """What is kept of the schemas in FILE, beside llguidance, xgrammar, outlines-core and vLLM.

    FILE has a JSON object a line, {"id", "schema", "tests": [{"valid", "data"}]}, as
    JSONSchemaBench has. INFERWAY_VLLM_VENV names the environment that has vLLM and xgrammar.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("starting")

            def on_progress(what: str, done: int, total: int) -> None:
                progress.update(bar, description=what, completed=done, total=total)

            plan = QUICK if quick else Plan()
            run = run_structured(plan, file, model.expanduser(), on_progress)
        if save is not None:
            ending.save(save, "structured", write_run(run), "structured", markdown(run))
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if as_json:
        click.echo(write_run(run).decode(), nl=False)
    else:
        ending.show(terminal_tables(run), (), run.machine)
