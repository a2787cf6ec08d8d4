"""What the benchmarks of routers ask alike: their options, and which routers there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from inferway_bench.progress import OnStep
    from inferway_bench.routers import Router

QUICK_OPTION = click.option(
    "--quick", is_flag=True, help="Measure fewer and shorter repeats: a look, not a result."
)
SECONDS_OPTION = click.option(
    "--seconds",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="Load each router for this time in each repeat.  [default: 4]",
)
NO_PEERS_OPTION = click.option(
    "--no-peers", is_flag=True, help="Measure Inferway alone, and install no other router."
)


def routers(no_peers: bool, on_step: OnStep, sglang_policy: str) -> list[Router]:
    """Ours, and unless `no_peers` the others, which are installed."""
    from inferway_bench.peers.packages import install_peers
    from inferway_bench.routers import Inferway, SglangRouter, VllmRouter

    ours: list[Router] = [Inferway(scoring=False), Inferway(scoring=True)]
    if no_peers:
        return ours
    peers = install_peers(on_step)
    theirs = [VllmRouter(peers, policy) for policy in ("round_robin", "cache_aware", "kv_aware")]
    return [*ours, *theirs, SglangRouter(peers, sglang_policy)]
