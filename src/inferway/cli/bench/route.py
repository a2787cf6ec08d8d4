"""`inferway bench route`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from inferway.cli.bench.output import Output, output_options

if TYPE_CHECKING:
    from inferway.bench.progress import OnStep
    from inferway.bench.route_results import RouteRun
    from inferway.bench.routers import Router


@click.command()
@click.option(
    "--quick", is_flag=True, help="Measure fewer and shorter repeats: a look, not a result."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Load each router this number of times, in turns.  [default: 7]",
)
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="Load each router for this time in each repeat.  [default: 4]",
)
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
@click.option(
    "--no-peers", is_flag=True, help="Measure Inferway alone, and install no other router."
)
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
    from inferway.bench.route import QUICK, Plan, run_route
    from inferway.bench.route_report import ROUTE
    from inferway.prompts.prepare import prepare_smollm2

    default = QUICK if quick else Plan()
    plan = Plan(
        repeats=repeats or default.repeats,
        seconds=seconds or default.seconds,
        warm_up_seconds=default.warm_up_seconds,
        connections=connections or default.connections,
        part_repeats=default.part_repeats,
    )

    def measure(on_step: OnStep) -> RouteRun:
        chosen = [r for r in _routers(no_peers, on_step) if _wanted(r, only)]
        if not chosen:
            raise click.UsageError(f"--only {' '.join(only)}: no such router")
        return run_route(chosen, prepare_smollm2(), plan, on_step)

    output.measure(ROUTE, measure)


def _routers(no_peers: bool, on_step: OnStep) -> list[Router]:
    from inferway.bench.peers.packages import install_peers
    from inferway.bench.routers import Inferway, SglangRouter, VllmRouter

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
