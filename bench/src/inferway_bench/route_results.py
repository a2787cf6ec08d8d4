"""What `inferway bench route` keeps."""

from __future__ import annotations

from statistics import median

import msgspec

from inferway_bench.parts import Part
from inferway_bench.results import Figure, Run
from inferway_bench.spread import ratio_of_medians

OURS = "inferway serve"


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


class RouteRun(Run, frozen=True):
    """A whole run of `inferway bench route`."""

    seconds: int  # of load per repeat
    connections: int
    bodies: dict[str, str]  # case -> what its bodies are
    measurements: list[Measurement]
    parts: list[Part]

    def losses(self) -> list[str]:
        """Peers that take less CPU than ours does with all it does."""
        found = []
        for case in self.bodies:
            by_router = {m.router: m for m in self.measurements if m.case == case}
            ours = by_router.pop(OURS, None)
            if ours is None:
                continue
            for name, other in by_router.items():
                times = ratio_of_medians(ours.cpu_us, other.cpu_us)
                if not name.startswith("inferway") and times.low > 1:
                    found.append(
                        f"{case}: {name} takes {other.median_cpu_us:,.0f} µs of CPU, `{OURS}` "
                        f"{ours.median_cpu_us:,.0f}: "
                        f"{times.shown('{:.1f}')} times as much"
                    )
        return found

    def figures(self) -> list[Figure]:
        found = []
        for m in self.measurements:
            name, is_ours = f"{m.router}, {m.case}", m.router.startswith("inferway")
            found += [
                Figure(f"{name}: CPU a request", "µs", m.cpu_us, is_ours=is_ours),
                Figure(f"{name}: carried", "requests/s", m.requests_per_second, "higher", is_ours),
            ]
        resident = {m.router: m.resident_mib for m in self.measurements}
        found += [
            Figure(f"{router}: memory", "MiB", [mib], is_ours=router.startswith("inferway"))
            for router, mib in resident.items()
        ]
        return found + [Figure(f"step: {p.name}", "µs", [p.median_us]) for p in self.parts]
