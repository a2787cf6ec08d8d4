"""A run of `inferway bench proxy` as tables: in the terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.table import Table

from inferway.bench.document import machine_line, table_lines, versions_line
from inferway.bench.proxy.results import DIRECT, LONG, SHORT, STREAM, ProxyRun, shown
from inferway.bench.spread import median_interval

_CASES = (SHORT, LONG, STREAM)
_GOALS = ("", "asked", "found", "met")
_COSTS = ("CPU, µs", *_CASES[:2], f"{STREAM}, each chunk")
_LATENCIES = ("time to first token, µs", "p50", "p99", "added p50", "added p99", "failed")


def terminal_tables(run: ProxyRun) -> Iterator[Table]:
    goals = [[*goal[:3], "yes" if goal[3] else "no"] for goal in _goal_rows(run)]
    yield _table("What was asked", _GOALS, goals)
    yield _table("CPU: median (lowest-highest of the repeats)", _COSTS, _cost_rows(run))
    yield _table(f"Latency at {run.rate:,.0f} requests/s", _LATENCIES, _latency_rows(run))
    yield _table("Memory, MiB", _memory_head(run), _memory_rows(run))


def notes(run: ProxyRun) -> list[str]:
    """What each router says that it did."""
    return [f"{cost.router}, {cost.case}: {cost.note}" for cost in run.costs if cost.note]


def markdown(run: ProxyRun) -> str:
    plan = run.plan
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    goals = [[*goal[:3], "yes" if goal[3] else "**no**"] for goal in _goal_rows(run)]
    lines = [
        f"Measured {run.machine.date} UTC by `{run.command}` at commit {run.machine.commit}:",
        f"{plan.repeats} repeats of {plan.seconds} s, all routers in one run, taking turns.",
        machine_line(run.machine) + f" After the run: {run.load_after}.",
        f"Routers: {versions}. {versions_line(run.machine)}",
        "",
        *table_lines(_GOALS, goals, num_left=4),
        *("", "CPU time in µs, median (lowest-highest of the repeats):", ""),
        *table_lines(_COSTS, _cost_rows(run)),
        *("", "Loads:", ""),
        *(f"- {case}: {what}" for case, what in run.bodies.items()),
        "",
        f"Latency: open loop, Poisson, {run.rate:,.0f} streams of one token a second for all, half "
        "of what the slowest carries; medians of the repeats (95 %):",
        "",
        *table_lines(_LATENCIES, _latency_rows(run)),
        *("", "Memory of the process tree, MiB, median of the starts:", ""),
        *table_lines(_memory_head(run), _memory_rows(run)),
        *("", "What the routers say that they did:", ""),
        *(f"- {note}" for note in notes(run)),
    ]
    return "\n".join(lines) + "\n"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for one in head:
        table.add_column(one)
    for row in rows:
        table.add_row(*row)
    return table


def _goal_rows(run: ProxyRun) -> list[tuple[str, str, str, bool]]:
    return [(goal.what, goal.asked, goal.found, goal.is_met) for goal in run.goals()]


def _cost_rows(run: ProxyRun) -> list[list[str]]:
    routers = dict.fromkeys(cost.router for cost in run.costs)
    return [[router, *(_cpu(run, router, case) for case in _CASES)] for router in routers]


def _cpu(run: ProxyRun, router: str, case: str) -> str:
    cost = run.cost(router, case)
    if cost is None:
        return ""
    form = "{:.1f}" if case == STREAM else "{:,.0f}"
    found = (median(cost.cpu_us), min(cost.cpu_us), max(cost.cpu_us))
    middle, low, high = map(form.format, found)
    return f"{middle} ({low}-{high})"


def _latency_rows(run: ProxyRun) -> list[list[str]]:
    rows = []
    for one in run.latencies:
        plain = [f"{median(values):,.0f}" for values in (one.p50_us, one.p99_us)]
        added = (
            run.added_us(one.router, lambda latency: latency.p50_us),
            run.added_us(one.router, lambda latency: latency.p99_us),
        )
        is_direct = one.router == DIRECT
        rows.append(
            [
                one.router,
                *plain,
                *("" if is_direct else shown(median_interval(us), "{:,.0f}") for us in added),
                f"{median(one.failed):.1%}",
            ]
        )
    return rows


def _memory_head(run: ProxyRun) -> tuple[str, ...]:
    return ("MiB", "at start", f"growth to {run.plan.held_streams:,} streams")


def _memory_rows(run: ProxyRun) -> list[list[str]]:
    return [
        [one.router, f"{median(one.at_start):.0f}", f"{median(one.growth):.0f}"]
        for one in run.memory
    ]
