"""A run of `inferway bench epp` as tables and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inferway_bench.epp.results import Arm, Case, EppRun
from inferway_bench.plotting import Line, Panel, Picture
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import median_interval, shown_range

_NAMES = {"echo": "echo", "bare": "echo over our gRPC", "ours": "ours"}


def about(run: EppRun) -> list[str]:
    repeats = len(run.stream.ours.cpu_us)
    idle = (
        f" Without requests, Inferway's picker takes {run.idle_ms['ours']:.1f} ms of CPU time a "
        f"second to read the load of two engines, and echo takes {run.idle_ms['echo']:.1f} ms; "
        "this idle time is subtracted from the figures."
        if run.idle_ms
        else ""
    )
    return [
        f"{run.envoy}, one worker; {run.connections} connections, {repeats} repeats of "
        f"{run.seconds} s in turns.{idle}"
    ]


def sheets(run: EppRun) -> Iterator[Sheet]:
    names = [_NAMES[arm] for arm in run.arms]
    has_bare = "bare" in run.arms
    yield Sheet(
        "CPU time of the picker for a request in µs, median (lowest-highest of the repeats)",
        (
            *("", "body, bytes", *names, "our route", "ours / (echo + route)"),
            *(("ours / (echo over our gRPC + route)",) if has_bare else ()),
        ),
        [
            [
                *(case.name, f"{case.body_bytes:,}", *_each(run, case, _us)),
                *(f"{case.route_us:.0f}", f"{case.times:.2f}"),
                *(() if case.times_bare is None else (f"{case.times_bare:.2f}",)),
            ]
            for case in run.cases
        ],
    )
    chunk = [f"{run.chunk_us(arm):.0f}" for arm in run.arms]
    row = [run.stream.name, *chunk, f"{run.chunk_times:.2f}"]
    yield Sheet(
        "CPU time of the picker for a streamed chunk in µs, from the medians",
        ("", *names, "ours / echo"),
        [row],
    )
    yield Sheet(
        "Requests a second on one core",
        ("", *names),
        [
            [case.name, *_each(run, case, lambda arm: f"{1e6 / arm.median_us:,.0f}")]
            for case in (*run.cases, run.stream)
        ],
    )


def pictures(run: EppRun) -> list[Picture]:
    """What a pick costs by the length of the body."""
    cases = sorted(run.cases, key=lambda case: case.body_bytes)
    sizes = [case.body_bytes for case in cases]
    lines = [
        Line(_NAMES[arm], sizes, [median_interval(getattr(case, arm).cpu_us) for case in cases])
        for arm in run.arms
    ]
    floor = [case.floor_us for case in cases]
    lines.append(Line("echo + our route", sizes, floor, {"linestyle": "--"}))
    panel = Panel("body, bytes", "CPU of the picker, µs a request", lines, log_x=True, log_y=True)
    return [Picture("epp", run.envoy, [[panel]])]


def _each(run: EppRun, case: Case, told: Callable[[Arm], str]) -> list[str]:
    return [told(getattr(case, name)) for name in run.arms]


def _us(arm: Arm) -> str:
    return shown_range(arm.cpu_us)


EPP = told_by(
    "epp", EppRun, about, sheets, pictures=pictures,
    question="how much CPU time an endpoint pick and a streamed chunk take behind a real Envoy",
    takes="5 minutes",
)  # fmt: skip
