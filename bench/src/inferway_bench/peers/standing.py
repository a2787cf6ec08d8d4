"""A router that stands in front of a fleet, and what it takes to carry one load."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from inferway_bench.cpu import cpu_seconds, resident_bytes
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Driven, Pacing, drive
from inferway_bench.loading.workload import Session
from inferway_bench.peers.fleets import MODEL, Fleet
from inferway_bench.peers.workload import ChatSpec, chats
from inferway_bench.processes import free_port, running, wait_until
from inferway_bench.routers import Place, Router

_TIMEOUT = 120.0  # seconds that an answer may take
_WARM_UP_SEED = 2_000  # of chats that are not measured, and above


@dataclass(frozen=True, slots=True)
class Carried:
    """One load."""

    driven: Driven
    cpu_seconds: float  # of the router
    resident_mib: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A router that runs."""

    router: Router
    place: Place
    pid: int

    def carry(self, sessions: Sequence[Session], users: int | None = None) -> Carried:
        """Sends `sessions` at their times, or as fast as so many users go, and waits for the
        answers."""
        target = Target(self.place.url, timeout=_TIMEOUT, keep_headers=True)
        before = cpu_seconds(self.pid)
        gc.collect()
        gc.disable()  # a collection would be somebody's latency
        try:
            driven = uvloop.run(drive(target, sessions, Pacing(users), model=MODEL))
        finally:
            gc.enable()
        used = cpu_seconds(self.pid) - before
        return Carried(driven, used, resident_bytes(self.pid) / 2**20)

    def warm_up(self, spec: ChatSpec, seed: int, rate: float, requests: int) -> None:
        """Carries the first `requests` of chats that are like those of `seed`, and others."""
        self.carry(chats(spec, _WARM_UP_SEED + seed, f"warm-{seed}", rate, requests))


@contextmanager
def standing(router: Router, fleet: Fleet, directory: Path) -> Iterator[Standing]:
    """`router` in front of `fleet`, ready, its files in `directory`. Raises BenchError when it
    does not start."""
    directory.mkdir(parents=True, exist_ok=True)
    place = Place(
        port=free_port(),
        metrics_port=free_port(),
        engines=fleet.engines,
        model=MODEL,
        directory=directory,
        block_size=fleet.block_size,
    )
    log = directory / "router.log"
    with running(router.command(place), log) as process:
        wait_until(lambda: router.is_ready(place), router.label, process, log)
        yield Standing(router, place, process.pid)
