"""What a benchmark has found: rows of named values, of which tables, pictures, comparisons and
stored results are made.

A stored run is JSON lines. The first says what ran on what; each further line is a `Row`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from inferway_bench.machine import Machine
from inferway_bench.processes import BenchError
from inferway_bench.spread import Interval

Key = str | int | float
Value = float | str | list[float] | Interval | None


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of one table. `keys` say what was measured. `values` are the figures by column: the
    repeats of a measurement, a single number, an interval that the benchmark has computed, words,
    or None for what could not be measured."""

    table: str
    keys: Mapping[str, Key]
    values: Mapping[str, Value]
    is_ours: bool = True  # False: a peer's; if it changes, the machine has changed

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
    """What a benchmark returns when it has measured."""

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
        """Whether time is simulated, so that nothing that a machine does changes a figure."""
        return self.times == "virtual"

    @property
    def is_of_machine(self) -> bool:
        """Whether its times are those of the machine that the command ran on."""
        return self.times == "this machine"

    @property
    def is_quick(self) -> bool:
        """Whether the run is only a look, and not a result."""
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
