"""All routers in front of one fleet, one after the other, and what each load was like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from inferway_bench.loading.samples import Sample
from inferway_bench.peers.fleets import Fleet
from inferway_bench.peers.plan import Scenario
from inferway_bench.peers.standing import Carried, Standing, standing
from inferway_bench.peers.workload import chats
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.routers import Router, since

_SEARCH_SEED = 1_000  # of chats that are not measured
_MOST_DOUBLINGS = 8  # of the rate that is looked for


class Cell(NamedTuple):
    """One router, one load, one seed, and what `figures` says of it."""

    router: str
    load: float
    seed: int
    is_ours: bool
    figures: dict[str, float]


@dataclass(slots=True)
class RouterTrials:
    """All routers in front of one fleet. It collects `cells` and what each router says it did."""

    scenario: Scenario
    fleet: Fleet
    directory: Path
    on_step: OnStep
    cells: list[Cell] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)

    def find_rate(self, round_robin: Router) -> dict[str, float]:
        """Return the rate at which round-robin's mean TTFT doubles, and the idle rate and TTFT."""
        with standing(round_robin, self.fleet, self.directory / "search") as one:

            def mean_ttft(rate: float) -> float:
                self.on_step(f"{round_robin.label} at {rate:.3g} requests a second")
                return self._carried(one, _SEARCH_SEED, f"search-{rate:.6g}", rate)["ttft_ms"]

            idle_rate = self.scenario.idle_rate or self._seldom(one)
            try:
                idle, rate = doubling_rate(mean_ttft, idle_rate, self.scenario.bisections)
            except ValueError as e:
                raise BenchError(f"{round_robin.label}: {e}; the cure: --rate") from e
        return {
            "rate": round(rate, 3),
            "idle_rate": round(idle_rate, 3),
            "idle_ttft_ms": round(idle, 1),
        }

    def _seldom(self, one: Standing) -> float:
        """Return the requests a second that hardly ever meet, on this machine: a quarter of what
        one user gets who waits for each answer. All the chats: first turns are shorter than
        others."""
        self.on_step(f"{one.label} with one user")
        self.fleet.reset()
        carried = one.carry(chats(self.scenario.chats, _SEARCH_SEED, "seldom", 1.0), users=1)
        _figures(one.label, self.scenario.chats.requests, carried)  # some were answered
        return len(carried.driven.samples) / carried.driven.seconds / 4

    def measure(
        self, routers: Sequence[Router], seeds: Sequence[int], loads: Sequence[float], rate: float
    ) -> None:
        """Measure every router, load and seed."""
        total = len(routers) * len(loads) * len(seeds)
        for seed in seeds:
            first = seed % len(routers)
            for router in [*routers[first:], *routers[:first]]:
                place = self.directory / f"{seed}-{routers.index(router)}"
                with standing(router, self.fleet, place) as one:
                    self._measure_loads(one, seed, loads, rate, total)

    def _measure_loads(
        self, one: Standing, seed: int, loads: Sequence[float], rate: float, total: int
    ) -> None:
        if self.scenario.warm_up_requests:
            self.on_step(f"warming up {one.label}")
            one.warm_up(self.scenario.chats, seed, rate, self.scenario.warm_up_requests)
        before = one.router.counters(one.place)
        for load in loads:
            self.on_step(f"{one.label} at {load:.0%}, seed {seed}", len(self.cells), total)
            found = self._carried(one, seed, f"{seed}-{load:g}", load * rate)
            self.cells.append(Cell(one.label, load, seed, one.router.is_ours, found))
        counted = since(before, one.router.counters(one.place))
        self.evidence[one.label] = one.router.evidence(counted)

    def _carried(self, one: Standing, seed: int, tag: str, rate: float) -> dict[str, float]:
        self.fleet.reset()
        spec = self.scenario.chats
        carried = one.carry(chats(spec, seed, tag, rate))
        return _figures(one.label, spec.requests, carried)


def doubling_rate(
    mean_ttft: Callable[[float], float], idle_rate: float, steps: int
) -> tuple[float, float]:
    """Return the idle mean, and the rate, in requests a second, at which the mean is twice that:
    found by doubling the rate and then by `steps` halvings, in ratio, of what is left. The mean
    must grow with the rate.

    Raises ValueError if it does not double.
    """
    idle = mean_ttft(idle_rate)
    low = high = idle_rate
    for _ in range(_MOST_DOUBLINGS):
        high = low * 2
        if mean_ttft(high) >= 2 * idle:
            break
        low = high
    else:
        raise ValueError(f"at {high:g} requests a second the mean TTFT is not twice {idle:g} ms")
    for _ in range(steps):
        middle = sqrt(low * high)
        if mean_ttft(middle) >= 2 * idle:
            high = middle
        else:
            low = middle
    return idle, sqrt(low * high)


def _figures(router: str, requests: int, carried: Carried) -> dict[str, float]:
    """Return the figures of one load. Raises BenchError if none of its requests was answered."""
    samples = carried.driven.samples
    if not any(sample.ok for sample in samples):
        said = next((s.detail or s.error for s in samples if not s.ok), "")
        raise BenchError(f"{router}: no request was answered: {said}")
    found = figures(requests, samples)
    found["cpu_ms"] = round(carried.cpu_seconds * 1e3 / (requests - found["errors"]), 4)
    found["mib"] = round(carried.resident_mib, 1)
    return found


def figures(requests: int, samples: Iterable[Sample]) -> dict[str, float]:
    """Return what the answered ones of `requests` were like: TTFT from the intended time, the mean
    time between tokens, answers a second from the first intended time to the last answer's end, the
    share of prompt tokens that engines found cached, and by how much the generator itself was
    late. Errors are those not answered whole, or never sent, because the turn before was not."""
    good = [sample for sample in samples if sample.ok]
    firsts = np.array([sample.ttft for sample in good], float) * 1e3
    p50, p90, p99 = np.percentile(firsts, (50, 90, 99)).tolist()
    begin = min(sample.intended for sample in good)
    asked = sum(sample.prompt_tokens or 0 for sample in good)
    itl = fmean([s.itl for s in good if s.itl is not None] or [0.0])
    found = {
        "ttft_ms": float(firsts.mean()),
        "p50_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
        "itl_ms": itl * 1e3,
        "per_second": len(good) / (max(s.ended for s in good) - begin),
        "cached": 100 * sum(s.cached_tokens or 0 for s in good) / asked if asked else 0.0,
        "late_p99_ms": float(np.percentile([s.late for s in good], 99)) * 1e3,
    }
    return {name: round(value, 3) for name, value in found.items()} | {
        "errors": requests - len(good)
    }
