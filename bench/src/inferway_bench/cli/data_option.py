"""`--data` of the benchmarks that read real text or traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _installed() -> Path:
    from inferway_bench.chats import default_data_dir

    return default_data_dir()


def data_option(folder: str) -> Callable[[_Command], _Command]:
    """`folder`: the one of DIR that is read."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path),
        default=_installed,
        metavar="DIR",
        show_default="installed with Inferway",
        help=f"Read DIR/{folder} instead of the data that is installed with the benchmarks.",
    )
