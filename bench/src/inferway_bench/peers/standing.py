"""A router that stands in front of a fleet, and what it takes to carry one load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from inferway_bench.cpu import cpu_seconds, resident_bytes
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Driven, Pacing, drive, without_collections
from inferway_bench.loading.workload import Session
from inferway_bench.peers.fleets import MODEL, Fleet
from inferway_bench.peers.workload import ChatSpec, chats
from inferway_bench.routers import Router, RunningRouter, place_for, running_router

_TIMEOUT = 120.0  # seconds that an answer may take
_WARM_UP_SEED = 2_000  # of chats that are not measured, and above


@dataclass(frozen=True, slots=True)
class Carried:
    """The samples of one load, and the CPU time and memory that the router took for it."""

    driven: Driven
    cpu_seconds: float
    resident_mib: float


@dataclass(frozen=True, slots=True)
class Standing(RunningRouter):
    """A router that runs in front of a fleet."""

    def carry(self, sessions: Sequence[Session], users: int | None = None) -> Carried:
        """Send `sessions` at their times, or as fast as `users` go, and wait for the answers."""
        target = Target(self.place.url, timeout=_TIMEOUT)
        before = cpu_seconds(self.pid)
        with without_collections():
            driven = uvloop.run(drive(target, sessions, Pacing(users), model=MODEL))
        used = cpu_seconds(self.pid) - before
        return Carried(driven, used, resident_bytes(self.pid) / 2**20)

    def warm_up(self, spec: ChatSpec, seed: int, rate: float, requests: int) -> None:
        """Carry the first `requests` of chats that are like those of `seed`, and others."""
        self.carry(chats(spec, _WARM_UP_SEED + seed, f"warm-{seed}", rate, requests))


@contextmanager
def standing(router: Router, fleet: Fleet, directory: Path) -> Iterator[Standing]:
    """Start `router` in front of `fleet`, its files in `directory`, and wait until it is ready.
    Raises BenchError when it does not start."""
    place = place_for(fleet.engines, MODEL, directory, fleet.block_size)
    with running_router(router, place, router.is_ready) as one:
        yield Standing(one.router, one.place, one.pid)
