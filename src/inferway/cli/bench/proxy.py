"""`inferway bench proxy`."""

from __future__ import annotations

from collections.abc import Callable

import click
import msgspec

from inferway.bench.peers.packages import install_peers
from inferway.bench.proxy.plan import QUICK, Plan
from inferway.bench.proxy.report import PROXY
from inferway.bench.proxy.run import run_proxy
from inferway.bench.routers import Inferway, Router, SglangRouter, VllmRouter
from inferway.cli.bench.output import Output, output_options
from inferway.prompts.prepare import prepare_smollm2


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter repeats: a look, not a result.")
@click.option("--repeats", type=click.IntRange(min=1), help="Repeats of each measurement.")
@click.option("--seconds", type=click.IntRange(min=1), help="Load per repeat.")
@click.option("--no-peers", is_flag=True, help="Only ours; nothing is installed.")
@output_options("proxy")
def proxy(
    quick: bool,
    repeats: int | None,
    seconds: int | None,
    no_peers: bool,
    output: Output,
) -> None:
    """What the data plane costs: CPU, added latency and memory, beside its peers."""
    plan = QUICK if quick else Plan()
    plan = msgspec.structs.replace(
        plan, repeats=repeats or plan.repeats, seconds=seconds or plan.seconds
    )
    output.measure(
        PROXY,
        lambda on_step: run_proxy(_routers(no_peers, on_step), prepare_smollm2(), plan, on_step),
    )


def _routers(no_peers: bool, on_step: Callable[[str], None]) -> list[Router]:
    ours: list[Router] = [Inferway(scoring=False), Inferway(scoring=True)]
    if no_peers:
        return ours
    peers = install_peers(on_step)
    theirs = [VllmRouter(peers, policy) for policy in ("round_robin", "cache_aware", "kv_aware")]
    return [*ours, *theirs, SglangRouter(peers, "round_robin")]
