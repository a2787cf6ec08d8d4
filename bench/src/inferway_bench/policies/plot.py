"""A run as a picture, a line a policy: time to first token and cached share against the rate; of
many settings the p90 of the former beside ours."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from inferway_bench.plotting import DOTS, Line, Panel, Picture
from inferway_bench.policies.catalog import LLM_D, ORACLE, OURS
from inferway_bench.policies.plan import OTHER_CACHES
from inferway_bench.policies.results import Loaded, PoliciesRun, gateways_named

STYLES: dict[str, dict[str, Any]] = {
    OURS: {"color": "#cc3311", "linestyle": "-", "linewidth": 2.4, "zorder": 5},
    ORACLE: {"color": "black", "linestyle": "--"},
    LLM_D: {"color": "#0077bb", "linewidth": 1.8},
}
_TALL = 12  # the axis, times the least; who takes longer runs off
_FAR = 30  # the same, times ours
_RATE = "requests per second (grey: the judged loads)"


def pictures(run: PoliciesRun) -> list[Picture]:
    fleet = run.plan.fleet
    title = (
        f"{fleet.num_engines} simulated engines, {fleet.num_slow} of them "
        f"{fleet.slow_factor:g} × slower, one gateway; TTFT above {_TALL} × the least is cut off"
    )
    rows = [[of(run, one) for one in run.workloads] for of in (_ttft, _cached)]
    return [Picture("policies", title, rows, one_legend=True)]


def fleet_pictures(run: PoliciesRun) -> list[Picture]:
    panels = [_beside_ours(run, gateways) for gateways in run.plan.gateways]
    title = (
        f"{run.plan.fleet.num_engines} simulated engines, each workload at its highest load; "
        f"ratios above {_FAR} are cut off"
    )
    return [Picture("policies_fleet", title, [panels], one_legend=True)]


def _beside_ours(run: PoliciesRun, gateways: int) -> Panel:
    loads = {w.name: run.loads(w.name, gateways)[-1] for w in run.workloads}
    lines = []
    for name in run.names():
        found = [run.p90_ratio(w, gateways, x, name, OURS) for w, x in loads.items()]
        there = {i: ratio for i, ratio in enumerate(found) if ratio is not None}
        style = {**STYLES.get(name, {}), **DOTS}
        lines.append(Line(name, list(there), list(there.values()), style))
    return Panel(
        "", f"p90 TTFT / that of {OURS}", lines,
        title=gateways_named(gateways), log_y=True, most=_FAR,
        ticks=[name.replace(OTHER_CACHES, "\n") for name in loads],
    )  # fmt: skip


def _ttft(run: PoliciesRun, workload: Loaded) -> Panel:
    least = min(row.ttft * 1e3 for row in run.rows if row.workload == workload.name)
    return Panel(
        _RATE, "mean time to first token, ms", _lines(run, workload, "ttft", 1e3),
        title=workload.name, marks=_judged(run, workload), log_y=True, most=_TALL * least,
    )  # fmt: skip


def _cached(run: PoliciesRun, workload: Loaded) -> Panel:
    lines = _lines(run, workload, "cached_share", 100)
    return Panel(_RATE, "prompt tokens from a cache, %", lines, marks=_judged(run, workload))


def _judged(run: PoliciesRun, workload: Loaded) -> list[float]:
    return [load * workload.doubling_rate for load in run.plan.loads]


def _lines(run: PoliciesRun, workload: Loaded, field: str, factor: float) -> list[Line]:
    found = []
    for name in run.names():
        rates, values = [], []
        for load in sorted({*run.plan.loads, *run.plan.curve}):
            rows = run.select(workload.name, run.plan.gateways[0], load, name)
            if rows:
                rates.append(rows[0].rate)
                values.append(factor * fmean(getattr(row, field) for row in rows))
        found.append(Line(name, rates, values, STYLES.get(name, {})))
    return found
