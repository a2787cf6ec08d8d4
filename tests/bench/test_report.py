"""A run of `inferway bench route` is kept as lines and shown as tables."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from inferway.bench.machine import Machine, this_machine
from inferway.bench.parts import Part
from inferway.bench.report import cpu_table, markdown, parts_table
from inferway.bench.results import Measurement, RouteRun, load_run, read_lines, write_lines

DOCS = Path(__file__).parents[2] / "docs"

MACHINE = Machine(
    date="2026-01-02 03:04",
    cpu="Some CPU",
    cores=2,
    memory_gib=23.5,
    system="Linux 6.1",
    python="3.11.7",
    packages={"uvloop": "0.22"},
    commit="abc",
    load_before=0.1,
)


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


def test_what_is_written_can_be_read_again() -> None:
    assert read_lines(write_lines(RUN)) == RUN


def test_every_line_is_a_json_object() -> None:
    lines = write_lines(RUN).splitlines()

    assert len(lines) == 1 + 2 + 1
    assert all(isinstance(msgspec.json.decode(line), dict) for line in lines)


def test_the_tables_show_medians() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100)
    console.print(cpu_table(RUN))
    console.print(parts_table(RUN))

    text = out.getvalue()
    assert "│ ours   │    22 │  350 │      2,000 │     0.6 │  64 │" in text
    assert "45.2" in text


def test_markdown_has_the_range_the_machine_and_what_routers_say() -> None:
    text = markdown(RUN)

    assert "| ours | 22 (20-24) | 350 (300-400) | 2,000 | 0.6 | 64 |" in text
    assert "2 cores of Some CPU" in text
    assert "- ours, short: prompts not looked at" in text


def test_figures_from_a_busy_machine_are_called_provisional() -> None:
    busy = msgspec.structs.replace(RUN, machine=msgspec.structs.replace(MACHINE, load_before=3.0))

    assert "provisional" in markdown(busy)
    assert "provisional" not in markdown(RUN)


def test_the_documents_tables_are_those_of_the_stored_result() -> None:
    run = load_run(DOCS / "results" / "route.json")

    assert markdown(run) in (DOCS / "performance.md").read_text()


def test_this_machine_is_described() -> None:
    machine = this_machine()

    assert machine.cores >= 1
    assert "uvloop" in machine.packages
