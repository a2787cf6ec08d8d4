"""`inferway bench validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from inferway_bench.cli.output import Output, output_options
from inferway_bench.cli.vllm import layers_option, vllm_option

if TYPE_CHECKING:
    from inferway_bench.progress import OnCountedStep
    from inferway_bench.routers import Router
    from inferway_bench.simulate.validated import ValidateRun
    from inferway_bench.venvs import Venv


@click.command()
@click.option(
    "--real", is_flag=True, help="Compare with real vLLM on the CPU, with constants fitted to it."
)
@vllm_option
@layers_option
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="Compare only routers whose name has TEXT. Repeat the flag for more.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATE",
    help="Send this number of requests a second.",
)
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    metavar="SEED",
    help="Draw the chats with this seed. Repeat the flag for more runs.",
)
@output_options("validate")
def validate(
    real: bool,
    vllm: Path | None,
    layers: int | None,
    only: tuple[str, ...],
    rate: float | None,
    seeds: tuple[int, ...],
    output: Output,
) -> None:
    """Say whether the simulation is right: the same chats over HTTP and simulated, through real
    routers before engines that speak HTTP, with --real before vLLM (results/validate_real.json)."""
    from inferway_bench.peers.packages import install_peers
    from inferway_bench.routers import VllmRouter
    from inferway_bench.simulate.validate import plan_of, run_validate
    from inferway_bench.simulate.validated import VALIDATE, VALIDATE_REAL

    def measure(on_step: OnCountedStep) -> ValidateRun:
        plan = plan_of(real, layers, rate, seeds)
        venv = install_peers(lambda what: on_step(what))
        chosen = [
            (router, policy)
            for router, policy in _routers(real, venv)
            if not only or any(text in router.label for text in only)
        ]
        if not chosen:
            raise click.UsageError(f"--only {' '.join(only)}: no such router")
        return run_validate(plan, chosen, VllmRouter(venv, "round_robin"), vllm, on_step)

    output.measure(VALIDATE_REAL if real else VALIDATE, measure)


def _routers(real: bool, venv: Venv) -> list[tuple[Router, str]]:
    """Each with the policy that stands for it."""
    from inferway_bench.routers import Inferway, SglangRouter, VllmRouter

    found: list[tuple[Router, str]] = [
        (Inferway(scoring=True), "expected-ttft"),
        (VllmRouter(venv, "round_robin"), "round-robin"),
        (VllmRouter(venv, "consistent_hash"), "consistent-hash"),
    ]
    if real:
        return found
    return [
        *found,
        (VllmRouter(venv, "cache_aware"), "cache-aware"),
        (SglangRouter(venv, "cache_aware"), "cache-aware"),
    ]
