"""A run of `inferway bench prompts` as tables: in the terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from inferway.bench.document import machine_line, table_lines, versions_line
from inferway.bench.prompts.results import PromptsRun, Row, Series
from inferway.bench.spread import quartiles


@dataclass(frozen=True, slots=True)
class _Column:
    """Shown where any row of a table fills it."""

    head: str
    cell: Callable[[Row], str]
    in_terminal: bool = True


def terminal_tables(run: PromptsRun) -> Iterator[Table]:
    for name, rows in _tables(run):
        shown = Table(title=name, title_justify="left")
        columns = [column for column in _columns(rows) if column.in_terminal]
        for i, column in enumerate(columns):
            shown.add_column(column.head, justify="left" if i == 0 else "right")
        for row in rows:
            shown.add_row(*(column.cell(row) for column in columns))
        yield shown


def markdown(run: PromptsRun) -> str:
    """All tables, what was compared with what, and how."""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    lines = [
        f"Measured {run.machine.date} UTC by `{run.command}` at commit {run.machine.commit}, "
        f"seed {run.seed}:",
        f"{versions}; both in the same run, taking turns.",
        machine_line(run.machine),
        versions_line(run.machine),
        f"Text: {run.text}.",
    ]
    lines += [f"Left out: {what}." for what in run.left_out]
    for name, rows in _tables(run):
        columns = _columns(rows)
        lines += ["", f"{name}: median (quartiles).", ""]
        lines += table_lines(
            [column.head for column in columns],
            ([column.cell(row) for column in columns] for row in rows),
        )
        lines += _notes(rows)
    return "\n".join(lines) + "\n"


def missed(run: PromptsRun) -> list[str]:
    """The names of the rows that are not as asked."""
    return [row.name for row in run.rows if row.is_met is False]


def _tables(run: PromptsRun) -> Iterator[tuple[str, list[Row]]]:
    for name in dict.fromkeys(row.table for row in run.rows):
        yield name, [row for row in run.rows if row.table == name]


def _columns(rows: Sequence[Row]) -> list[_Column]:
    return [column for column in _COLUMNS if any(column.cell(row) for row in rows)]


def _spread(series: Series | None, unit: str) -> str:
    if series is None:
        return ""
    q = quartiles(series.wall)
    return f"{_number(q.median)} {unit} ({_number(q.low)}-{_number(q.high)})"


def _ratio(row: Row) -> str:
    ratio = row.ratio
    return "" if ratio is None else f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _cpu(series: Series | None) -> str:
    if series is None or not series.cpu:
        return ""
    us = quartiles(series.cpu).median
    return f"{_number(us)} µs" if us < 100_000 else f"{_number(us / 1e3)} ms"


def _asked(row: Row) -> str:
    return "" if row.target is None else row.target.words(row.unit)


def _number(value: float) -> str:
    """Three digits are what repeats show."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _notes(rows: list[Row]) -> list[str]:
    notes = [f"- {row.name}: {row.note}." for row in rows if row.note]
    return ["", *notes] if notes else []


_COLUMNS = (
    _Column("what", lambda row: row.name),
    _Column("ours", lambda row: _spread(row.ours, row.unit)),
    _Column("transformers", lambda row: _spread(row.theirs, row.unit)),
    _Column("CPU: ours", lambda row: _cpu(row.ours), in_terminal=False),
    _Column("CPU: theirs", lambda row: _cpu(row.theirs), in_terminal=False),
    _Column("theirs / ours (95 %)", _ratio),
    _Column("asked", _asked, in_terminal=False),
    _Column("met", lambda row: {None: "", True: "yes", False: "**no**"}[row.is_met]),
    _Column("seed 003", lambda row: row.seed, in_terminal=False),
)
