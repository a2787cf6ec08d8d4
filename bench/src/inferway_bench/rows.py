"""Results of a benchmark: rows of named values, of which tables, pictures and stored
results are made.

A stored run is JSON lines. The first says what ran on what; each further line is a `Row`.

A `Table` shows the rows of one name, a line each, in the terminal and in documents. Titles, heads
and notes may name the plan's fields and the run's facts: `"growth to {held_streams:,} streams"`. A
table without rows is left out, and so is a column without values, or of a key that no row has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import msgspec
from rich.table import Table as TerminalTable

from inferway_bench.machine import Machine
from inferway_bench.processes import BenchError
from inferway_bench.spread import (
    Form,
    Interval,
    mean_interval,
    median_interval,
    shown_number,
)

Key = str | int | float
Value = float | str | list[float] | Interval | None


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of one table. `keys` say what was measured. `values` are the figures by column: the
    repeats of a measurement, a single number, an interval that the benchmark has computed, words,
    or None for what could not be measured."""

    table: str
    keys: Mapping[str, Key]
    values: Mapping[str, Value]
    is_ours: bool = True  # False: a peer's

    def repeats(self, column: str) -> list[float]:
        """Return every number of the column: the repeats, or the only one. Raises BenchError when
        the column has none."""
        value = self.values.get(column)
        if isinstance(value, list):
            return value
        if isinstance(value, Interval):
            return [value.value]
        if isinstance(value, int | float):
            return [value]
        raise BenchError(f"table {self.table!r}, {self.keys}: no number in column {column!r}")

    def median(self, column: str) -> float:
        """Return the median of the column's repeats. Raises BenchError when it has no number."""
        return median(self.repeats(column))

    def interval(self, column: str) -> Interval:
        """Return the interval of the column; that of a single number is this number. Raises
        BenchError when it has neither."""
        value = self.values.get(column)
        number = self.median(column)
        return value if isinstance(value, Interval) else Interval(number, number, number)


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The results that a benchmark returns when it has measured."""

    rows: list[Row]
    about: list[str] = []  # sentences above the tables, in markdown
    facts: dict[str, Key] = {}  # single values, which titles and heads name as {fact}
    notes: dict[str, list[str]] = {}  # table -> bullets below it, in markdown
    seeds: list[int] = []  # of everything that was drawn
    is_whole: bool = True  # False: the user has interrupted the measurement


class Run(Findings, frozen=True, kw_only=True):
    """Findings, and where they come from. `times` says whose the times are: those of the machine
    that the command ran on, those of another, or simulated ones, which no machine changes."""

    benchmark: str
    machine: Machine
    command: str
    plan: dict[str, Any]
    times: Literal["this machine", "another machine", "virtual"] = "this machine"

    @property
    def is_virtual(self) -> bool:
        """True if time is simulated, so that nothing that a machine does changes a figure."""
        return self.times == "virtual"

    @property
    def is_quick(self) -> bool:
        """True if the run is only a quick check, and not a result."""
        return "--quick" in self.command.split()

    @property
    def words(self) -> dict[str, Any]:
        """The values that titles and heads may name: the plan's fields, and the facts."""
        return {**self.plan, **self.facts}

    def select(self, table: str, **keys: Key) -> list[Row]:
        """Return the rows of a table that have all these keys, in the order they were measured."""
        return [
            row
            for row in self.rows
            if row.table == table and all(row.keys.get(k) == v for k, v in keys.items())
        ]

    def find(self, table: str, **keys: Key) -> Row | None:
        """Return the first row that `select` would return; None without one."""
        return next(iter(self.select(table, **keys)), None)

    def distinct(self, table: str, key: str) -> list[Key]:
        """Return the values that a key has in a table's rows, in the order they were measured."""
        return list(dict.fromkeys(r.keys[key] for r in self.select(table) if key in r.keys))


