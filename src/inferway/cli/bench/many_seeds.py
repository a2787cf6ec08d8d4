"""`inferway bench many-seeds`."""

from __future__ import annotations

from pathlib import Path

import click

from inferway.bench.many_seeds.report import MANY_SEEDS
from inferway.bench.many_seeds.run import plan_like, run_many_seeds, with_seeds
from inferway.cli.bench.doubling import loads_option, rate_option
from inferway.cli.bench.output import Output, output_options


@click.command()
@click.option(
    "--like", type=click.Path(path_type=Path), default=Path("docs/results/validate_real.json"),
    show_default=True, metavar="FILE", help="What engines take, by bench validate --real --save.",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=2), help="How many.  [default: 100]")
@loads_option
@rate_option
@output_options("many-seeds")
def many_seeds(
    like: Path, seeds: int | None, loads: tuple[float, ...], rate: float | None, output: Output
) -> None:
    """The chats of peers --real in virtual time, on engines as validate --real found them: which
    differences are true, and how many seeds it takes to see them."""

    output.measure(
        MANY_SEEDS,
        lambda on_step: run_many_seeds(with_seeds(plan_like(like), seeds, rate, loads), on_step),
    )
