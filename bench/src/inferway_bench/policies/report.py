"""A run of `inferway bench policies` as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from inferway_bench.policies.catalog import APPROXIMATE, BLIND, DEAF, EVENT_DRIVEN, ORACLE, OURS
from inferway_bench.policies.fleet_words import engines_line, lateness_line
from inferway_bench.policies.plan import OTHER_CACHES
from inferway_bench.policies.plot import fleet_pictures, pictures
from inferway_bench.policies.results import (
    Loaded,
    LoadGoal,
    PoliciesRun,
    Row,
    gateways_named,
    workload_named,
)
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import Interval, mean_interval

_GOAL_HEAD = (
    *("workload", "gateways", "load", "ratio", "required", "measured (95 %)"),
    *("with the oracle", "met"),
)


def about(run: PoliciesRun) -> list[str]:
    return [
        *([f"Kept from an earlier run: {run.kept}."] if run.kept else []),
        *_fleet_lines(run),
        "",
        *[f"- {line}" for line in _workload_lines(run)],
    ]


def sheets(run: PoliciesRun) -> Iterator[Sheet]:
    """At the highest load, all together; then each workload by load."""
    yield from _beside(run, "Mean TTFT in ms", lambda rows: f"{_mean_ttft(rows).value * 1e3:,.0f}")
    if run.plan.asked == "peers":
        yield _pressure(run)
    yield from _beside(run, "Share of prompt tokens that came from a cache", _cached)
    for w, gateways in _settings(run):
        head = ["policy"]
        for load in run.loads(w.name, gateways):
            head += [f"{load:.0%}: TTFT", "p90", "cached"]
        yield Sheet(
            f"**{workload_named(w.name)}, {gateways_named(gateways)}**: mean TTFT in ms (95 %), "
            "its p90, and the share of prompt tokens that came from a cache",
            head,
            list(_rows(run, w, gateways)),
            in_details=True,
        )
    goals = run.load_goals()
    if goals:
        yield Sheet(
            f"Requirements on {OURS}, as means of the ratios of each seed",
            _GOAL_HEAD,
            [_goal_cells(goal) for goal in goals],
            num_left=5,
            notes=run.losses(),
            in_details=run.plan.asked != "peers",
        )


def _pressure(run: PoliciesRun) -> Sheet:
    """Where hearing of KV events pays: by cache and number of gateways, at the highest load that
    all have."""
    rows = []
    for w, gateways in _settings(run):
        load = run.loads(w.name, gateways)[-1]
        cells = [w.name.partition(OTHER_CACHES)[0], f"{run.plan.cache_of(w.name):,}", str(gateways)]
        full = run.select(w.name, gateways, load, ORACLE) or run.select(
            w.name, gateways, load, OURS
        )
        cells.append(_cached(full))
        for names in (BLIND, APPROXIMATE, EVENT_DRIVEN, (DEAF,)):
            best = run.best(w.name, gateways, load, names)
            ratio = run.p90_ratio(w.name, gateways, load, best, OURS) if best else None
            named = "" if best == DEAF else f" {best}"
            cells.append(f"{ratio.shown()}{named}" if ratio else "")
        rows.append(cells)
    head = (
        "workload", "cache, tokens", "gateways", "reusable", "load or session only",
        "approximate", "event-driven", DEAF,
    )  # fmt: skip
    return Sheet(
        f"What KV events gain: p90 TTFT of the best policy of each kind divided by that of {OURS}, "
        f"at {max(run.plan.loads):.0%} of the rate; *reusable* is the share of prompt tokens that "
        "the oracle takes from a cache",
        head,
        rows,
        num_left=1,
    )


def _beside(run: PoliciesRun, what: str, cell: Callable[[Sequence[Row]], str]) -> Iterator[Sheet]:
    """All workloads at their highest load, a column each; those with other caches than their own
    by themselves."""
    for caches in dict.fromkeys(w.name.partition(OTHER_CACHES)[2] for w in run.workloads):
        settings = [s for s in _settings(run) if s[0].name.partition("@")[2] == caches]
        loads = [run.loads(w.name, gateways)[-1] for w, gateways in settings]
        rows = []
        for policy in run.policies:
            found = [
                run.select(w.name, gateways, load, policy.name)
                for (w, gateways), load in zip(settings, loads, strict=True)
            ]
            cells = [cell(some) if some else "" for some in found]
            rows.append([f"{policy.name}{_model_note(policy.is_model)}", *cells])
        names = [f"{w.name.partition(OTHER_CACHES)[0]}, {gateways_named(n)}" for w, n in settings]
        at = ", ".join(dict.fromkeys(f"{load:.0%}" for load in loads))
        with_caches = f", with caches of {int(caches):,} tokens" if caches else ""
        yield Sheet(f"{what}, at {at} of the rate{with_caches}", ["policy", *names], rows)


def summary(run: PoliciesRun) -> list[str]:
    """Rates, weights, and where others are ahead."""
    return [*_workload_lines(run), *run.losses()]


def _settings(run: PoliciesRun) -> list[tuple[Loaded, int]]:
    return [(w, gateways) for w in run.workloads for gateways in run.plan.gateways]


def _rows(run: PoliciesRun, w: Loaded, gateways: int) -> Iterator[list[str]]:
    for name in run.names():
        cells = [name]
        for load in run.loads(w.name, gateways):
            rows = run.select(w.name, gateways, load, name)
            p90 = fmean(row.ttft_p90 for row in rows) * 1e3
            cells += [_mean_ttft(rows).times(1e3).shown("{:,.0f}"), f"{p90:,.0f}", _cached(rows)]
        yield cells


def _fleet_lines(run: PoliciesRun) -> list[str]:
    caches = ", ".join(
        f"{run.plan.cache_of(w.name):,} tokens an engine for {w.name}"
        for w in run.workloads
        if OTHER_CACHES not in w.name
    )
    return [
        f"{engines_line(run.plan.fleet)}. Caches: {caches}.",
        f"{lateness_line(run.plan.fleet)}. Loads are shares of the rate at which round-robin's "
        "mean TTFT is twice that of an idle fleet; only requests that arrive in the second half "
        "of a run count. Intervals are 95 % bootstrap intervals over seeds.",
    ]


def _workload_lines(run: PoliciesRun) -> list[str]:
    lines = []
    for w in run.workloads:
        line = (
            f"{workload_named(w.name)}: {w.requests:,} requests; {w.about}. Round-robin's mean "
            f"TTFT is {w.idle_ttft * 1e3:,.0f} ms when idle, twice that at {w.doubling_rate:.2f} "
            "requests/s"
        )
        if w.weights:
            weights = ", ".join(f"{float(x):.0%} {best}" for x, best in w.weights.items())
            line += (
                f"; best weights (queue:kv:prefix) on the first half, behind "
                f"{gateways_named(run.plan.fit_gateways)}: {weights}"
            )
        lines.append(line)
    return lines


def _goal_cells(goal: LoadGoal) -> list[str]:
    met = "yes" if goal.is_met else "**no**"
    what = f"{goal.what}; the best is {goal.other}" if goal.other else goal.what
    return [
        workload_named(goal.workload), str(goal.gateways), f"{goal.load:.0%}", what, goal.asked,
        goal.found.shown("{:.3f}"), "" if goal.oracle is None else f"{goal.oracle.value:.3f}", met,
    ]  # fmt: skip


def _model_note(is_model: bool) -> str:
    return " (a model)" if is_model else ""


def _mean_ttft(rows: Sequence[Row]) -> Interval:
    return mean_interval([row.ttft for row in rows])


def _cached(rows: Sequence[Row]) -> str:
    return f"{fmean(row.cached_share for row in rows):.1%}"


POLICIES = told_by(
    "policies", PoliciesRun, about, sheets, notes=summary, pictures=pictures,
    question="how the routing policy changes time to first token on a simulated fleet: Inferway's "
    "policies, those of its peers, and an oracle",
    takes="18 minutes",
)  # fmt: skip
POLICIES_FLEET = told_by(
    "policies --fleet", PoliciesRun, about, sheets, notes=summary, pictures=fleet_pictures,
    question="how much KV events gain, with one gateway and with several, in front of many engines",
    takes="35 minutes",
)  # fmt: skip
