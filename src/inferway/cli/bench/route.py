"""`inferway bench route`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from inferway.bench.peers import install_peers
from inferway.bench.report import cpu_table, markdown, notes, parts_table
from inferway.bench.results import RouteRun, write_lines
from inferway.bench.route import Plan, run_route
from inferway.bench.routers import Inferway, Router, SglangRouter, VllmRouter
from inferway.cli.bench import ending
from inferway.errors import InferwayError
from inferway.prompts.prepare import prepare_smollm2

_QUICK = Plan(repeats=2, seconds=1, warm_up_seconds=1, part_repeats=60)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter repeats: a look, not a result.")
@click.option("--repeats", type=click.IntRange(min=1), help="Repeats of each measurement.")
@click.option("--seconds", type=click.IntRange(min=1), help="Load per repeat.")
@click.option("--connections", type=click.IntRange(min=1), help="Connections of the load.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only routers whose name has TEXT.")
@click.option("--no-peers", is_flag=True, help="Only ours; nothing is installed.")
@click.option("--lines", is_flag=True, help="JSON lines on standard output instead of tables.")
@click.option(
    "--save",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DOCS",
    help="Write DOCS/results/route.json and the tables in DOCS/performance.md.",
)
def route(
    quick: bool,
    repeats: int | None,
    seconds: int | None,
    connections: int | None,
    only: tuple[str, ...],
    no_peers: bool,
    lines: bool,
    save: Path | None,
) -> None:
    """CPU time per routed request: without scoring, and with an 8,000-token chat."""
    default = _QUICK if quick else Plan()
    plan = Plan(
        repeats=repeats or default.repeats,
        seconds=seconds or default.seconds,
        warm_up_seconds=default.warm_up_seconds,
        connections=connections or default.connections,
        part_repeats=default.part_repeats,
    )
    steps = Console(stderr=True)
    try:
        with steps.status("starting") as status:
            chosen = [r for r in _routers(no_peers, status.update) if _wanted(r, only)]
            if not chosen:
                raise click.UsageError(f"--only {' '.join(only)}: no such router")
            run = run_route(chosen, prepare_smollm2(), plan, status.update)
        if save is not None:
            ending.save(save, "route", write_lines(run).encode(), "route", markdown(run))
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if lines:
        click.echo(write_lines(run), nl=False)
    else:
        _show(run, Console())


def _routers(no_peers: bool, on_step: Callable[[str], None]) -> list[Router]:
    ours: list[Router] = [Inferway(scoring=False), Inferway(scoring=True)]
    if no_peers:
        return ours
    peers = install_peers(on_step)
    return [
        *ours,
        VllmRouter(peers, "round_robin"),
        VllmRouter(peers, "cache_aware"),
        VllmRouter(peers, "kv_aware"),
        SglangRouter(peers, "cache_aware"),
    ]


def _wanted(router: Router, only: tuple[str, ...]) -> bool:
    return not only or any(text in router.label for text in only)


def _show(run: RouteRun, console: Console) -> None:
    console.print(cpu_table(run))
    for note in notes(run):
        console.print(f"  {note}", highlight=False)
    console.print(parts_table(run))
    console.print(f"  {run.machine.cores} cores of {run.machine.cpu}, {run.machine.date} UTC")
