"""`inferway bench many-seeds`."""

from __future__ import annotations

from pathlib import Path

import click

from inferway_bench.cli.doubling import loads_option, rate_option
from inferway_bench.cli.output import Output, output_options


@click.command()
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    default=Path("docs/results/validate_real.json"),
    show_default=True,
    metavar="FILE",
    help="Simulate engines with the constants in this file, which inferway bench validate --real "
    "--save wrote.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=2),
    metavar="NUMBER",
    help="Simulate each load with this number of seeds.  [default: 100]",
)
@loads_option
@rate_option
@output_options("many-seeds")
def many_seeds(
    like: Path, seeds: int | None, loads: tuple[float, ...], rate: float | None, output: Output
) -> None:
    """Simulate the chats of inferway bench peers --real in virtual time, on engines as validate
    --real measured them. The result says which differences between policies are real, and the
    number of seeds that it takes to see them."""
    from inferway_bench.many_seeds.report import MANY_SEEDS
    from inferway_bench.many_seeds.run import plan_like, run_many_seeds, with_seeds

    output.measure(
        MANY_SEEDS,
        lambda on_step: run_many_seeds(with_seeds(plan_like(like), seeds, rate, loads), on_step),
    )