def write_run(run: Run) -> bytes:
    """Return the run as JSON lines."""
    head = msgspec.to_builtins(run)
    rows = head.pop("rows")
    head = {name: head[name] for name in Run.__annotations__} | head
    return b"".join(msgspec.json.encode(line) + b"\n" for line in (head, *rows))


def read_run(text: bytes) -> Run:
    """Return the run that `write_run` wrote. Raises msgspec.MsgspecError and ValueError."""
    head, *rows = _lines(text)
    return msgspec.convert({**head, "rows": rows}, Run)


def load_run(path: Path) -> Run:
    """Return the run that is stored in a file. Raises BenchError when it is not a run."""
    try:
        return read_run(path.read_bytes())
    except (OSError, ValueError, msgspec.MsgspecError) as e:
        raise BenchError(
            f"{path}: not a stored run: {e}; fix: a file that --save or --json wrote"
        ) from e


def _lines(text: bytes) -> Iterator[dict[str, Any]]:
    return (msgspec.json.decode(line, type=dict[str, Any]) for line in text.splitlines())


Shown = Literal["median", "mean alone", "most", "sum", "value", "range", "interval", "mean"]

_SUMMARIES: dict[Shown, Callable[[list[float]], float | Interval]] = {
    "median": median,
    "mean alone": fmean,
    "most": max,
    "sum": sum,
    "value": median,
    "range": lambda values: Interval(median(values), min(values), max(values)),
    "interval": median_interval,
    "mean": mean_interval,
}


@dataclass(frozen=True)
class Column:
    """The values of one name. `form` writes a number; of repeats, `shown` says what is written: the
    median, the mean, the most or the sum alone, the median with the range or a 95 %
    interval, or the mean with a 95 % interval. "value" leaves the bounds of an interval out."""

    name: str
    head: str = ""  # the name, unless it is given
    form: Form = "{:,.1f}"
    shown: Shown = "median"

    def cell(self, value: Value) -> str:
        """Return the value in words; an empty text without one."""
        if value is None or value == []:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            value = value[0] if len(value) == 1 else _SUMMARIES[self.shown](value)
        if isinstance(value, Interval):
            if self.shown != "value":
                return value.shown(self.form)
            value = value.value
        return shown_number(value, self.form)


@dataclass(frozen=True)
class Table:
    """The rows of `name` that `where` keeps. `keys` are its first columns, as text; the values of
    the key `across` become columns; the values of the keys `split` a table each, whose title may
    name them. A table that is `in_details` is on the benchmark's page only."""

    name: str
    title: str
    keys: Sequence[str]
    columns: Sequence[Column]
    across: str = ""
    split: Sequence[str] = ()
    where: Callable[[Row], bool] = field(default=lambda row: True)  # noqa: ARG005
    notes: Sequence[str] = ()  # markdown, a bullet each
    in_details: bool = False

    def rows(self, run: Run) -> list[Row]:
        """Return what it shows, in the order that it was measured in."""
        return [row for row in run.rows if row.table == self.name and self.where(row)]


@dataclass(frozen=True)
class ShownTable:
    """One table whose cells are words, for the terminal and for documents."""

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    num_left: int = 1  # columns that are text
    notes: Sequence[str] = ()
    in_details: bool = False

    def markdown(self) -> list[str]:
        """Return the lines of a document, of which the first is empty."""
        lines = ["", f"{self.title}:", "", *table_lines(self.head, self.lines, self.num_left)]
        return [*lines, "", *(f"- {note}" for note in self.notes)] if self.notes else lines

    def terminal(self) -> TerminalTable:
        """Return the table for a terminal, without its notes."""
        table = TerminalTable(title=self.title.replace("**", ""), title_justify="left")
        for i, name in enumerate(self.head):
            justify: Literal["left", "right"] = "left" if i < self.num_left else "right"
            # a figure cut short would be another figure
            table.add_column(name, justify=justify, no_wrap=i == 0, overflow="fold")
        for line in self.lines:
            table.add_row(*(cell.replace("**", "") for cell in line))
        return table


