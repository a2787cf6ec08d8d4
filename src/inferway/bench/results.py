"""What `inferway bench` keeps of a run: one file a benchmark, one line a measurement."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec

from inferway.bench.machine import Machine
from inferway.bench.parts import Part


class Measurement(msgspec.Struct, frozen=True):
    """One router under one load; lists have one entry per repeat, in order."""

    router: str
    version: str
    case: str
    cpu_us: list[float]  # user + system time of the process tree per answered request
    requests_per_second: list[float]
    p50_us: list[int]  # latency at this load, which saturates the router or the machine
    p99_us: list[int]
    resident_mib: float
    note: str  # what the router says that it did

    @property
    def median_cpu_us(self) -> float:
        return median(self.cpu_us)


class RouteRun(msgspec.Struct, frozen=True):
    """A whole run of `inferway bench route`."""

    machine: Machine
    command: str
    seconds: int  # of load per repeat
    connections: int
    bodies: dict[str, str]  # case -> what its bodies are
    measurements: list[Measurement]
    parts: list[Part]


def write_lines(run: RouteRun) -> str:
    """JSON lines: what was run on what, then a line per measurement, then the parts."""
    head = {
        "machine": run.machine,
        "command": run.command,
        "seconds": run.seconds,
        "connections": run.connections,
        "bodies": run.bodies,
    }
    lines = [head, *run.measurements, {"parts": run.parts}]
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)


def read_lines(text: str) -> RouteRun:
    """What `write_lines` wrote."""
    head, *measurements, parts = (msgspec.json.decode(line) for line in text.splitlines())
    return msgspec.convert({**head, "measurements": measurements, **parts}, RouteRun)


def load_run(path: Path) -> RouteRun:
    return read_lines(path.read_text())
