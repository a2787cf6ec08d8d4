"""What `inferway bench index` keeps, and what was asked of it. Pure but for reading the file."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec

from inferway.bench.index.holdings import Fleet
from inferway.bench.index.memory import Growth
from inferway.bench.index.plan import Plan
from inferway.bench.index.shared import SharedCost
from inferway.bench.index.snapshot import Snapshots
from inferway.bench.index.stalls import Stalls
from inferway.bench.machine import Machine


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
    def ours_per_second(self) -> float:
        return self.events / median(self.ours_seconds)

    @property
    def ratio(self) -> float:
        return median(s.asked for s in self.peer_seconds) / median(self.ours_seconds)


class Keys(msgspec.Struct, frozen=True):
    """Microseconds for a prompt's block keys, of each round."""

    tokens: int
    ours_us: list[float]
    peer_us: list[float]


class Goal(msgspec.Struct, frozen=True):
    """Something that was asked for."""

    what: str
    asked: str
    found: str
    is_met: bool


class IndexRun(msgspec.Struct, frozen=True):
    """A whole run."""

    machine: Machine
    command: str
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
                f"{long:,} blocks, to {short:,} blocks",
                "≤ 3 × the time",
                f"{times:.1f} ×",
                times <= 3,
            )
        ]
        if self.peer is None:
            return goals
        asked = Goal(
            f"match of {short:,} blocks, 8 engines, 1 % detached",
            "≥ 10 × faster",
            f"{detached.ratio:.1f} × ({detached.ours:.1f} µs to {median(detached.peer_us):.1f} µs)",
            detached.ratio >= 10,
        )
        return [asked, *goals]

    def _event_goals(self) -> list[Goal]:
        big, small = self.event_paths
        blocks, events = big.ours_per_second * big.blocks, small.ours_per_second
        keys = median(self.keys.ours_us)
        goals = [
            Goal(
                f"{big.blocks}-block events", "≥ 300,000 blocks/s", f"{blocks:,.0f}", blocks >= 3e5
            ),
            Goal("one-block events", "≥ 60,000 events/s", f"{events:,.0f}", events >= 6e4),
            Goal(f"keys of {self.keys.tokens:,} tokens", "≤ 60 µs", f"{keys:.0f} µs", keys <= 60),
        ]
        if self.peer is not None:
            what = f"{big.blocks}-block events, to the peer"
            goals.append(Goal(what, "≥ 2 ×", f"{big.ratio:.1f} ×", big.ratio >= 2))
        return goals

    def _growth_goals(self) -> list[Goal]:
        grown, stalls = self.growth, self.stalls
        added = stalls.growing.decision_p99_ms - stalls.quiet.decision_p99_ms
        longest = stalls.growing.late_max_ms
        return [
            Goal("bytes a block, peak", "≤ 250", f"{grown.peak:.0f}", grown.peak <= 250),
            Goal("longest stall while growing", "< 5 ms", f"{longest:.1f} ms", longest < 5),
            Goal("added to a decision's p99", "< 2 ms", f"{added:+.2f} ms", added < 2),
        ]

    def _snapshot_goals(self) -> list[Goal]:
        cost, loading = self.snapshots.cost, self.snapshots.loading
        load, run = loading.load.late_max_ms, loading.run.late_max_ms
        blocks = f"{loading.blocks:,} blocks"
        return [
            Goal("a journal, to applying", "< 15 %", f"{cost.ratio - 1:+.1%}", cost.ratio < 1.15),
            Goal(f"longest stall while {blocks} are loaded", "< 5 ms", f"{load:.1f} ms", load < 5),
            Goal(f"the same while {blocks} are kept", "< 5 ms", f"{run:.1f} ms", run < 5),
        ]


def write_run(run: IndexRun) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def read_run(path: Path) -> IndexRun:
    return msgspec.json.decode(path.read_bytes(), type=IndexRun)
