"""What `inferway bench epp` keeps, and what follows from it."""

from __future__ import annotations

from statistics import median

import msgspec

from inferway_bench.results import Figure, Goal, Run
from inferway_bench.spread import Interval, median_interval

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
    bare: Arm | None = None  # echo, over the gRPC that ours has

    @property
    def route_us(self) -> float:
        return median(self.timed.route_us)

    @property
    def floor_us(self) -> float:
        """Echo + route."""
        return self.echo.median_us + self.route_us

    @property
    def times(self) -> float:
        """Ours / (echo + route)."""
        return self.ours.median_us / self.floor_us

    @property
    def times_spread(self) -> Interval:
        """The same, repeat by repeat."""
        repeats = zip(self.ours.cpu_us, self.echo.cpu_us, self.timed.route_us, strict=True)
        return median_interval([ours / (echo + route) for ours, echo, route in repeats])

    @property
    def times_bare(self) -> float | None:
        """The same, with an echo over our own gRPC."""
        if self.bare is None:
            return None
        return self.ours.median_us / (self.bare.median_us + self.route_us)


class EppRun(Run, frozen=True):
    """A whole run. `cases`: bodies, each answered in one piece; `stream`: the first one's, answered
    in many."""

    envoy: str
    seconds: int
    connections: int
    events: int  # of a stream
    cases: list[Case]
    stream: Case
    # CPU time a second without requests; not in the cases' figures
    idle_ms: dict[str, float] = msgspec.field(default_factory=dict)

    def chunk_us(self, arm: str) -> float:
        """Of the messages that a stream has more than an answer in one piece."""
        plain, stream = getattr(self.cases[0], arm), getattr(self.stream, arm)
        more = median(stream.messages) - median(plain.messages)
        return float((stream.median_us - plain.median_us) / more)

    @property
    def chunk_times(self) -> float:
        return self.chunk_us("ours") / self.chunk_us("echo")

    @property
    def chunk_spread(self) -> Interval:
        """The same, repeat by repeat."""
        ours, echo = (self._chunks(arm) for arm in ("ours", "echo"))
        return median_interval([a / b for a, b in zip(ours, echo, strict=True)])

    def _chunks(self, arm: str) -> list[float]:
        plain, stream = getattr(self.cases[0], arm), getattr(self.stream, arm)
        more = median(stream.messages) - median(plain.messages)
        return [(b - a) / more for a, b in zip(plain.cpu_us, stream.cpu_us, strict=True)]

    @property
    def arms(self) -> list[str]:
        """Those that decide nothing, and ours."""
        return ["echo", "ours"] if self.stream.bare is None else ["echo", "bare", "ours"]

    def goals(self) -> list[Goal]:
        most = f"≤ {MOST_TIMES_A_REQUEST:g} × (echo + our route)"
        found = [
            Goal(
                f"{case.name}, CPU a pick", most, _times(case.times, case.times_spread),
                case.times <= MOST_TIMES_A_REQUEST,
            )
            for case in self.cases
        ]  # fmt: skip
        times = self.chunk_times
        chunk = Goal(
            "CPU a streamed chunk", f"≤ {MOST_TIMES_A_CHUNK:g} × echo",
            _times(times, self.chunk_spread), times <= MOST_TIMES_A_CHUNK,
        )  # fmt: skip
        return [*found, chunk]

    def figures(self) -> list[Figure]:
        return [
            Figure(f"{case.name}: CPU of {name}", "µs", arm.cpu_us, is_ours=name == "ours")
            for case in (*self.cases, self.stream)
            for name, arm in (("echo", case.echo), ("bare", case.bare), ("ours", case.ours))
            if arm is not None
        ]


def _times(value: float, spread: Interval) -> str:
    """Of the medians, and the 95 % of the repeats' own."""
    return f"{Interval(value, spread.low, spread.high).shown()} ×"
