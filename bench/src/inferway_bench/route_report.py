"""A run of `inferway bench route` as tables."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from inferway_bench.plotting import Line, Panel, Picture
from inferway_bench.route_results import Measurement, RouteRun
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import median_interval, shown_range


def about(run: RouteRun) -> list[str]:
    repeats = len(run.measurements[0].cpu_us) if run.measurements else 0
    versions = dict.fromkeys(f"{m.router.split()[0]} {m.version}" for m in run.measurements)
    return [
        f"{repeats} repeats of {run.seconds} s, {run.connections} connections, all routers in one "
        f"run, taking turns: {', '.join(versions)}."
    ]


def sheets(run: RouteRun) -> Iterator[Sheet]:
    loads = [f"{case}: {what}" for case, what in run.bodies.items()]
    yield Sheet(
        "CPU time for a request in µs, median (lowest-highest of the repeats); requests/s, p50 and "
        "MiB are those of the last load",
        ["router", *run.bodies, "requests/s", "p50, ms", "MiB"],
        list(_rows(run)),
        notes=[*loads, *notes(run)],
    )
    yield Sheet(
        "Inferway's steps, each timed alone, wall time of one thread",
        ["step", "of what", "µs, median (quartiles)"],
        [[p.name, p.note, p.shown] for p in run.parts],
        num_left=2,
    )


def notes(run: RouteRun) -> list[str]:
    """What each router says that it did, once where it says the same of all loads."""
    said: dict[str, dict[str, list[str]]] = {}
    for m in run.measurements:
        if m.note:
            said.setdefault(m.router, {}).setdefault(m.note, []).append(m.case)
    return [
        f"{router}{'' if len(by_note) == 1 else f', {chr(32).join(cases)}'}: {note}"
        for router, by_note in said.items()
        for note, cases in by_note.items()
    ]


def pictures(run: RouteRun) -> list[Picture]:
    """CPU time against the length of the body, a line a router."""
    cases = list(run.bodies)
    lines = []
    for router in dict.fromkeys(m.router for m in run.measurements):
        found = [m for m in run.measurements if m.router == router]
        xs = [float(cases.index(m.case)) for m in found]
        lines.append(Line(router, xs, [median_interval(m.cpu_us) for m in found]))
    panel = Panel("the load", "CPU of a request, µs", lines, ticks=cases)
    return [Picture("route", "CPU time of a routed request, 95 %", [[panel]])]


def _rows(run: RouteRun) -> Iterator[list[str]]:
    cases = list(run.bodies)
    by_router: dict[str, dict[str, Measurement]] = {}
    for m in run.measurements:
        by_router.setdefault(m.router, {})[m.case] = m
    for router, by_case in by_router.items():
        last = by_case[cases[-1]]
        yield [
            router,
            *(_cpu(by_case[case]) for case in cases),
            f"{median(last.requests_per_second):,.0f}",
            f"{median(last.p50_us) / 1000:.1f}",
            f"{last.resident_mib:.0f}",
        ]


def _cpu(m: Measurement) -> str:
    return shown_range(m.cpu_us)


ROUTE = told_by(
    "route", RouteRun, about, sheets, notes=notes, pictures=pictures,
    question="how much CPU time a router takes for a request: Inferway and its peers",
    takes="7 minutes",
)  # fmt: skip
