"""`inferway bench scale`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from inferway_bench.cli.output import Output, output_options


@click.command()
@click.option(
    "--engines",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="NUMBER",
    help="Measure a gateway with this number of engines. Repeat the flag for more.  "
    "[default: 16, 64, 250, 1000]",
)
@click.option(
    "--requests",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATE",
    help="Add up the costs of this number of requests a second to each engine.  [default: 1]",
)
@click.option(
    "--route",
    type=click.Path(path_type=Path),
    default=Path("docs/results/route.json"),
    show_default=True,
    metavar="FILE",
    help="Take the cost of carrying a request from this file, which inferway bench route --save "
    "wrote.",
)
@output_options("scale")
def scale(engines: tuple[int, ...], requests: float | None, route: Path, output: Output) -> None:
    """Measure one gateway process by the number of its engines: CPU time of a request, memory, and
    the number of engines that one core can serve."""
    from inferway_bench.scale.plan import Plan
    from inferway_bench.scale.report import SCALE
    from inferway_bench.scale.run import run_scale

    plan = Plan()
    plan = msgspec.structs.replace(
        plan, engines=engines or plan.engines, requests=requests or plan.requests
    )
    output.measure(SCALE, lambda on_step: run_scale(plan, route, on_step))
