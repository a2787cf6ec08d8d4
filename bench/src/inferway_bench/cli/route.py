"""`inferway bench route`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from inferway_bench.cli.output import Output, output_options
from inferway_bench.cli.router_options import (
    NO_PEERS_OPTION,
    QUICK_OPTION,
    SECONDS_OPTION,
    routers,
)

if TYPE_CHECKING:
    from inferway_bench.progress import OnStep
    from inferway_bench.route_results import RouteRun
    from inferway_bench.routers import Router


@click.command()
@QUICK_OPTION
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Load each router this number of times, in turns.  [default: 7]",
)
@SECONDS_OPTION
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Send requests over this number of connections at a time.  [default: 8]",
)
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="Measure only routers whose name has TEXT. Repeat the flag for more.",
)
@NO_PEERS_OPTION
@output_options("route")
def route(
    quick: bool,
    repeats: int | None,
    seconds: int | None,
    connections: int | None,
    only: tuple[str, ...],
    no_peers: bool,
    output: Output,
) -> None:
    """Measure the CPU time that a router takes for a request, of a short chat and of a chat of
    8,000 tokens, beside other routers. It needs the program wrk."""
    from inferway.prompts.prepare import prepare_smollm2
    from inferway_bench.route import QUICK, Plan, run_route
    from inferway_bench.route_report import ROUTE

    default = QUICK if quick else Plan()
    plan = Plan(
        repeats=repeats or default.repeats,
        seconds=seconds or default.seconds,
        warm_up_seconds=default.warm_up_seconds,
        connections=connections or default.connections,
        part_repeats=default.part_repeats,
    )

    def measure(on_step: OnStep) -> RouteRun:
        chosen = [r for r in routers(no_peers, on_step, "cache_aware") if _wanted(r, only)]
        if not chosen:
            raise click.UsageError(f"--only {' '.join(only)}: no such router")
        return run_route(chosen, prepare_smollm2(), plan, on_step)

    output.measure(ROUTE, measure)


def _wanted(router: Router, only: tuple[str, ...]) -> bool:
    return not only or any(text in router.label for text in only)
