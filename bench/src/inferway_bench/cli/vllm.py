"""Which vLLM a benchmark starts, and how much of the model."""

from __future__ import annotations

import os
from pathlib import Path

import click


def _default() -> Path | None:
    venv = os.environ.get("INFERWAY_VLLM_VENV")
    return Path(venv) / "bin" / "vllm" if venv else None


vllm_option = click.option(
    "--vllm",
    type=click.Path(path_type=Path),
    default=_default,
    metavar="PATH",
    help="Start real engines with this command.  [default: $INFERWAY_VLLM_VENV/bin/vllm]",
)

layers_option = click.option(
    "--layers",
    type=click.IntRange(min=1, max=30),
    metavar="N",
    help="Give real engines N layers of SmolLM2's shape and weights that mean nothing, where the "
    "CPU is slow.  [default: the model, all 30]",
)
