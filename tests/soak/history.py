"""What happened to which engine, and when. No I/O; times in seconds since the epoch.

From it follows what an engine may be blamed for: how long it was slow, and whether anything was
wrong with it when the gateway declared it out. One that was not in trouble then, nor shortly
before, is a false alarm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

# After a trouble has ended: what was sent into a cut is sent again after pauses that double.
AFTERMATH_SECONDS = 10.0
SLOW = "slowed down"

# As fleet.watch says it.
_OUT = re.compile(
    r"^(?P<at>\S+) WARNING +inferway\.fleet: engine (?P<engine>\S+)"
    r" (?P<how>cannot be reached|does not answer|answers, but computes nothing"
    r"|answers, but not as an engine does): "
)
_SERVES = re.compile(r"^\S+ INFO +inferway\.fleet: engine (?P<engine>\S+) serves ")


@dataclass(slots=True)
class Trouble:
    engine: str  # as the gateway calls it
    what: str
    began: float
    ended: float | None = None  # None: it goes on

    def overlap(self, began: float, ended: float) -> float:
        """Return the seconds of it between the two."""
        last = ended if self.ended is None else min(ended, self.ended)
        return max(0.0, last - max(began, self.began))

    def is_at(self, when: float) -> bool:
        return self.began <= when and (self.ended is None or when <= self.ended)


@dataclass(frozen=True, slots=True)
class Alarm:
    """The gateway declares an engine out."""

    at: float
    engine: str
    how: str


@dataclass(slots=True)
class History:
    """Written by `troubles.Troubles`."""

    engines: Sequence[str]
    troubles: list[Trouble] = field(default_factory=list)

    def begins(self, engine: str, what: str, now: float) -> Trouble:
        """Return the trouble that begins; whoever ends it sets `ended`."""
        trouble = Trouble(engine, what, now)
        self.troubles.append(trouble)
        return trouble

    def slow_seconds(self, engines: Iterable[str], began: float, ended: float) -> float:
        """Return for how long one of these engines was slow between the two."""
        slow = [each for each in self.troubles if each.what == SLOW and each.engine in engines]
        return max([0.0, *(each.overlap(began, ended) for each in slow)])

    def nobody_seconds(self, began: float, ended: float) -> float:
        """Return for how long every engine was in trouble between the two."""
        near = [each for each in self.troubles if each.overlap(began, ended)]
        edges = {began, ended}
        for each in near:
            edges |= {max(began, each.began), ended if each.ended is None else each.ended}
        times = sorted(edge for edge in edges if began <= edge <= ended)
        return sum(
            after - before
            for before, after in pairwise(times)
            if self._is_nobody_well((before + after) / 2, near)
        )

    def is_blameless(self, alarm: Alarm) -> bool:
        """Return whether nothing was wrong with the engine that the gateway declares out."""
        return not any(
            each.overlap(alarm.at - AFTERMATH_SECONDS, alarm.at) or each.is_at(alarm.at)
            for each in self.troubles
            if each.engine == alarm.engine
        )

    def _is_nobody_well(self, when: float, near: Sequence[Trouble]) -> bool:
        return {each.engine for each in near if each.is_at(when)} >= set(self.engines)


def alarms_in(log: str) -> list[Alarm]:
    """Return all alarms of a gateway's log, of engines that have answered it before: it may start
    sooner than they do."""
    known: set[str] = set()
    found = []
    for line in log.splitlines():
        if (served := _SERVES.match(line)) is not None:
            known.add(served["engine"])
        if (out := _OUT.match(line)) is not None and out["engine"] in known:
            found.append(out)
    return [
        Alarm(datetime.fromisoformat(each["at"]).timestamp(), each["engine"], each["how"])
        for each in found
    ]


def by_kind(alarms: Iterable[Alarm]) -> dict[str, int]:
    return dict(Counter(alarm.how for alarm in alarms))
