"""Draws the dashboard as Grafana would, of a run of three minutes: chats at a growing rate, one of
three engines killed. `python -m tests.deploy --out docs/images/dashboard.png`.

The panels, queries, legends and units are those of deploy/grafana/inferway.json, the data a real
Prometheus's; only the drawing is matplotlib's.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from tests.deploy.live import DASHBOARD, Live, Series, filled, live

_COLUMNS = 24  # of Grafana's grid
_WIDTH, _ROW_INCHES = 18.0, 0.345
_COLOURS = (
    *("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d"),
    *("#ffb357", "#fade2a", "#ca95e5", "#ff7383"),
)
_PAGE, _PANEL, _TEXT, _LINES, _QUIET = "#111217", "#181b1f", "#ccccdc", "#2c2f34", "#8e8e99"


def seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (0.0, "µs")):
        if value >= least:
            return f"{value / {'s': 1.0, 'ms': 1e-3, 'µs': 1e-6}[unit]:.3g} {unit}"
    return f"{value:g} s"


def _short(value: float) -> str:
    return f"{value / 1000:.3g} K" if value >= 1000 else f"{value:.3g}"


# Grafana's units, as it writes them.
UNITS = {
    "s": seconds,
    "percentunit": lambda value: f"{value * 100:.3g}%",
    "reqps": lambda value: f"{value:.3g} req/s",
    "none": _short,
}


def legend(form: str, labels: Mapping[str, str]) -> str:
    """`form` with labels for what is in double braces."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), form)


def _lines(
    run: Live, panel: Mapping[str, Any], span: tuple[float, float]
) -> list[tuple[str, Series]]:
    found: list[tuple[str, Series]] = []
    for target in panel["targets"]:
        expression = filled(target["expr"], rate_interval="15s")
        for series in run.between(expression, *span, step=1.0):
            found.append((legend(target["legendFormat"], series.labels), series))
    return found


def _draw(axes: Axes, panel: Mapping[str, Any], lines: Sequence[tuple[str, Series]]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes.set_title(panel["title"], loc="left", fontsize=10, color=_TEXT, fontweight="bold")
    axes.set_facecolor(_PANEL)
    stacked = "stacking" in defaults.get("custom", {})
    below: dict[float, float] = {}
    for number, (name, series) in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(t, v) for t, v in series.points if v == v]
        xs = [t for t, _ in points]
        floor = [below.get(t, 0.0) for t, _ in points] if stacked else [0.0] * len(points)
        ys = [v + under for (_, v), under in zip(points, floor, strict=True)]
        for x, y in zip(xs, ys, strict=True):
            below[x] = max(y, below.get(x, 0.0))
        axes.plot(xs, ys, color=colour, linewidth=1.3, label=name)
        axes.fill_between(xs, floor, ys, color=colour, alpha=0.25 if stacked else 0.05, linewidth=0)
    _style(axes, defaults, highest=max(below.values(), default=0.0))
    if lines:
        shown = axes.legend(
            loc="upper left", bbox_to_anchor=(-0.02, -0.09), ncols=3, fontsize=7.5, frameon=False,
            handlelength=1.0, columnspacing=1.2, labelspacing=0.25,
        )  # fmt: skip
        for text in shown.get_texts():
            text.set_color(_TEXT)
    else:
        axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", color=_QUIET)


def _style(axes: Axes, defaults: Mapping[str, Any], highest: float) -> None:
    axes.set_ylim(
        bottom=defaults.get("min", 0), top=defaults.get("max") or (None if highest else 1)
    )
    write = UNITS[defaults["unit"]]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: time.strftime("%H:%M:%S", time.gmtime(value)))
    )
    axes.tick_params(colors=_QUIET, labelsize=8, length=0)
    axes.grid(color=_LINES, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)


def picture(run: Live, span: tuple[float, float]) -> Figure:
    """All panels where Grafana has them."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = dashboard["panels"]
    rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in found)
    height = rows * _ROW_INCHES + 0.6
    figure = Figure(figsize=(_WIDTH, height), facecolor=_PAGE)
    top = 1 - 0.45 / height
    figure.text(0.012, 1 - 0.28 / height, dashboard["title"], color=_TEXT, fontsize=16, va="center")
    cell = _ROW_INCHES / height
    for panel in found:
        at = panel["gridPos"]
        left, bottom = at["x"] / _COLUMNS, top - (at["y"] + at["h"]) * cell
        if panel["type"] == "row":
            y = bottom + cell / 2
            figure.text(0.012, y, "⌄  " + panel["title"], color=_TEXT, fontsize=12, va="center")
            continue
        width, tall = at["w"] / _COLUMNS, at["h"] * cell
        figure.patches.append(_card(figure, left, bottom, width, tall))
        axes = figure.add_axes((left + 0.036, bottom + 0.27 * tall, width - 0.05, tall * 0.60))
        _draw(axes, panel, _lines(run, panel, span))
        axes.set_xlim(*span)
    return figure


def _card(figure: Figure, left: float, bottom: float, width: float, height: float) -> Any:
    return FancyBboxPatch(
        (left + 0.004, bottom + 0.0015), width - 0.008, height - 0.003,
        boxstyle="round,pad=0,rounding_size=0.002", facecolor=_PANEL, edgecolor=_LINES,
        linewidth=0.8, transform=figure.transFigure, zorder=-1,
    )  # fmt: skip


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--seconds", "length", default=180, show_default=True)
def main(out: Path, length: int) -> None:
    """Runs, and draws."""
    third = str(length // 3)
    chats = ("--sessions", "24", "--output-tokens", "20-80", "--system-tokens", "800")
    mpl.use("agg")
    with (
        tempfile.TemporaryDirectory() as directory,
        live(Path(directory), engines=3, serve=("--in-flight", "20")) as run,
    ):
        begun = time.time()
        with run.load("--rates", "6,10,14", "--duration", third, *chats):
            while time.time() < begun + length * 2 / 3:
                time.sleep(1)
            run.engines[-1].process.kill()
            while time.time() < begun + length:
                time.sleep(1)
        span = (begun + 10, time.time())
        figure = picture(run, span)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=80, facecolor=_PAGE)
    click.echo(f"{out}: {len(json.loads(DASHBOARD.read_text())['panels'])} rows and panels")


if __name__ == "__main__":
    main()
