"""A run as a table: in the terminal, and as markdown between two marks of a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from rich.table import Table

from inferway.bench.processes import BenchError
from inferway.bench.results import Measurement, RouteRun

_BEGIN = "<!-- begin: inferway bench route -->"
_END = "<!-- end: inferway bench route -->"

_QUIET_LOAD = 0.5  # above it somebody else was at work


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


def update_document(path: Path, run: RouteRun) -> None:
    """Puts the run's tables between the marks of the document at `path`.

    Raises BenchError when it has no marks.
    """
    text = path.read_text()
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise BenchError(f"{path}: no {_BEGIN!r} and {_END!r}; the cure: add these two lines")
    path.write_text(f"{before}{_BEGIN}\n{markdown(run)}{_END}{after}")


def markdown(run: RouteRun) -> str:
    """Both tables, the machine and the notes."""
    cases = list(run.bodies)
    head = ["router", *cases, "requests/s", "p50, ms", "MiB"]
    lines = [*_machine_lines(run), ""]
    lines += ["CPU time per request in µs, median (lowest-highest of the repeats):", ""]
    lines += [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    lines += [_line(cells) for cells in _rows(run, _cpu_and_range)]
    lines += ["", "requests/s, p50 and memory are those of the last load. Loads:", ""]
    lines += [f"- {case}: {what}" for case, what in run.bodies.items()]
    lines += ["", "What the routers say that they did:", ""]
    lines += [f"- {note}" for note in notes(run)]
    lines += ["", "The steps of our path, timed alone (µs, median, wall time of one thread):", ""]
    lines += [_line(["step", "µs", "of what"]), _line(["---", "---:", "---"])]
    lines += [_line([p.name, f"{p.median_us:.1f}", p.note]) for p in run.parts]
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


def _machine_lines(run: RouteRun) -> list[str]:
    machine = run.machine
    repeats = len(run.measurements[0].cpu_us) if run.measurements else 0
    busy = machine.load_before > _QUIET_LOAD
    versions = dict.fromkeys(f"{m.router.split()[0]} {m.version}" for m in run.measurements)
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return [
        f"Measured {machine.date} UTC by `{run.command}` at commit {machine.commit}:",
        f"{repeats} repeats of {run.seconds} s, {run.connections} connections, all routers in one "
        "run, taking turns.",
        f"Machine: {machine.cores} cores of {machine.cpu}, {machine.memory_gib} GiB, "
        f"{machine.system}; load average before the run {machine.load_before}"
        + (": **the machine was busy, take the figures as provisional**." if busy else "."),
        f"Routers: {', '.join(versions)}. Python {machine.python}, {packages}.",
    ]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
