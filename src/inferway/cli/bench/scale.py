"""`inferway bench scale`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from inferway.bench.scale.plan import Plan
from inferway.bench.scale.report import SCALE
from inferway.bench.scale.run import run_scale
from inferway.cli.bench.output import Output, output_options


@click.command()
@click.option(
    "--engines", type=click.IntRange(min=1), multiple=True,
    help="Repeat for more.  [default: 16, 64, 250, 1000]",
)  # fmt: skip
@click.option("--requests", type=click.FloatRange(min=0, min_open=True), help="A second, of each.")
@click.option(
    "--route", type=click.Path(path_type=Path), default=Path("docs/results/route.json"),
    show_default=True, metavar="FILE", help="What carrying a request costs, by bench route --save.",
)  # fmt: skip
@output_options("scale")
def scale(engines: tuple[int, ...], requests: float | None, route: Path, output: Output) -> None:
    """One gateway process by the number of engines: CPU a request, memory, and where it ends."""
    plan = Plan()
    plan = msgspec.structs.replace(
        plan, engines=engines or plan.engines, requests=requests or plan.requests
    )
    output.measure(SCALE, lambda on_step: run_scale(plan, route, on_step))
