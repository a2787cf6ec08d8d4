"""Which vLLM a benchmark starts."""

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
    help="The command of real engines.  [default: $INFERWAY_VLLM_VENV/bin/vllm]",
)
