"""What a benchmark's command shows and keeps: progress, tables, files, a comparison."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from inferway_bench import performance, plotting
from inferway_bench.benchmark import Benchmark
from inferway_bench.catalog import BENCHMARKS
from inferway_bench.compare import Change, Comparison
from inferway_bench.results import AnyRun, write_run

_WIDE = 140  # characters, where there is no terminal that has a width


class OnStep:
    """Tells what is under way and how much of it is done: as given, or as the words say it
    (`short chat: round_robin, 3 of 7`)."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._bar = shown.add_task("starting", total=None)

    def __call__(self, what: str, done: int | None = None, total: int | None = None) -> None:
        counted = re.search(r"([\d,]+) of ([\d,]+)", what)
        if total is None and counted is not None:
            done, total = (int(number.replace(",", "")) for number in counted.groups())
        self._shown.update(self._bar, description=what, completed=done or 0, total=total)


def keep(benchmark: Benchmark[AnyRun], run: AnyRun, docs: Path) -> None:
    """The run as results/NAME.json, its pictures beside it, and the pages made anew."""
    path = benchmark.results(docs)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(write_run(benchmark.name, run))
    draw(benchmark, run, path.parent, ("svg",))
    performance.write(docs, BENCHMARKS)


def draw(
    benchmark: Benchmark[AnyRun], run: AnyRun, directory: Path, formats: Sequence[str]
) -> None:
    for picture in benchmark.pictures(run):
        plotting.write(picture, directory, formats)


def show(benchmark: Benchmark[AnyRun], run: AnyRun) -> None:
    """On standard output: tables, what is to be said of them, what was missed, and where."""
    console = _console()
    for table in benchmark.tables(run):
        console.print(table)
    missed = [f"not as asked: {goal.what}: {goal.found}" for goal in run.goals() if not goal.is_met]
    for line in (*benchmark.notes(run), *missed):
        console.print(f"  {line}", highlight=False)
    machine = run.machine
    console.print(
        f"  {machine.cores} cores of {machine.cpu}, {machine.date} UTC, commit {machine.commit}"
    )


def show_comparison(found: Comparison, tolerance: float) -> None:
    """On standard error, so that standard output is the run. Ends the process if ours is worse."""
    console = _console(stderr=True)
    console.print(_comparison_table(found, tolerance))
    for warning in found.warnings:
        console.print(f"  {warning}", highlight=False)
    regressions = found.regressions(tolerance)
    if regressions:
        console.print(f"  {len(regressions)} of {len(found.changes)} are worse", highlight=False)
        sys.exit(1)


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def _comparison_table(found: Comparison, tolerance: float) -> Table:
    table = Table(title="Beside the old run, medians", title_justify="left")
    for i, head in enumerate(("", "old", "new", "new / old (95 %)", "")):
        table.add_column(head, justify="left" if i in (0, 4) else "right")
    for change in found.changes:
        figure = change.figure
        numbers = (f"{value:,.4g} {figure.unit}" for value in (change.old, change.new))
        table.add_row(figure.name, *numbers, *_verdict(change, tolerance))
    return table


def _verdict(change: Change, tolerance: float) -> tuple[str, str]:
    ratio = change.ratio
    if not change.has_noise:
        shown, noise = f"{ratio.value:.2f}", "noise not known"
    else:
        shown = ratio.shown()
        noise = "changed" if change.is_beyond_noise else "within the noise"
    if not change.figure.is_ours:
        return shown, "not ours"
    return shown, "worse" if change.is_regression(tolerance) else noise


@contextmanager
def progress() -> Iterator[OnStep]:
    columns = (
        SpinnerColumn(),
        TimeElapsedColumn(),
        BarColumn(20),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield OnStep(shown)
