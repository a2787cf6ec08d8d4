"""A run of `inferway bench proxy` as tables and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from inferway_bench.plotting import DOTS, Line, Panel, Picture
from inferway_bench.proxy.results import DIRECT, LONG, SHORT, STREAM, ProxyRun
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import median_interval, shown_range

_CASES = (SHORT, LONG, STREAM)
_COSTS = ("CPU, µs", *_CASES[:2], f"{STREAM}, each chunk")
_LATENCIES = ("time to first token, µs", "p50", "p99", "added p50", "added p99", "failed")


def about(run: ProxyRun) -> list[str]:
    plan = run.plan
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return [
        f"{plan.repeats} repeats of {plan.seconds} s, all routers in one run, taking turns: "
        f"{versions}. Load average after the run: {run.load_after}."
    ]


def sheets(run: ProxyRun) -> Iterator[Sheet]:
    yield Sheet(
        "CPU time in µs, median (lowest-highest of the repeats)", _COSTS, _cost_rows(run),
        notes=[f"{STREAM}: {run.bodies[STREAM]}; the other loads are those of `bench route`"]
        if STREAM in run.bodies
        else [],
    )  # fmt: skip
    yield Sheet(
        f"Latency: open loop, Poisson arrivals, {run.rate:,.0f} streams of one token a second "
        f"through each router ({_why_so_many(run)}); medians of the repeats (95 %)",
        _LATENCIES,
        _latency_rows(run),
        notes=[f"{router} answered nothing in {said}" for router, said in run.dropped.items()],
    )
    yield Sheet(
        "Memory of the process tree, median (lowest-highest) of the starts",
        ("MiB", "at start", f"growth to {run.plan.held_streams:,} streams"),
        _memory_rows(run),
    )


def _why_so_many(run: ProxyRun) -> str:
    half = "half of what the slowest router carries"
    if run.rate >= run.half_of_the_slowest:
        return half
    return (
        "the rate at which the client takes two fifths of a core; "
        f"{half} is {run.half_of_the_slowest:,.0f}"
    )


def notes(run: ProxyRun) -> list[str]:
    """What each router says that it did."""
    said: dict[str, list[str]] = {}
    for cost in run.costs:
        if cost.note and cost.note not in said.setdefault(cost.router, []):
            said[cost.router].append(cost.note)
    return [f"{router}: {'; '.join(notes)}" for router, notes in said.items()]


def pictures(run: ProxyRun) -> list[Picture]:
    """CPU, latency and memory, a colour each router."""
    routers = dict.fromkeys(cost.router for cost in run.costs)
    trees = {one.router: one for one in run.memory}
    costs, latencies, memory = [], [], []
    for router in routers:
        cases = [cost for case in _CASES if (cost := run.cost(router, case))]
        at = [_CASES.index(cost.case) for cost in cases]
        costs.append(Line(router, at, [median_interval(c.cpu_us) for c in cases], DOTS))
        one, tree = run.latency(router), trees.get(router)
        times = [median_interval(us) for us in (one.p50_us, one.p99_us)] if one else []
        latencies.append(Line(router, range(len(times)), times, DOTS))
        mib = [median_interval(values) for values in (tree.at_start, tree.growth)] if tree else []
        memory.append(Line(router, range(len(mib)), mib, DOTS))
    growth = f"growth to {run.plan.held_streams:,} streams"
    panels = [
        Panel("", "CPU, µs a request, of streams a chunk", costs, log_y=True, ticks=_CASES),
        Panel(
            f"{run.rate:,.0f} requests a second", "time to the first token, µs", latencies,
            log_y=True, ticks=("p50", "p99"),
        ),
        Panel("", "memory, MiB", memory, log_y=True, ticks=("at start", growth)),
    ]  # fmt: skip
    return [Picture("proxy", "What the data plane costs", [panels], one_legend=True)]


def _cost_rows(run: ProxyRun) -> list[list[str]]:
    routers = dict.fromkeys(cost.router for cost in run.costs)
    return [[router, *(_cpu(run, router, case) for case in _CASES)] for router in routers]


def _cpu(run: ProxyRun, router: str, case: str) -> str:
    cost = run.cost(router, case)
    if cost is None:
        return ""
    form = "{:.1f}" if case == STREAM else "{:,.0f}"
    return shown_range(cost.cpu_us, form)


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
                *("" if is_direct else median_interval(us).shown("{:,.0f}") for us in added),
                f"{median(one.failed):.1%}",
            ]
        )
    return rows


def _memory_rows(run: ProxyRun) -> list[list[str]]:
    return [
        [one.router, *(_mib(values) for values in (one.at_start, one.growth))] for one in run.memory
    ]


def _mib(values: list[float]) -> str:
    return shown_range(values)


PROXY = told_by(
    "proxy", ProxyRun, about, sheets, notes=notes, pictures=pictures,
    question="how much CPU time, latency and memory the data plane costs, compared with its peers",
    takes="12 minutes",
)  # fmt: skip
