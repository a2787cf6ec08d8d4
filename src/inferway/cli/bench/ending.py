"""What the benchmarks do with what they have measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType

from inferway.bench.document import update_document
from inferway.bench.machine import Machine


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
