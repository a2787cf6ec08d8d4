"""A run of `inferway bench epp` as tables: in the terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from inferway.bench.document import machine_line, table_lines, versions_line
from inferway.bench.epp.results import MOST_TIMES_A_CHUNK, MOST_TIMES_A_REQUEST, EppRun

_REQUESTS = [
    *("CPU of the picker, µs a request", "body, bytes", "echo", "our route", "ours"),
    *("ours / (echo + route)", "asked", "met"),
]
_CHUNKS = ["CPU of the picker, µs a streamed chunk", "echo", "ours", "ours / echo", "asked", "met"]
_RATES = ["requests a second and core", "echo", "ours"]


def terminal_tables(run: EppRun) -> Iterator[Table]:
    for head, rows in _tables(run):
        shown = Table()
        for i, name in enumerate(head):
            shown.add_column(name, justify="left" if i == 0 else "right")
        for row in rows:
            shown.add_row(*row)
        yield shown


def markdown(run: EppRun) -> str:
    repeats = len(run.stream.ours.cpu_us)
    lines = [
        f"Measured {run.machine.date} UTC by `{run.command}` at commit {run.machine.commit}; "
        f"{run.envoy}, one worker; {run.connections} connections, "
        f"median of {repeats} times {run.seconds} s.",
        machine_line(run.machine),
        versions_line(run.machine),
    ]
    for head, rows in _tables(run):
        lines += ["", *table_lines(head, rows)]
    if run.idle_ms:
        lines += [
            "",
            f"Without requests ours takes {run.idle_ms['ours']:.1f} ms of CPU time a second, for"
            f" reading how busy two engines are, and echo {run.idle_ms['echo']:.1f} ms: that is"
            " taken off above.",
        ]
    return "\n".join(lines) + "\n"


def missed(run: EppRun) -> list[str]:
    """What is not as asked."""
    return [row[0] for _, rows in _tables(run) for row in rows if row[-1] == "**no**"]


def _tables(run: EppRun) -> Iterator[tuple[list[str], list[list[str]]]]:
    yield (
        _REQUESTS,
        [
            [
                *(case.name, f"{case.body_bytes:,}", f"{case.echo.median_us:.0f}"),
                *(f"{case.route_us:.0f}", f"{case.ours.median_us:.0f}"),
                *_judged(case.times, MOST_TIMES_A_REQUEST),
            ]
            for case in run.cases
        ],
    )
    chunk = [f"{run.chunk_us(arm):.0f}" for arm in ("echo", "ours")]
    row = [f"{run.stream.name}", *chunk, *_judged(run.chunk_times, MOST_TIMES_A_CHUNK)]
    yield _CHUNKS, [row]
    yield (
        _RATES,
        [
            [case.name, *(f"{1e6 / arm.median_us:,.0f}" for arm in (case.echo, case.ours))]
            for case in (*run.cases, run.stream)
        ],
    )


def _judged(times: float, most: float) -> list[str]:
    return [f"{times:.2f}", f"≤ {most:g}", "yes" if times <= most else "**no**"]
