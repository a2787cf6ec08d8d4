"""Pictures of runs. A `Chart` says which rows are drawn and how; only `write` knows matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any, NamedTuple

from inferway_bench.rows import Key, Row, Run, Value, split_by
from inferway_bench.spread import Interval, mean_interval, median_interval

_PANEL_INCHES = (5.6, 4.0)
_TITLE_INCHES = 0.7  # and the legend
_LETTERS_AN_INCH = 13
_LEGEND_LETTERS = 8  # the width of a label's line in the legend
_TICK_LETTERS = 55  # that have room below a panel
_FEW_DECADES = 3  # that have room for numbers between the powers of ten
# Paul Tol's, that the colour-blind can tell apart.
_COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#997700", "#882255",
    "#44aa99", "#999999",
)  # fmt: skip
_DASHES = ("-", "-.", ":")


DOTS: Mapping[str, Any] = {"linestyle": "none"}  # a line's style: its points alone


class Line(NamedTuple):
    """Points of one label, each with its interval if it has one."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | Interval]
    style: Mapping[str, Any] = {}  # matplotlib's words


@dataclass(frozen=True)
class Plot:
    """One pair of axes: the columns `y` of the rows of `table` that `where` keeps. `x` is a key or
    a column; without one the columns `y` stand side by side. The values of the key `by` are a line
    each, and where there are several columns over an `x`, so is each column. `levels` are
    horizontal lines, label -> a number or the fact that has it. `styles` are matplotlib's words
    for the line of a label. Axes are labelled with the names of `x` and `y` unless it is said."""

    table: str
    y: Sequence[str]
    x: str = ""
    by: str = ""
    x_label: str = ""
    y_label: str = ""
    title: str = ""
    factor: float = 1.0  # the values are drawn in another unit
    mean: bool = False  # repeats are drawn as their mean with its interval; else as their median
    log_y: bool = False
    most: float | None = None  # the axis ends there
    levels: Mapping[str, float | str] = field(default_factory=dict)
    styles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    where: Callable[[Row], bool] = field(default=lambda row: True)  # noqa: ARG005


@dataclass(frozen=True)
class Chart:
    """The picture of a benchmark: its plots side by side, a row of them for each value of the keys
    `split`. Texts may name the plan's fields, the run's facts, and in plots the keys `split`."""

    title: str
    plots: Sequence[Plot]
    split: Sequence[str] = ()


class Panel(NamedTuple):
    """One pair of axes, drawn as its plot says, with the texts and values that it has in a run."""

    plot: Plot
    x: str
    y: str
    title: str
    lines: Sequence[Line]
    levels: Mapping[str, float]
    ticks: Sequence[str]  # names of 0, 1, 2, … of `x`


class Picture(NamedTuple):
    """Rows of panels. With one legend for all of them if they show the same."""

    name: str
    title: str
    rows: Sequence[Sequence[Panel]]
    one_legend: bool = False


def drawn(run: Run, chart: Chart, name: str) -> Picture:
    """Return the picture of a run, with one legend if its panels show the same lines."""
    tables = {plot.table for plot in chart.plots}
    panels = []
    for part, some in split_by(chart.split, [row for row in run.rows if row.table in tables]):
        drawn_row = [_panel(plot, some, {**run.words, **part}) for plot in chart.plots]
        panels.append([panel for panel in drawn_row if panel.lines])
    labels = {tuple(line.label for line in panel.lines) for row in panels for panel in row}
    return Picture(name, chart.title.format_map(run.words), panels, one_legend=len(labels) == 1)


def _panel(plot: Plot, rows: Sequence[Row], words: Mapping[str, Any]) -> Panel:
    kept = [row for row in rows if row.table == plot.table and plot.where(row)]
    names = plot.y if not plot.x else [x for row in kept if isinstance(x := _x(plot, row), str)]
    ticks = list(dict.fromkeys(names))
    levels = {
        label: float(words[at] if isinstance(at, str) else at)
        for label, at in plot.levels.items()
        if not isinstance(at, str) or at in words
    }
    texts = (plot.x_label or plot.x, plot.y_label or ", ".join(plot.y), plot.title)
    x, y, title = (text.format_map(words) for text in texts)
    return Panel(plot, x, y, title, list(_plotted(plot, kept, ticks)), levels, ticks)


