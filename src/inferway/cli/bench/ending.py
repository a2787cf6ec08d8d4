"""What the benchmarks do with what they have measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType

from inferway.bench.document import update_document
from inferway.bench.machine import Machine

_Command = TypeVar("_Command", bound=Callable[..., Any])


def output_options(name: str) -> Callable[[_Command], _Command]:
    """Decorates a benchmark's command with --json (`as_json`) and --save DOCS, whose results are
    called NAME."""
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="JSON on standard output, not tables."
    )
    save = click.option(
        "--save",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DOCS",
        help=f"Write DOCS/results/{name}.json and the tables in DOCS/performance.md.",
    )
    return lambda command: as_json(save(command))


def save(docs: Path, name: str, run: bytes, section: str, text: str) -> Path:
    """`run` as results/NAME.json, `text` as the section of performance.md; returns the folder of
    the results, for pictures."""
    results = docs / "results"
    results.mkdir(exist_ok=True)
    (results / f"{name}.json").write_bytes(run)
    update_document(docs / "performance.md", section, text)
    return results


def show(tables: Iterable[RenderableType], lines: Iterable[str], machine: Machine) -> None:
    """On standard output: tables, what is to be said of them, and where it was measured."""
    console = Console()
    for table in tables:
        console.print(table)
    for line in lines:
        console.print(f"  {line}", highlight=False)
    console.print(f"  {machine.cores} cores of {machine.cpu}, {machine.date} UTC")
