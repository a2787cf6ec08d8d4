"""Runs that tests make without measuring anything."""

from __future__ import annotations

from typing import Any

from inferway_bench.machine import Machine
from inferway_bench.rows import Findings, Row, Run

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


def unseen(what: str, done: int | None = None, total: int | None = None) -> None:
    """Takes what is under way, and shows nothing."""


def a_run(benchmark: str, found: Findings | list[Row], **head: Any) -> Run:
    """Return a run of the benchmark with these findings, as its command would make it."""
    if isinstance(found, list):
        found = Findings(rows=found)
    values = {name: getattr(found, name) for name in Findings.__struct_fields__}
    command = f"inferway bench {benchmark}"
    about = {"benchmark": benchmark, "machine": MACHINE, "command": command, "plan": {}}
    return Run(**{**values, **about, **head})
