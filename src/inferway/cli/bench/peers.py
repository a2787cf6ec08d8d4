"""`inferway bench peers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import click
import msgspec

from inferway.bench.peers.fleets import real_engines
from inferway.bench.peers.packages import install_peers
from inferway.bench.peers.plan import QUICK, QUICK_REAL, REAL, SIMULATED, Plan
from inferway.bench.peers.report import PEERS, PEERS_REAL
from inferway.bench.peers.results import PeersRun, joined
from inferway.bench.peers.run import Kept, run_peers
from inferway.bench.routers import Inferway, Router, SglangRouter, VllmRouter
from inferway.cli.bench.doubling import loads_option, rate_option
from inferway.cli.bench.output import OnStep, Output, output_options
from inferway.cli.bench.vllm import layers_option, vllm_option


@click.command()
@click.option("--real", is_flag=True, help="In front of real vLLM on the CPU, not simulated.")
@vllm_option
@layers_option
@click.option("--quick", is_flag=True, help="Few requests, one load: a look, not a result.")
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="Only the router called so, or those whose name has it.",
)
@click.option("--no-peers", is_flag=True, help="Only ours; nothing is installed.")
@click.option("--seeds", type=click.IntRange(min=1), help="How many.  [default: 5]")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, help="Where they begin.")
@loads_option
@rate_option
@click.option(
    "--more", is_flag=True,
    help="Keep what --save has written before, and add to it, at the same rate.",
)  # fmt: skip
@click.option(
    "--samples", type=click.File("wb"), metavar="FILE",
    help="Every request of every load into FILE, a JSON line for each load.",
)  # fmt: skip
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
    """Ours and the routers from PyPI in front of one fleet, with the same chats; with --real,
    results/peers_real.json."""
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

    def run(on_step: OnStep) -> PeersRun:
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
    ours: list[Router] = [Inferway(scoring=True), Inferway(scoring=False)]
    if no_peers:
        return ours, ours[1]
    venv = install_peers(on_step)
    policies = ("round_robin", "cache_aware", "consistent_hash", "kv_aware")
    theirs: list[Router] = [VllmRouter(venv, policy) for policy in policies]
    return [*ours, *theirs, SglangRouter(venv, "cache_aware")], theirs[0]
