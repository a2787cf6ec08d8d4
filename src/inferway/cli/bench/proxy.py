"""`inferway bench proxy`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console

from inferway.bench.peers import install_peers
from inferway.bench.proxy.plan import QUICK, Plan
from inferway.bench.proxy.report import markdown, notes, terminal_tables
from inferway.bench.proxy.results import write_run
from inferway.bench.proxy.run import run_proxy
from inferway.bench.routers import Inferway, Router, SglangRouter, VllmRouter
from inferway.cli.bench import ending
from inferway.errors import InferwayError
from inferway.prompts.prepare import prepare_smollm2


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter repeats: a look, not a result.")
@click.option("--repeats", type=click.IntRange(min=1), help="Repeats of each measurement.")
@click.option("--seconds", type=click.IntRange(min=1), help="Load per repeat.")
@click.option("--no-peers", is_flag=True, help="Only ours; nothing is installed.")
@ending.output_options("proxy")
def proxy(
    quick: bool,
    repeats: int | None,
    seconds: int | None,
    no_peers: bool,
    as_json: bool,
    save: Path | None,
) -> None:
    """What the data plane costs: CPU, added latency and memory, beside its peers."""
    plan = QUICK if quick else Plan()
    plan = msgspec.structs.replace(
        plan, repeats=repeats or plan.repeats, seconds=seconds or plan.seconds
    )
    try:
        with Console(stderr=True).status("starting") as status:
            routers: list[Router] = [Inferway(scoring=False), Inferway(scoring=True)]
            if not no_peers:
                peers = install_peers(status.update)
                routers += [
                    *(VllmRouter(peers, p) for p in ("round_robin", "cache_aware", "kv_aware")),
                    SglangRouter(peers, "round_robin"),
                ]
            run = run_proxy(routers, prepare_smollm2(), plan, status.update)
        if save is not None:
            ending.save(save, "proxy", write_run(run), "proxy", markdown(run))
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if as_json:
        click.echo(write_run(run).decode(), nl=False)
    else:
        ending.show(terminal_tables(run), notes(run), run.machine)
