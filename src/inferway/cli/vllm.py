"""`inferway vllm …`: vLLM's own command, with our structured output in all of its processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def vllm(arguments: Sequence[str]) -> None:
    """Run vLLM with our structured output: `inferway vllm serve MODEL …`.

    All arguments are vLLM's own, but for two. --report-validity: every stream of a structured
    answer says before [DONE] whether the answer is valid. --allow-stock: with a vLLM that
    Inferway's structured output does not fit, start with vLLM's own.
    """
    from inferway_structured.command import run

    sys.exit(run(arguments))