def shown_tables(run: Run, tables: Iterable[Table]) -> Iterator[ShownTable]:
    """Yield each table of the run in words. What the benchmark has noted of a table stands below
    its last part."""
    notes = dict(run.notes)
    for table in tables:
        parts = list(split_by(table.split, table.rows(run)))
        for i, (part, rows) in enumerate(parts):
            words = {**run.words, **part}
            noted = notes.pop(table.name, []) if i == len(parts) - 1 else []
            keys = [key for key in table.keys if any(key in row.keys for row in rows)]
            heads, lines = _columns(table, keys, rows, words)
            yield ShownTable(
                table.title.format_map(words),
                [*keys, *heads],
                lines,
                len(keys),
                [*(note.format_map(words) for note in table.notes), *noted],
                table.in_details,
            )


def split_by(
    keys: Sequence[str], rows: Sequence[Row]
) -> Iterator[tuple[dict[str, Key], list[Row]]]:
    """Yield the rows in groups that have the same values of `keys`, each with these values."""
    groups: dict[tuple[Key, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.keys.get(key, "") for key in keys), []).append(row)
    for values, group in groups.items():
        yield dict(zip(keys, values, strict=True)), group


def _columns(
    table: Table, keys: Sequence[str], rows: Sequence[Row], words: Mapping[str, Any]
) -> tuple[list[str], list[list[str]]]:
    """The heads of the columns behind the `keys`, and the lines. Without `across` each row is a
    line of its own, whatever its keys."""
    spread: Sequence[Key | None] = [None]
    groups = [[row] for row in rows]
    if table.across:
        spread = list(dict.fromkeys(row.keys[table.across] for row in rows))
        groups = [group for _, group in split_by(keys, rows)]

    def of(key: Key | None, some: Sequence[Row]) -> Iterator[Row]:
        return (row for row in some if key is None or row.keys[table.across] == key)

    shown = [
        (key, column)
        for key in spread
        for column in table.columns
        if any(row.values.get(column.name) not in (None, []) for row in of(key, rows))
    ]
    heads = []
    for key, column in shown:
        head = (column.head or column.name).format_map(words)
        if key is not None:
            above = _key_cell(key)
            head = above if len(table.columns) == 1 else f"{above}: {head}"
        heads.append(head)
    lines = []
    for group in groups:
        found = [(next(of(key, group), None), column) for key, column in shown]
        lines.append(
            [
                *(_key_cell(group[0].keys.get(key, "")) for key in keys),
                *("" if row is None else c.cell(row.values.get(c.name)) for row, c in found),
            ]
        )
    return heads, lines


def _key_cell(key: Key) -> str:
    if isinstance(key, str):
        return key
    return f"{key:,}" if isinstance(key, int) else f"{key:g}"


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]], num_left: int = 1) -> list[str]:
    """Return the lines of a markdown table; the first `num_left` columns are text, the others are
    numbers."""
    ruler = ["---"] * num_left + ["---:"] * (len(head) - num_left)
    return ["| " + " | ".join(cells) + " |" for cells in (head, ruler, *rows)]


def measured_lines(run: Run) -> list[str]:
    """Return the lines that say when and on what the run was made, and by which command."""
    seeds = ", ".join(map(str, run.seeds))
    of_seeds = f", seed{'s' * (len(run.seeds) > 1)} {seeds}" if seeds else ""
    what = "Simulated" if run.is_virtual else "Measured"
    machine = run.machine
    load = f"; load average before the run {machine.load_before}"
    if machine.is_busy:
        load += ": **the machine was busy, take the figures as provisional**"
    if run.is_virtual:
        load = ". Time is virtual: a busy machine changes no figure"
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return [
        f"{what} {machine.date} UTC by `{run.command}` at commit {machine.commit}{of_seeds}.",
        *(["**A look with `--quick`, not a result.**"] if run.is_quick else []),
        f"Machine: {machine.cores} cores of {machine.cpu}, {machine.memory_gib} GiB, "
        f"{machine.system}{load}. Python {machine.python}, {packages}.",
    ]
