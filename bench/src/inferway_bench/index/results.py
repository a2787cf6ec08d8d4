"""What `inferway bench index` keeps, and what was asked of it. Pure."""

from __future__ import annotations

from statistics import median

import msgspec

from inferway_bench.index.holdings import Fleet
from inferway_bench.index.memory import Growth
from inferway_bench.index.plan import Plan
from inferway_bench.index.shared import SharedCost
from inferway_bench.index.snapshot import Snapshots
from inferway_bench.index.stalls import Stalls
from inferway_bench.results import Figure, Goal, Run
from inferway_bench.spread import Interval, median_interval, ratio_of_medians


class Case(msgspec.Struct, frozen=True):
    """A match, in microseconds: the mean over prompts of each one's median, of each round."""

    length: int
    shape: str
    ours_us: list[float]
    peer_us: list[float]
    peer_one_core_us: list[float]  # its thread and its caller share a core
    peer_right: bool  # whether the peer's answers were those of a walk; ours were

    @property
    def ours(self) -> float:
        return median(self.ours_us)

    @property
    def ratio(self) -> float:
        return median(self.peer_us) / self.ours

    @property
    def ratio_one_core(self) -> float:
        return median(self.peer_one_core_us) / self.ours


class PeerSeconds(msgspec.Struct, frozen=True):
    """For all events. From tokens; ours begins with the engine's payload."""

    hashing: float
    writing: float  # JSON, which its API takes
    applying: float

    @property
    def asked(self) -> float:
        """What is compared: hashing and applying."""
        return self.hashing + self.applying

    @property
    def all(self) -> float:
        return self.hashing + self.writing + self.applying


class EventPath(msgspec.Struct, frozen=True):
    """Of each repeat of each round."""

    blocks: int  # per event
    events: int
    ours_seconds: list[float]
    peer_seconds: list[PeerSeconds]
    peer_one_core_seconds: list[PeerSeconds]

    @property
    def blocks_per_second(self) -> Interval:
        """Ours."""
        return median_interval([self.blocks * self.events / s for s in self.ours_seconds])


class Keys(msgspec.Struct, frozen=True):
    """Microseconds for a prompt's block keys, of each round."""

    tokens: int
    ours_us: list[float]
    peer_us: list[float]


