"""What `inferway bench epp` keeps, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec

from inferway.bench.machine import Machine

MOST_TIMES_A_REQUEST = 1.15  # of (echo + our route's own cost)
MOST_TIMES_A_CHUNK = 1.3  # of echo


class Arm(msgspec.Struct, frozen=True):
    """One picker under one load; lists have one entry per repeat, in order."""

    cpu_us: list[float]  # user + system time of the picker, per request
    requests_per_second: list[float]
    messages: list[float]  # that Envoy sent it, per request
    route_us: list[float] = []  # of it, our route; of the picker with the stopwatch alone

    @property
    def median_us(self) -> float:
        return median(self.cpu_us)


class Case(msgspec.Struct, frozen=True):
    """One kind of request, in the same run through the same Envoy."""

    name: str
    body_bytes: int
    echo: Arm
    ours: Arm
    timed: Arm  # ours, with a stopwatch around the route

    @property
    def route_us(self) -> float:
        return median(self.timed.route_us)

    @property
    def times(self) -> float:
        """Ours / (echo + route)."""
        return self.ours.median_us / (self.echo.median_us + self.route_us)


class EppRun(msgspec.Struct, frozen=True):
    """A whole run. `cases`: bodies, each answered in one piece; `stream`: the first one's, answered
    in many."""

    machine: Machine
    command: str
    envoy: str
    seconds: int
    connections: int
    events: int  # of a stream
    cases: list[Case]
    stream: Case
    idle_ms: dict[str, float] = {}  # CPU time a second without requests; not in the cases' figures

    def chunk_us(self, arm: str) -> float:
        """Of the messages that a stream has more than an answer in one piece."""
        plain, stream = getattr(self.cases[0], arm), getattr(self.stream, arm)
        more = median(stream.messages) - median(plain.messages)
        return float((stream.median_us - plain.median_us) / more)

    @property
    def chunk_times(self) -> float:
        return self.chunk_us("ours") / self.chunk_us("echo")


def write_run(run: EppRun) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def load_run(path: Path) -> EppRun:
    return msgspec.json.decode(path.read_bytes(), type=EppRun)
