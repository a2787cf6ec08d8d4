"""`inferway bench proxy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from inferway.cli.bench.output import Output, output_options

if TYPE_CHECKING:
    from inferway.bench.progress import OnStep
    from inferway.bench.routers import Router


@click.command()
@click.option(
    "--quick", is_flag=True, help="Measure fewer and shorter repeats: a look, not a result."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Load each router this number of times, in turns.  [default: 9]",
)
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="Load each router for this time in each repeat.  [default: 4]",
)
@click.option(
    "--no-peers", is_flag=True, help="Measure Inferway alone, and install no other router."
)
@output_options("proxy")
def proxy(
    quick: bool,
    repeats: int | None,
    seconds: int | None,
    no_peers: bool,
    output: Output,
) -> None:
    """Measure what the data plane costs beside other routers: CPU time, added latency and memory.
    It needs the program wrk."""
    from inferway.bench.proxy.plan import QUICK, Plan
    from inferway.bench.proxy.report import PROXY
    from inferway.bench.proxy.run import run_proxy
    from inferway.prompts.prepare import prepare_smollm2

    plan = QUICK if quick else Plan()
    plan = msgspec.structs.replace(
        plan, repeats=repeats or plan.repeats, seconds=seconds or plan.seconds
    )
    output.measure(
        PROXY,
        lambda on_step: run_proxy(_routers(no_peers, on_step), prepare_smollm2(), plan, on_step),
    )


def _routers(no_peers: bool, on_step: OnStep) -> list[Router]:
    from inferway.bench.peers.packages import install_peers
    from inferway.bench.routers import Inferway, SglangRouter, VllmRouter

    ours: list[Router] = [Inferway(scoring=False), Inferway(scoring=True)]
    if no_peers:
        return ours
    peers = install_peers(on_step)
    theirs = [VllmRouter(peers, policy) for policy in ("round_robin", "cache_aware", "kv_aware")]
    return [*ours, *theirs, SglangRouter(peers, "round_robin")]
