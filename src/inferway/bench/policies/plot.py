"""A run as pictures: mean TTFT against the rate of requests, a line a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from inferway.bench.policies.catalog import LLM_D, ORACLE, OURS
from inferway.bench.policies.results import Loaded, PoliciesRun
from inferway.bench.processes import BenchError

_STYLES: dict[str, dict[str, Any]] = {
    OURS: {"color": "#cc3311", "linewidth": 2.4, "zorder": 5},
    ORACLE: {"color": "black", "linestyle": "--"},
    LLM_D: {"color": "#0077bb", "linewidth": 1.8},
}
_TALL = 12  # the axis, times the least; who takes longer runs off

_COLOURS = (
    "#bbbbbb", "#999999", "#ddaa33", "#228833", "#66ccee", "#aa3377", "#4477aa", "#997700",
    "#44aa99", "#882255",
)  # fmt: skip


def check_can_draw() -> None:
    """Before minutes are spent. Raises BenchError with the cure."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as e:
        raise BenchError(
            "matplotlib: not installed, and --plot draws; the cure: pip install 'inferway[bench]'"
        ) from e


def draw(run: PoliciesRun, directory: Path) -> list[Path]:
    """Writes policies.svg and policies.png; returns their paths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(run.workloads), 7.6), layout="constrained", dpi=110)
    panels = figure.subplots(2, len(run.workloads), squeeze=False)
    for column, workload in enumerate(run.workloads):
        _draw_ttft(panels[0][column], run, workload)
        _draw_cached(panels[1][column], run, workload)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    fleet = run.plan.fleet
    figure.suptitle(
        f"{fleet.num_engines} simulated engines, {fleet.num_slow} of them "
        f"{fleet.slow_factor:g} × slower, one gateway; who takes {_TALL} × the least runs off",
        fontsize=10,
    )
    paths = [directory / "policies.svg", directory / "policies.png"]
    for path in paths:
        figure.savefig(path)
    return paths


def _draw_ttft(axes: Any, run: PoliciesRun, workload: Loaded) -> None:
    _lines(axes, run, workload, "ttft", 1e3)
    axes.set_title(workload.name, fontsize=10)
    from matplotlib.ticker import LogLocator, NullLocator

    shown = [row.ttft * 1e3 for row in run.rows if row.workload == workload.name]
    axes.set_yscale("log")
    axes.set_ylim(0.8 * min(shown), _TALL * min(shown))
    axes.set_ylabel("mean time to first token, ms")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_cached(axes: Any, run: PoliciesRun, workload: Loaded) -> None:
    _lines(axes, run, workload, "cached_share", 100)
    axes.set_ylabel("prompt tokens from a cache, %")
    axes.set_ylim(bottom=0)


def _lines(axes: Any, run: PoliciesRun, workload: Loaded, field: str, factor: float) -> None:
    gateways = run.plan.gateways[0]
    colours = iter(_COLOURS * 3)
    for name in run.names():
        rates, values = _series(run, workload, gateways, name, field)
        style = _STYLES.get(name) or {"color": next(colours), "linewidth": 1.2}
        scaled = [value * factor for value in values]
        axes.plot(rates, scaled, marker="o", markersize=3, label=name, **style)
    for load in run.plan.loads:
        axes.axvline(load * workload.doubling_rate, color="#dddddd", linewidth=0.8, zorder=0)
    axes.set_xlabel("requests per second (grey: the judged loads)")
    axes.grid(alpha=0.25)


def _series(
    run: PoliciesRun, workload: Loaded, gateways: int, name: str, field: str
) -> tuple[Sequence[float], Sequence[float]]:
    rates, values = [], []
    for load in sorted({*run.plan.loads, *run.plan.curve}):
        rows = run.select(workload.name, gateways, load, name)
        if rows:
            rates.append(rows[0].rate)
            values.append(fmean(getattr(row, field) for row in rows))
    return rates, values
