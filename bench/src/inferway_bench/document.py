"""Results in documents: markdown tables, and the marks between which a document keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from inferway_bench.machine import Machine
from inferway_bench.processes import BenchError

_QUIET_LOAD = 0.5  # above it somebody else was at work


def replaced(document: str, benchmark: str, text: str, path: Path) -> str:
    """The document with `text` between the marks of `benchmark`.

    Raises BenchError when it has no marks; `path` is where it lies.
    """
    begin_mark, end_mark = marks(benchmark)
    before, begin, rest = document.partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        raise BenchError(f"{path}: no {begin_mark!r} and {end_mark!r}; the cure: add these lines")
    return f"{before}{begin_mark}\n{text}{end_mark}{after}"


def marks(benchmark: str) -> tuple[str, str]:
    """The lines before and behind what `inferway bench BENCHMARK` writes."""
    return (
        f"<!-- begin: inferway bench {benchmark} -->",
        f"<!-- end: inferway bench {benchmark} -->",
    )


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]], num_left: int = 1) -> list[str]:
    """Lines of a markdown table; the first `num_left` columns are text, the others numbers."""
    ruler = ["---"] * num_left + ["---:"] * (len(head) - num_left)
    return [table_line(head), table_line(ruler), *(table_line(cells) for cells in rows)]


def table_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def is_busy(machine: Machine) -> bool:
    """Before anything was started."""
    return machine.load_before > _QUIET_LOAD


def machine_line(machine: Machine) -> str:
    """What it was measured on, and whether the machine was quiet."""
    return (
        f"Machine: {machine.cores} cores of {machine.cpu}, {machine.memory_gib} GiB, "
        f"{machine.system}; load average before the run {machine.load_before}"
        + (
            ": **the machine was busy, take the figures as provisional**."
            if is_busy(machine)
            else "."
        )
    )


def versions_line(machine: Machine) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return f"Python {machine.python}, {packages}."
