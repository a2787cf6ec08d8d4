"""`inferway bench structured`."""

from __future__ import annotations

from pathlib import Path

import click

from inferway_bench.cli.output import Output, output_options


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--model",
    type=click.Path(file_okay=False, path_type=Path),
    help="Use the tokens of the model in this directory, which has its tokenizer.json and "
    "config.json. The default is SmolLM2's tokenizer, which is installed with Inferway.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Measure 20 schemas, with at most 2 s for each compile: a look, not a result.",
)
@output_options("structured")
def structured(file: Path, model: Path | None, quick: bool, output: Output) -> None:
    """Measure which of the JSON schemas in FILE are enforced, and how fast, beside llguidance,
    xgrammar, outlines-core and vLLM.

    FILE has a JSON object a line, {"id", "schema", "tests": [{"valid", "data"}]}. The stored
    results are of 300 schemas of https://github.com/guidance-ai/jsonschemabench (its folder
    maskbench/data), which states no licence and is not installed with Inferway:
    scripts/jsonschemabench_sample.py of Inferway's repository writes this file from a clone.
    The environment variable INFERWAY_VLLM_VENV names the virtual environment that has vLLM and
    xgrammar.
    """
    from inferway.prompts.prepare import PACKAGED_SMOLLM2
    from inferway_bench.structured.plan import QUICK, Plan
    from inferway_bench.structured.report import STRUCTURED
    from inferway_bench.structured.run import run_structured

    plan, directory = QUICK if quick else Plan(), model or PACKAGED_SMOLLM2
    output.measure(STRUCTURED, lambda on_step: run_structured(plan, file, directory, on_step))
