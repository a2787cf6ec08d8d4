"""`inferway bench epp`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from inferway.bench.epp.report import markdown, missed, terminal_tables
from inferway.bench.epp.results import write_run
from inferway.bench.epp.run import Plan, run_epp
from inferway.cli.bench import ending
from inferway.errors import InferwayError
from inferway.prompts.prepare import prepare_smollm2

_QUICK = Plan(repeats=2, seconds=2, warm_up_seconds=1, idle_seconds=2.0)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter repeats: a look, not a result.")
@click.option(
    "--connections",
    default=Plan().connections,
    help="Requests at a time; with 1, no picker can take several messages at once.  [default: 8]",
)
@ending.output_options("epp")
def epp(quick: bool, connections: int, as_json: bool, save: Path | None) -> None:
    """The endpoint picker behind a real Envoy: CPU time of a pick, and of a streamed chunk."""
    try:
        plan = replace(_QUICK if quick else Plan(), connections=connections)
        with Console(stderr=True).status("starting") as status:
            run = run_epp(prepare_smollm2(), plan, status.update)
        if save is not None:
            ending.save(save, "epp", write_run(run), "epp", markdown(run))
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if as_json:
        click.echo(write_run(run), nl=False)
    else:
        lines = [f"not as asked: {name}" for name in missed(run)]
        ending.show(terminal_tables(run), lines, run.machine)