def _plotted(plot: Plot, rows: Sequence[Row], ticks: Sequence[str]) -> Iterator[Line]:
    """A line for each value of `by`, and each column over the same `x`."""
    for part, some in split_by([plot.by] if plot.by else [], rows):
        label = str(part[plot.by]) if plot.by else ""
        for group in [[name] for name in plot.y] if plot.x else [plot.y]:
            several = group[0] if plot.x and (len(plot.y) > 1 or not label) else ""
            text = ", ".join(filter(None, (label, several)))
            points = [
                (ticks.index(at) if isinstance(at, str) else float(at), _point(value, plot))
                for row in some
                for column in group
                if not isinstance(value := row.values.get(column), str | None) and value != []
                for at in [_x(plot, row) if plot.x else column]
            ]
            style = {**plot.styles.get(text, {}), **(DOTS if ticks else {})}
            if points:
                yield Line(text, [x for x, _ in points], [y for _, y in points], style)


def _x(plot: Plot, row: Row) -> Key:
    if plot.x in row.keys:
        return row.keys[plot.x]
    return fmean(row.repeats(plot.x)) if plot.mean else row.median(plot.x)


def _point(value: Value, plot: Plot) -> float | Interval:
    """Repeats as their median, or their mean, with its 95 % interval."""
    if isinstance(value, list):
        of = mean_interval if plot.mean else median_interval
        value = of(value) if len(value) > 1 else value[0]
    assert isinstance(value, float | int | Interval)
    return value.times(plot.factor) if isinstance(value, Interval) else value * plot.factor


def write(picture: Picture, directory: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """NAME.png and NAME.svg; the same run gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    tall, wide = len(picture.rows), max(map(len, picture.rows))
    size = (_PANEL_INCHES[0] * wide, _PANEL_INCHES[1] * tall + _TITLE_INCHES)
    figure = Figure(figsize=size, layout="constrained", dpi=110)
    grid = figure.subplots(tall, wide, squeeze=False)
    for row, panels in zip(grid, picture.rows, strict=True):
        for axes, panel in zip(row, panels, strict=False):
            _draw(axes, panel)
            if not picture.one_legend:
                axes.legend(fontsize=8)
        for axes in row[len(panels) :]:
            axes.set_visible(False)
    if picture.one_legend:
        named = grid[0][0].get_legend_handles_labels()
        widest = max(map(len, named[1]), default=0) + _LEGEND_LETTERS
        columns = max(1, min(4, int(size[0] * _LETTERS_AN_INCH / widest)))
        figure.legend(*named, loc="outside lower center", ncols=columns, fontsize=8)
    figure.suptitle(fill(picture.title, int(size[0] * _LETTERS_AN_INCH)), fontsize=10)
    paths = [directory / f"{picture.name}.{suffix}" for suffix in formats]
    with matplotlib.rc_context({"svg.hashsalt": picture.name}):
        for path in paths:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _draw(axes: Any, panel: Panel) -> None:
    for i, line in enumerate(panel.lines):
        dashes = _DASHES[i // len(_COLOURS) % len(_DASHES)]  # where colours come again
        colour = _COLOURS[i % len(_COLOURS)]
        points = [y if isinstance(y, Interval) else Interval(y, y, y) for y in line.ys]
        middle = [y.value for y in points]
        has_errors = any(y.low < y.high for y in points)
        style = {
            "color": colour, "linestyle": dashes, "linewidth": 1.2,
            "marker": "o", "markersize": 4 if has_errors else 3, **line.style,
        }  # fmt: skip
        if has_errors:
            errors = [[y.value - y.low for y in points], [y.high - y.value for y in points]]
            axes.errorbar(line.xs, middle, yerr=errors, capsize=3, label=line.label, **style)
        else:
            axes.plot(line.xs, middle, label=line.label, **style)
    for label, y in panel.levels.items():
        axes.axhline(y, label=label, color="#999999", linestyle="--", linewidth=1.0)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.set_title(panel.title, fontsize=10)
    axes.grid(alpha=0.3)
    _scale(axes, panel)


def _scale(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    if panel.plot.log_y:
        axes.set_yscale("log")
    if panel.plot.most is not None:
        axes.set_ylim(top=panel.plot.most)
    if panel.plot.log_y:
        axis = axes.yaxis
        least, most = axis.get_view_interval()
        has_room = most <= least * 10**_FEW_DECADES
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if has_room else (1,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    if panel.ticks:
        turn = {"rotation": 20, "ha": "right"} if len("".join(panel.ticks)) > _TICK_LETTERS else {}
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, **turn)
        axes.set_xlim(-0.5, len(panel.ticks) - 0.5)
    if not panel.plot.log_y and min(axes.get_ylim()) > 0:
        axes.set_ylim(bottom=0)
