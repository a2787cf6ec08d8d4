"""`--data` of the benchmarks that read the project's data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from inferway.bench.chats import default_data_dir

_Command = TypeVar("_Command", bound=Callable[..., Any])


def data_option(folders: str) -> Callable[[_Command], _Command]:
    """`folders`: those that are read."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path),
        default=default_data_dir,
        metavar="DIR",
        help=f"The project's data: {folders}.  [default: ../shared/data]",
    )
