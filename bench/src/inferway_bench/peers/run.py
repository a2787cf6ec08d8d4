"""The run: one fleet, and one router after the other in front of it.

Only the router that is measured runs, so that nobody pays for another's scraping or events. Each
seed starts every router anew, warms it up with chats of another seed, and then measures all loads;
the caches are emptied before each. Who comes first changes from seed to seed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from inferway_bench.loading.samples import Sample
from inferway_bench.machine import command_line, this_machine
from inferway_bench.peers.fleets import Fleet, started
from inferway_bench.peers.plan import Plan
from inferway_bench.peers.results import Cell, Note, PeersRun, Searched, Sitting, cell_of
from inferway_bench.peers.search import doubling_rate
from inferway_bench.peers.standing import Carried, Standing, standing
from inferway_bench.peers.workload import chats
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnCountedStep
from inferway_bench.routers import Router, since

_SEARCH_SEED = 1_000  # of chats that are not measured


class Kept(msgspec.Struct, frozen=True):
    """A cell and its samples, in the order of their intended times."""

    cell: Cell
    rate: float
    samples: Sequence[Sample]


Keep = Callable[[Kept], None]


def run_peers(
    plan: Plan,
    routers: Sequence[Router],
    round_robin: Router,
    vllm: Path | None,
    on_step: OnCountedStep,
    keep: Keep,
) -> PeersRun:
    """All of it. `round_robin` finds the rate; `vllm` is the command of real engines. Raises
    BenchError when something cannot be started, or a load is not answered at all."""
    machine = this_machine()
    with TemporaryDirectory(prefix="inferway-peers-") as name:
        directory = Path(name)
        with started(plan.engines, vllm, directory, on_step) as fleet:
            tour = _Tour(plan, fleet, directory, on_step, keep)
            idle, rate = tour.find_rate(round_robin)
            tour.measure(routers, rate)
    return PeersRun(
        machine=machine,
        command=shlex.join(command_line()),
        plan=plan,
        versions={router.label.split()[0]: router.version for router in routers},
        idle_ttft=round(idle, 4),
        doubling_rate=round(rate, 3),
        searched=[Searched(round(r, 3), round(mean, 4)) for r, mean in tour.searched.items()],
        cells=tour.cells,
        notes=[Note(router, text) for router, text in tour.notes.items()],
        sittings=[
            Sitting(
                date=machine.date,
                commit=machine.commit,
                load_before=machine.load_before,
                load_after=round(os.getloadavg()[0], 2),
                seeds=list(plan.all_seeds),
                loads=list(plan.loads),
            )
        ],
    )


@dataclass(slots=True)
class _Tour:
    """Of all routers."""

    plan: Plan
    fleet: Fleet
    directory: Path
    on_step: OnCountedStep
    keep: Keep
    cells: list[Cell] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    searched: dict[float, float] = field(default_factory=dict)  # rate -> mean TTFT

    def find_rate(self, round_robin: Router) -> tuple[float, float]:
        """The idle mean TTFT (0 if it was not measured), and the rate at which it is doubled."""
        plan = self.plan
        if plan.rate is not None:
            return 0.0, plan.rate
        with standing(round_robin, self.fleet, self.directory / "search") as one:

            def mean_ttft(rate: float) -> float:
                self.on_step(f"{round_robin.label} at {rate:.3g} requests a second")
                self.fleet.reset()
                tag = f"search-{rate:.6g}"
                carried = one.carry(chats(plan.chats, _SEARCH_SEED, tag, rate))
                mean = _cell(one, 0.0, 0, plan.chats.requests, carried).ttft
                self.searched[rate] = mean
                return mean

            try:
                return doubling_rate(
                    mean_ttft, plan.idle_rate or self._seldom(one), plan.bisections
                )
            except ValueError as e:
                raise BenchError(f"{round_robin.label}: {e}; the cure: --rate") from e

    def _seldom(self, one: Standing) -> float:
        """Requests a second that hardly ever meet, on this machine: a quarter of what one user
        gets who waits for each answer. All the chats: first turns are shorter than others."""
        self.on_step(f"{one.router.label} with one user")
        self.fleet.reset()
        spec = self.plan.chats
        carried = one.carry(chats(spec, _SEARCH_SEED, "seldom", 1.0), users=1)
        _cell(one, 0.0, 0, spec.requests, carried)  # some were answered
        return len(carried.driven.samples) / carried.driven.seconds / 4

    def measure(self, routers: Sequence[Router], rate: float) -> None:
        """Every router, load and seed."""
        for seed in self.plan.all_seeds:
            first = seed % len(routers)
            for router in [*routers[first:], *routers[:first]]:
                place = self.directory / f"{seed}-{routers.index(router)}"
                with standing(router, self.fleet, place) as one:
                    self._warm_up(one, seed, rate)
                    before = router.counters(one.place)
                    for load in self.plan.loads:
                        self._cell(one, load, seed, rate, len(routers))
                    self.notes[router.label] = router.evidence(
                        since(before, router.counters(one.place))
                    )

    def _warm_up(self, one: Standing, seed: int, rate: float) -> None:
        plan = self.plan
        if plan.warm_up_requests:
            self.on_step(f"warming up {one.router.label}")
            one.warm_up(plan.chats, seed, rate, plan.warm_up_requests)

    def _cell(self, one: Standing, load: float, seed: int, rate: float, routers: int) -> None:
        plan = self.plan
        self.on_step(
            f"{one.router.label} at {load:.0%}, seed {seed}",
            len(self.cells),
            routers * len(plan.loads) * plan.seeds,
        )
        self.fleet.reset()
        sessions = chats(plan.chats, seed, f"{seed}-{load:g}", load * rate)
        carried = one.carry(sessions)
        cell = _cell(one, load, seed, plan.chats.requests, carried)
        self.cells.append(cell)
        samples = sorted(carried.driven.samples, key=lambda sample: sample.intended)
        self.keep(Kept(cell, load * rate, samples))


def _cell(one: Standing, load: float, seed: int, requests: int, carried: Carried) -> Cell:
    try:
        return cell_of(
            one.router.label,
            load,
            seed,
            requests,
            carried.driven.samples,
            carried.cpu_seconds,
            carried.resident_mib,
        )
    except ValueError as e:
        said = next((s.detail or s.error for s in carried.driven.samples if not s.ok), "")
        raise BenchError(f"{one.router.label}: {e}: {said}") from e
