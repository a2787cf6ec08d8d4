"""A run of `inferway bench route` as tables: in the terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from rich.table import Table

from inferway.bench.document import machine_line, table_line, table_lines, versions_line
from inferway.bench.results import Measurement, RouteRun


def cpu_table(run: RouteRun) -> Table:
    """Routers down, loads across: median CPU per request."""
    cases = list(run.bodies)
    table = Table(title="CPU time per request, µs: median of the repeats", title_justify="left")
    table.add_column("router", no_wrap=True)
    for case in cases:
        table.add_column(case, justify="right")
    table.add_column("requests/s", justify="right")
    table.add_column("p50, ms", justify="right")
    table.add_column("MiB", justify="right")
    for cells in _rows(run, _median_cpu):
        table.add_row(*cells)
    return table


def parts_table(run: RouteRun) -> Table:
    table = Table(title="our request path, step by step, µs: median", title_justify="left")
    table.add_column("step")
    table.add_column("µs", justify="right")
    table.add_column("of what")
    for part in run.parts:
        table.add_row(part.name, f"{part.median_us:.1f}", part.note)
    return table


def notes(run: RouteRun) -> list[str]:
    """What each router says that it did, once per router and load."""
    return [f"{m.router}, {m.case}: {m.note}" for m in run.measurements if m.note]


def markdown(run: RouteRun) -> str:
    """Both tables, the machine and the notes."""
    cases = list(run.bodies)
    head = ["router", *cases, "requests/s", "p50, ms", "MiB"]
    lines = [*_head_lines(run), ""]
    lines += ["CPU time per request in µs, median (lowest-highest of the repeats):", ""]
    lines += table_lines(head, _rows(run, _cpu_and_range))
    lines += ["", "requests/s, p50 and memory are those of the last load. Loads:", ""]
    lines += [f"- {case}: {what}" for case, what in run.bodies.items()]
    lines += ["", "What the routers say that they did:", ""]
    lines += [f"- {note}" for note in notes(run)]
    lines += ["", "The steps of our path, timed alone (µs, median, wall time of one thread):", ""]
    lines += [table_line(["step", "µs", "of what"]), table_line(["---", "---:", "---"])]
    lines += [table_line([p.name, f"{p.median_us:.1f}", p.note]) for p in run.parts]
    return "\n".join(lines) + "\n"


def _rows(run: RouteRun, cpu: Callable[[Measurement], str]) -> Iterator[list[str]]:
    cases = list(run.bodies)
    by_router: dict[str, dict[str, Measurement]] = {}
    for m in run.measurements:
        by_router.setdefault(m.router, {})[m.case] = m
    for router, by_case in by_router.items():
        last = by_case[cases[-1]]
        yield [
            router,
            *(cpu(by_case[case]) for case in cases),
            f"{median(last.requests_per_second):,.0f}",
            f"{median(last.p50_us) / 1000:.1f}",
            f"{last.resident_mib:.0f}",
        ]


def _median_cpu(m: Measurement) -> str:
    return f"{m.median_cpu_us:,.0f}"


def _cpu_and_range(m: Measurement) -> str:
    return f"{m.median_cpu_us:,.0f} ({min(m.cpu_us):,.0f}-{max(m.cpu_us):,.0f})"


def _head_lines(run: RouteRun) -> list[str]:
    machine = run.machine
    repeats = len(run.measurements[0].cpu_us) if run.measurements else 0
    versions = dict.fromkeys(f"{m.router.split()[0]} {m.version}" for m in run.measurements)
    return [
        f"Measured {machine.date} UTC by `{run.command}` at commit {machine.commit}:",
        f"{repeats} repeats of {run.seconds} s, {run.connections} connections, all routers in one "
        "run, taking turns.",
        machine_line(machine),
        f"Routers: {', '.join(versions)}. {versions_line(machine)}",
    ]
