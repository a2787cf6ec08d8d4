"""What a benchmark's command shows and keeps: progress, tables, files, a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferway_bench import pages, plotting
from inferway_bench.benchmark import Benchmark
from inferway_bench.catalog import BENCHMARKS
from inferway_bench.harness import console_of as _console
from inferway_bench.harness import show_comparison as show_comparison
from inferway_bench.progress import shown_progress as shown_progress
from inferway_bench.results import AnyRun, write_run


def keep(benchmark: Benchmark[AnyRun], run: AnyRun, docs: Path) -> None:
    """The run as results/NAME.json, its pictures beside it, and the pages made anew."""
    path = benchmark.results(docs)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(write_run(benchmark.name, run))
    draw(benchmark, run, path.parent, ("svg",))
    pages.write(docs, BENCHMARKS)


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
