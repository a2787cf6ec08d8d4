"""A run of `inferway bench route` is kept as lines and shown as tables."""

from __future__ import annotations

import io

import msgspec
from bench.tests.test_report import MACHINE
from rich.console import Console

from inferway_bench.parts import Part
from inferway_bench.route_report import ROUTE
from inferway_bench.route_results import Measurement, RouteRun


def measurement(router: str, case: str, cpu_us: list[float], note: str = "") -> Measurement:
    return Measurement(
        router=router,
        version="1.0",
        case=case,
        cpu_us=cpu_us,
        requests_per_second=[1000.0, 3000.0],
        p50_us=[500, 700],
        p99_us=[900, 900],
        resident_mib=64.25,
        note=note,
    )


RUN = RouteRun(
    machine=MACHINE,
    command="inferway bench route",
    seconds=4,
    connections=8,
    bodies={"short": "a short one", "long": "a long one"},
    measurements=[
        measurement("ours", "short", [20.0, 24.0, 22.0], note="prompts not looked at"),
        measurement("ours", "long", [400.0, 300.0, 350.0]),
    ],
    parts=[Part("parse", 45.25, "36 kB of JSON")],
)


def test_the_tables_show_medians() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100)
    console.print(*ROUTE.tables(RUN))

    text = out.getvalue()
    assert "│ ours   │ 22 (20 to 24) │ 350 (300 to 400) │      2,000 │     0.6 │  64 │" in text
    assert "45.2" in text


def test_markdown_has_the_range_the_machine_and_what_routers_say() -> None:
    text = ROUTE.markdown(RUN)

    assert "| ours | 22 (20 to 24) | 350 (300 to 400) | 2,000 | 0.6 | 64 |" in text
    assert "2 cores of Some CPU" in text
    assert "- ours: prompts not looked at" in text


def test_figures_from_a_busy_machine_are_called_provisional() -> None:
    busy = msgspec.structs.replace(RUN, machine=msgspec.structs.replace(MACHINE, load_before=3.0))

    assert "provisional" in ROUTE.markdown(busy)
    assert "provisional" not in ROUTE.markdown(RUN)
