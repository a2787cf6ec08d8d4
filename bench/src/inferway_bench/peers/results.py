"""What a run of `inferway bench peers` found, and how routers are told apart. Pure.

Every router gets the same requests of a seed, so seeds are pairs: what is said of a difference is
the mean over them, with a bootstrap interval over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import fmean

import msgspec
import numpy as np

from inferway_bench.loading.samples import Sample
from inferway_bench.peers.plan import Plan
from inferway_bench.processes import BenchError
from inferway_bench.results import Figure, Goal, Run
from inferway_bench.spread import Interval, mean_interval

OURS = "inferway serve"
PLAIN = "inferway serve --no-scoring"


class Cell(msgspec.Struct, frozen=True):
    """One router, one load, one seed. Seconds, of what was answered."""

    router: str
    load: float
    seed: int
    requests: int  # asked for
    errors: int  # of them: not answered whole, or never sent, because the turn before was not
    ttft: float  # from the intended time, mean; and percentiles
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    itl: float  # mean time between the tokens of an answer
    throughput: float  # answers a second, from the first intended time to the last answer's end
    cached_share: float  # of prompt tokens, as the engines' answers say
    cpu: float  # of the router, a request
    resident_mib: float  # of the router, when the load had ended
    late: float  # by how much the generator itself was late, 99th percentile
    per_engine: dict[str, int]  # requests, where the router says who answered


class Note(msgspec.Struct, frozen=True):
    """What a router says that it did, by its own counters, in its last run."""

    router: str
    text: str


class Searched(msgspec.Struct, frozen=True):
    """Round-robin, while the rate was looked for."""

    rate: float  # requests a second
    ttft: float  # seconds, mean


class Sitting(msgspec.Struct, frozen=True):
    """When some of it was measured, on a machine how busy (load averages)."""

    date: str  # UTC
    commit: str
    load_before: float
    load_after: float
    seeds: list[int]
    loads: list[float]


Of = Callable[[Cell], float]


class PeersRun(Run, frozen=True):
    """A whole run."""

    plan: Plan
    versions: dict[str, str]
    idle_ttft: float  # seconds: round-robin's mean where requests hardly ever meet
    doubling_rate: float  # requests a second at which it is twice that
    searched: list[Searched]
    cells: list[Cell]
    notes: list[Note]
    sittings: list[Sitting]

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.seed for cell in self.cells})

    @property
    def loads(self) -> list[float]:
        return sorted({cell.load for cell in self.cells})

    @property
    def routers(self) -> list[str]:
        """In the order of the table, ours first."""
        return sorted(
            dict.fromkeys(cell.router for cell in self.cells),
            key=lambda name: (name != OURS, name != PLAIN, name),
        )

    def select(self, router: str, load: float) -> list[Cell]:
        """By seed."""
        found = [cell for cell in self.cells if (cell.router, cell.load) == (router, load)]
        return sorted(found, key=lambda cell: cell.seed)

    def mean(self, router: str, load: float, of: Of) -> Interval:
        return mean_interval([of(cell) for cell in self.select(router, load)])

    def difference(self, router: str, other: str, load: float, of: Of) -> Interval:
        """`router` less `other`, seed by seed."""
        theirs = {cell.seed: of(cell) for cell in self.select(other, load)}
        mine = [cell for cell in self.select(router, load) if cell.seed in theirs]
        return mean_interval([of(cell) - theirs[cell.seed] for cell in mine])

    def goals(self) -> list[Goal]:
        """Where ours was measured beside others."""
        return [goal for load in self.loads for goal in self._goals_at(load)]

    def _goals_at(self, load: float) -> list[Goal]:
        there = [name for name in self.routers if self.select(name, load)]
        others = [name for name in there if name not in (OURS, PLAIN)]
        if OURS not in there or not others:
            return []
        best = max(others, key=lambda name: self.mean(name, load, cached).value)
        ours, theirs = self.mean(OURS, load, cached), self.mean(best, load, cached)
        goals = [
            Goal(
                f"cached tokens at {load:.0%}",
                f"≥ lower end of the interval of {best}",
                f"{ours.shown('{:.1%}')}; peer {theirs.shown('{:.1%}')}",
                ours.value >= theirs.low,
            )
        ]
        for name in others:
            less = self.difference(OURS, name, load, ttft)
            goals.append(
                Goal(
                    f"mean TTFT at {load:.0%} minus that of {name}",
                    "< 0",
                    f"{less.times(1e3).shown('{:,.0f}')} ms",
                    less.high < 0,
                )
            )
        return goals

    def losses(self) -> list[str]:
        """Routers that answer sooner, or cost less CPU, beyond the noise."""
        return [said for load in self.loads for said in self._losses_at(load)]

    def _losses_at(self, load: float) -> Iterator[str]:
        if not self.select(OURS, load):
            return
        cheaper = []
        for name in self.routers:
            if name == OURS or not self.select(name, load):
                continue
            later = self.difference(OURS, name, load, ttft)
            if later.low > 0:
                ms = later.times(1e3).shown("{:,.0f}")
                yield f"at {load:.0%} first tokens come {ms} ms later than with {name}"
            if self.difference(OURS, name, load, _cpu).low > 0:
                cheaper.append(f"{self.mean(name, load, _cpu).value * 1e3:.1f} in {name}")
        if cheaper:
            ours = self.mean(OURS, load, _cpu).value * 1e3
            yield (
                f"at {load:.0%} a request takes {ours:.1f} ms of CPU time in {OURS}, "
                f"{', '.join(cheaper)}"
            )

    def figures(self) -> list[Figure]:
        found = []
        for router in self.routers:
            for load in self.loads:
                cells = self.select(router, load)
                name, is_ours = f"{router} at {load:.0%}", router in (OURS, PLAIN)
                for what, unit, of in (("mean TTFT", "s", ttft), ("CPU a request", "s", _cpu)):
                    values = [of(cell) for cell in cells]
                    found.append(Figure(f"{name}: {what}", unit, values, is_ours=is_ours))
                shares = [cell.cached_share for cell in cells]
                found.append(Figure(f"{name}: cached", "of 1", shares, "higher", is_ours))
        return found


def joined(before: PeersRun, more: PeersRun) -> PeersRun:
    """Both, of one fleet, chats and rate; what was measured again is `more`'s. Raises BenchError
    if they are not of one kind."""
    for name in ("engines", "chats"):
        if getattr(before.plan, name) != getattr(more.plan, name):
            raise BenchError(f"--more: other {name} than before; the cure: leave out --more")
    if before.doubling_rate != more.doubling_rate:
        raise BenchError(
            f"--more: loads of {more.doubling_rate:g} requests a second, before they were of "
            f"{before.doubling_rate:g}; the cure: leave out --rate"
        )
    cells = {(cell.router, cell.load, cell.seed): cell for cell in (*before.cells, *more.cells)}
    notes = {note.router: note for note in (*before.notes, *more.notes)}
    return msgspec.structs.replace(
        more,
        versions={**before.versions, **more.versions},
        idle_ttft=before.idle_ttft,
        searched=before.searched,
        cells=list(cells.values()),
        notes=list(notes.values()),
        sittings=[*before.sittings, *more.sittings],
    )


def ttft(cell: Cell) -> float:
    return cell.ttft


def cached(cell: Cell) -> float:
    return cell.cached_share


def _cpu(cell: Cell) -> float:
    return cell.cpu


def cell_of(
    router: str,
    load: float,
    seed: int,
    requests: int,
    samples: Iterable[Sample],
    cpu_seconds: float,
    resident_mib: float,
) -> Cell:
    """`requests` were to be sent. Raises ValueError if none was answered."""
    good = [sample for sample in samples if sample.ok]
    if not good:
        raise ValueError("no request was answered")
    firsts = np.array([sample.ttft for sample in good], float)
    p50, p90, p99 = np.percentile(firsts, (50, 90, 99)).tolist()
    begin = min(sample.intended for sample in good)
    asked = sum(sample.prompt_tokens or 0 for sample in good)
    engines: dict[str, int] = {}
    for sample in good:
        engine = (sample.headers or {}).get("x-inferway-engine")
        if engine is not None:
            engines[engine] = engines.get(engine, 0) + 1
    return Cell(
        router=router,
        load=load,
        seed=seed,
        requests=requests,
        errors=requests - len(good),
        ttft=round(float(firsts.mean()), 6),
        ttft_p50=round(p50, 6),
        ttft_p90=round(p90, 6),
        ttft_p99=round(p99, 6),
        itl=round(fmean([s.itl for s in good if s.itl is not None] or [0.0]), 6),
        throughput=round(len(good) / (max(s.ended for s in good) - begin), 3),
        cached_share=round(sum(s.cached_tokens or 0 for s in good) / asked, 5) if asked else 0.0,
        cpu=round(cpu_seconds / len(good), 7),
        resident_mib=round(resident_mib, 1),
        late=round(float(np.percentile([s.late for s in good], 99)), 6),
        per_engine=engines,
    )
