"""`inferway bench peers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
import msgspec

from inferway_bench.cli.doubling import loads_option, rate_option
from inferway_bench.cli.output import Output, output_options
from inferway_bench.cli.router_options import NO_PEERS_OPTION
from inferway_bench.cli.vllm import layers_option, vllm_option

if TYPE_CHECKING:
    from inferway_bench.peers.plan import Plan
    from inferway_bench.peers.results import PeersRun
    from inferway_bench.peers.run import Kept
    from inferway_bench.progress import OnCountedStep
    from inferway_bench.routers import Router


@click.command()
@click.option(
    "--real",
    is_flag=True,
    help="Run real vLLM on the CPU behind the routers, instead of simulated engines "
    "(results/peers_real.json).",
)
@vllm_option
@layers_option
@click.option("--quick", is_flag=True, help="Send few requests at one load: a look, not a result.")
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="Measure the router with this name alone, or those whose names contain TEXT if none has "
    "this name. Repeat the flag for more.",
)
@NO_PEERS_OPTION
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Measure each load with this number of seeds.  [default: 5]",
)
@click.option(
    "--first-seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="SEED",
    help="Count the seeds up from this one.",
)
@loads_option
@rate_option
@click.option(
    "--more",
    is_flag=True,
    help="Keep what --save has written before, and add to it at the same rate.",
)
@click.option(
    "--samples",
    type=click.File("wb"),
    metavar="FILE",
    help="Write every request to FILE, as a JSON line for each load of each router.",
)
@output_options("peers")
def peers(
    real: bool,
    vllm: Path | None,
    layers: int | None,
    quick: bool,
    only: tuple[str, ...],
    no_peers: bool,
    seeds: int | None,
    first_seed: int,
    loads: tuple[float, ...],
    rate: float | None,
    more: bool,
    samples: IO[bytes] | None,
    output: Output,
) -> None:
    """Compare Inferway with other routers from PyPI, in front of one fleet and with the same
    chats."""
    from inferway_bench.peers.fleets import real_engines
    from inferway_bench.peers.plan import QUICK, QUICK_REAL, REAL, SIMULATED
    from inferway_bench.peers.report import PEERS, PEERS_REAL
    from inferway_bench.peers.results import joined
    from inferway_bench.peers.run import run_peers

    plan = (QUICK_REAL if real else QUICK) if quick else (REAL if real else SIMULATED)
    if real:
        plan = msgspec.structs.replace(plan, engines=real_engines(layers))
    benchmark = PEERS_REAL if real else PEERS
    if more and output.save is None:
        raise click.UsageError("--more: what was before is where --save writes; give it, too")
    before = benchmark.load(output.save) if more and output.save is not None else None
    if before is not None and rate is None:
        rate = before.doubling_rate
    plan = msgspec.structs.replace(
        plan,
        seeds=seeds or plan.seeds,
        first_seed=first_seed,
        loads=loads or plan.loads,
        rate=rate or plan.rate,
    )

    def run(on_step: OnCountedStep) -> PeersRun:
        routers, round_robin = _routers(no_peers, lambda what: on_step(what))
        wanted = chosen(routers, only)
        if not wanted:
            raise click.UsageError(f"--only {' '.join(only)}: no such router")
        found = run_peers(plan, wanted, round_robin, vllm, on_step, _keeper(plan, samples))
        return found if before is None else joined(before, found)

    output.measure(benchmark, run)


def chosen(routers: Sequence[Router], only: tuple[str, ...]) -> list[Router]:
    """Those called so, or whose names have a text that nobody is called."""
    names = [router.label for router in routers]

    def is_wanted(name: str) -> bool:
        return any(name == text or (text not in names and text in name) for text in only)

    return [router for router in routers if not only or is_wanted(router.label)]


def _keeper(plan: Plan, samples: IO[bytes] | None) -> Callable[[Kept], None]:
    """Writes samples, behind a line that says what was sent."""
    if samples is None:
        return lambda _: None
    samples.write(msgspec.json.encode({"plan": plan}) + b"\n")

    def keep(kept: Kept) -> None:
        samples.write(msgspec.json.encode(kept) + b"\n")
        samples.flush()

    return keep


def _routers(no_peers: bool, on_step: Callable[[str], None]) -> tuple[list[Router], Router]:
    """All of them, and the one that goes round-robin."""
    from inferway_bench.peers.packages import install_peers
    from inferway_bench.routers import Inferway, SglangRouter, VllmRouter

    ours: list[Router] = [Inferway(scoring=True), Inferway(scoring=False)]
    if no_peers:
        return ours, ours[1]
    venv = install_peers(on_step)
    policies = ("round_robin", "cache_aware", "consistent_hash", "kv_aware")
    theirs: list[Router] = [VllmRouter(venv, policy) for policy in policies]
    return [*ours, *theirs, SglangRouter(venv, "cache_aware")], theirs[0]
