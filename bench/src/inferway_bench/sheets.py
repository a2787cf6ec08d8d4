"""Tables of runs, told once, shown in the terminal and in documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rich.table import Table

from inferway_bench.benchmark import Benchmark
from inferway_bench.document import machine_line, table_lines, versions_line
from inferway_bench.plotting import Picture
from inferway_bench.results import AnyRun, Goal, Run


class Sheet(NamedTuple):
    """One table. `notes` stand below it in documents, in markdown, a bullet each; a sheet that is
    `in_details` is on the page of the benchmark only, not in the terminal."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_left: int = 1  # columns that are text
    notes: Sequence[str] = ()
    in_details: bool = False


def told_by(
    name: str,
    kind: type[AnyRun],
    about: Callable[[AnyRun], Sequence[str]],
    sheets: Callable[[AnyRun], Iterable[Sheet]],
    *,
    pictures: Callable[[AnyRun], Sequence[Picture]],
    notes: Callable[[AnyRun], Sequence[str]] | None = None,
    **words: Any,
) -> Benchmark[AnyRun]:
    """A benchmark whose runs are told by `sheets`, below the lines of `about`."""

    def tables(run: AnyRun) -> Iterator[Table]:
        return (_terminal(sheet) for sheet in sheets(run) if not sheet.in_details)

    def markdown(run: AnyRun, *, details: bool = False) -> str:
        shown = [sheet for sheet in sheets(run) if details or not sheet.in_details]
        lines = [*measured(run), *about(run), *(line for s in shown for line in _lines(s))]
        return "\n".join(lines) + "\n"

    return Benchmark(
        name, kind, tables, markdown, pictures,
        notes=notes or (lambda _: ()),
        details=lambda run: markdown(run, details=True),
        **words,
    )  # fmt: skip


def measured(run: Run) -> list[str]:
    """When, by which command, at which commit, of which seeds, on what."""
    seeds = ", ".join(map(str, run.seeds))
    of_seeds = f", seed{'s' * (len(run.seeds) > 1)} {seeds}" if seeds else ""
    what = "Simulated" if run.is_virtual else "Measured"
    machine = machine_line(run.machine)
    if run.is_virtual:
        machine = f"{machine.partition(';')[0]}. Time is virtual: a busy machine changes no figure."
    return [
        f"{what} {run.machine.date} UTC by `{run.command}` at commit {run.machine.commit}"
        f"{of_seeds}.",
        *(["**A look with `--quick`, not a result.**"] if run.is_quick else []),
        f"{machine} {versions_line(run.machine)}",
    ]


def goal_sheet(goals: Iterable[Goal]) -> Sheet:
    rows = [[g.what, g.asked, g.found, "yes" if g.is_met else "**no**"] for g in goals]
    return Sheet("Requirements", ("figure", "required", "measured", "met"), rows, num_left=4)


def _lines(sheet: Sheet) -> list[str]:
    lines = ["", f"{sheet.title}:", "", *table_lines(sheet.head, sheet.rows, sheet.num_left)]
    return [*lines, "", *(f"- {note}" for note in sheet.notes)] if sheet.notes else lines


def _terminal(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left")
    for i, name in enumerate(sheet.head):
        justify: Literal["left", "right"] = "left" if i < sheet.num_left else "right"
        # a figure cut short would be another figure
        table.add_column(name, justify=justify, no_wrap=i == 0, overflow="fold")
    for row in sheet.rows:
        table.add_row(*(cell.replace("**", "") for cell in row))
    return table
