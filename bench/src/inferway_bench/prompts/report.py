"""A run of `inferway bench prompts` as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from inferway_bench.plotting import Line, Panel, Picture
from inferway_bench.prompts.results import PromptsRun, Row, Series
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import median_interval, quartiles


@dataclass(frozen=True, slots=True)
class _Column:
    """Shown where any row of a table fills it."""

    head: str
    cell: Callable[[Row], str]


def about(run: PromptsRun) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    lines = [f"{versions}; both in the same run, taking turns. Text: {run.text}."]
    return lines + [f"Left out: {what}." for what in run.left_out]


def sheets(run: PromptsRun) -> Iterator[Sheet]:
    """The first table is what a request costs; templates alone and loading are details."""
    names = list(dict.fromkeys(row.table for row in run.rows))
    for name in names:
        rows = [row for row in run.rows if row.table == name]
        columns = _columns(rows)
        yield Sheet(
            f"{name}: median (quartiles)",
            [column.head for column in columns],
            [[column.cell(row) for column in columns] for row in rows],
            notes=[f"{row.name}: {row.note}." for row in rows if row.note],
            in_details=name != names[0],
        )


def pictures(run: PromptsRun) -> list[Picture]:
    """Time against the prompt's length where a chat has one turn more, both sides."""
    points = [(length, row) for row in run.rows if (length := _length(row)) is not None]
    ours = [(length, row.ours) for length, row in points]
    theirs = [(length, row.theirs) for length, row in points if row.theirs is not None]
    lines = [
        Line(name, [length for length, _ in some], [median_interval(s.wall) for _, s in some])
        for name, some in (("ours", ours), ("transformers", theirs))
    ]
    panel = Panel("tokens of the prompt", "render and tokenize, µs", lines, log_x=True, log_y=True)
    title = "A chat with one turn more, SmolLM2: median, 95 %"
    return [Picture("prompts", title, [[panel]])]


def _length(row: Row) -> int | None:
    found = re.match(r"([\d,]+) tokens, one turn more(, SmolLM2)?$", row.name)
    return int(found[1].replace(",", "")) if found else None


def _columns(rows: Sequence[Row]) -> list[_Column]:
    return [column for column in _COLUMNS if any(column.cell(row) for row in rows)]


def _spread(series: Series | None, unit: str) -> str:
    if series is None:
        return ""
    q = quartiles(series.wall)
    return f"{q.shown(_number)} {unit}"


def _ratio(row: Row) -> str:
    ratio = row.ratio
    return "" if ratio is None else ratio.shown()


def _cpu(series: Series | None) -> str:
    if series is None or not series.cpu:
        return ""
    us = quartiles(series.cpu).median
    return f"{_number(us)} µs" if us < 100_000 else f"{_number(us / 1e3)} ms"


def _number(value: float) -> str:
    """Three digits are what repeats show."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


_COLUMNS = (
    _Column("what", lambda row: row.name),
    _Column("ours", lambda row: _spread(row.ours, row.unit)),
    _Column("transformers", lambda row: _spread(row.theirs, row.unit)),
    _Column("CPU: ours", lambda row: _cpu(row.ours)),
    _Column("CPU: theirs", lambda row: _cpu(row.theirs)),
    _Column("theirs / ours (95 %)", _ratio),
    _Column("seed 003", lambda row: row.seed),
)


PROMPTS = told_by(
    "prompts", PromptsRun, about, sheets, pictures=pictures,
    question="how much time rendering and tokenizing real chats takes, compared with transformers",
    takes="3 minutes",
)  # fmt: skip
