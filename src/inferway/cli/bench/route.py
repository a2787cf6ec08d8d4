"""`inferway bench route`."""

from __future__ import annotations

from collections.abc import Callable

import click

from inferway.bench.peers.packages import install_peers
from inferway.bench.route import Plan, run_route
from inferway.bench.route_report import ROUTE
from inferway.bench.route_results import RouteRun
from inferway.bench.routers import Inferway, Router, SglangRouter, VllmRouter
from inferway.cli.bench.output import OnStep, Output, output_options
from inferway.prompts.prepare import prepare_smollm2

_QUICK = Plan(repeats=2, seconds=1, warm_up_seconds=1, part_repeats=60)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter repeats: a look, not a result.")
@click.option("--repeats", type=click.IntRange(min=1), help="Repeats of each measurement.")
@click.option("--seconds", type=click.IntRange(min=1), help="Load per repeat.")
@click.option("--connections", type=click.IntRange(min=1), help="Connections of the load.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only routers whose name has TEXT.")
@click.option("--no-peers", is_flag=True, help="Only ours; nothing is installed.")
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
    """CPU time per routed request: without scoring, and with an 8,000-token chat."""
    default = _QUICK if quick else Plan()
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