class IndexRun(Run, frozen=True):
    """A whole run."""

    peer: str | None  # None: measured alone
    plan: Plan
    cases: list[Case]
    event_paths: list[EventPath]
    keys: Keys
    growth: Growth
    fleets: list[Fleet]
    stalls: Stalls
    snapshots: Snapshots
    peer_bytes_per_block: float | None
    shared: SharedCost | None = None  # None: no Redis to be had

    def case(self, length: int, shape: str) -> Case:
        return next(c for c in self.cases if (c.length, c.shape) == (length, shape))

    @property
    def seeds(self) -> list[int]:
        return [self.plan.seed]

    def goals(self) -> list[Goal]:
        return [
            *self._match_goals(),
            *self._event_goals(),
            *self._growth_goals(),
            *self._snapshot_goals(),
        ]

    def _match_goals(self) -> list[Goal]:
        short, *_, long = sorted(self.plan.prompts)
        detached = self.case(short, "detached")
        times = self.case(long, "detached").ours / detached.ours
        goals = [
            Goal(
                f"match of {long:,} blocks, time / that of {short:,} blocks",
                "≤ 3 ×",
                f"{times:.1f} ×",
                times <= 3,
            )
        ]
        if self.peer is None:
            return goals
        asked = Goal(
            f"match of {short:,} blocks, 8 engines, 1 % detached",
            "≥ 10 × as fast as the peer",
            _times(ratio_of_medians(detached.peer_us, detached.ours_us)),
            detached.ratio >= 10,
        )
        return [asked, *goals]

    def _event_goals(self) -> list[Goal]:
        big, small = self.event_paths
        blocks, events = big.blocks_per_second, small.blocks_per_second
        what, keys = f"applying {big.blocks}-block events", median_interval(self.keys.ours_us)
        goals = [
            Goal(what, "≥ 300,000 blocks/s", _shown(blocks), blocks.value >= 3e5),
            Goal(
                "applying one-block events",
                "≥ 60,000 events/s",
                _shown(events),
                events.value >= 6e4,
            ),
            Goal(
                f"block keys of {self.keys.tokens:,} tokens",
                "≤ 60 µs",
                f"{_shown(keys)} µs",
                keys.value <= 60,
            ),
        ]
        if self.peer is not None:
            theirs = [seconds.asked for seconds in big.peer_seconds]
            times = ratio_of_medians(theirs, big.ours_seconds)
            goals.append(
                Goal(f"{what}, speed / that of the peer", "≥ 2 ×", _times(times), times.value >= 2)
            )
        return goals

    def _growth_goals(self) -> list[Goal]:
        grown, stalls = self.growth, self.stalls
        added = stalls.growing.decision_p99_ms - stalls.quiet.decision_p99_ms
        longest = stalls.growing.late_max_ms
        return [
            Goal(
                "memory of a block at the peak, bytes",
                "≤ 250",
                f"{grown.peak:.0f}",
                grown.peak <= 250,
            ),
            Goal("longest stall while the index grows", "< 5 ms", f"{longest:.1f} ms", longest < 5),
            Goal(
                "time that growing adds to a decision's p99",
                "< 2 ms",
                f"{added:+.2f} ms",
                added < 2,
            ),
        ]

    def _snapshot_goals(self) -> list[Goal]:
        cost, loading = self.snapshots.cost, self.snapshots.loading
        load, run = loading.load.late_max_ms, loading.run.late_max_ms
        blocks = f"{loading.blocks:,} blocks"
        return [
            Goal(
                "time that a journal adds to applying events",
                "< 15 %",
                f"{cost.ratio - 1:+.1%}",
                cost.ratio < 1.15,
            ),
            Goal(f"longest stall while {blocks} are loaded", "< 5 ms", f"{load:.1f} ms", load < 5),
            Goal(
                f"longest stall with {blocks} while a journal is compacted",
                "< 5 ms",
                f"{run:.1f} ms",
                run < 5,
            ),
        ]

    def losses(self) -> list[str]:
        found = []
        if self.peer_bytes_per_block is not None:
            found.append(
                f"memory: a block takes {self.growth.peak:.0f} bytes, in Dynamo's RadixTree "
                f"{self.peer_bytes_per_block:.0f}"
            )
        for path in self.event_paths:
            ours = median(path.ours_seconds)
            theirs = [s.asked for s in path.peer_one_core_seconds]
            if theirs and median(theirs) < ours:
                found.append(
                    f"{path.blocks}-block events: one takes {1e6 * ours / path.events:.1f} µs, in "
                    f"Dynamo's RadixTree on one core {1e6 * median(theirs) / path.events:.1f}"
                )
        return found

    def figures(self) -> list[Figure]:
        return [*self._match_figures(), *self._event_figures(), *self._other_figures()]

    def _match_figures(self) -> list[Figure]:
        found = []
        for case in self.cases:
            name = f"match of {case.length:,} blocks, {case.shape}"
            found.append(Figure(name, "µs", case.ours_us))
            if case.peer_us:
                found.append(Figure(f"{name}, peer", "µs", case.peer_us, is_ours=False))
        return found

    def _event_figures(self) -> list[Figure]:
        found = [Figure(f"keys of {self.keys.tokens:,} tokens", "µs", self.keys.ours_us)]
        for path in self.event_paths:
            name, us = f"event of {path.blocks} blocks", 1e6 / path.events
            found.append(Figure(name, "µs", [us * s for s in path.ours_seconds]))
            if path.peer_seconds:
                theirs = [us * s.asked for s in path.peer_seconds]
                found.append(Figure(f"{name}, peer", "µs", theirs, is_ours=False))
        return found

    def _other_figures(self) -> list[Figure]:
        stalls, kept = self.stalls, self.snapshots
        return [
            Figure("memory of a block, peak", "bytes", [self.growth.peak]),
            Figure("decision while growing, p99", "ms", [stalls.growing.decision_p99_ms]),
            Figure("loop held by events, CPU", "ms", [stalls.slice_cpu_ms]),
            Figure("batch with a journal", "µs", [kept.cost.us_with]),
            Figure("loading blocks", "s", [kept.loading.seconds]),
        ]


def _times(found: Interval) -> str:
    return f"{found.shown('{:.1f}')} ×"


def _shown(found: Interval) -> str:
    return found.shown("{:,.0f}")
