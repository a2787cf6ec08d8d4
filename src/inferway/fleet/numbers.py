"""Holders' numbers: small, because the index has a bit for each in every mask, and so given again.
Pure: time is given."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from inferway.model import HolderId

# By then whatever still names an endpoint that has left, speculation and followers, is over.
REST_SECONDS = 60.0


@dataclass(slots=True)
class HolderNumbers:
    """The lowest that is free is given first. One that is given back rests until its last request
    has ended, and a while longer."""

    given: int = 0  # so many different ones, ever
    _free: list[HolderId] = field(default_factory=list)  # a heap
    _resting: dict[HolderId, float] = field(default_factory=dict)  # -> since when

    def take(self) -> HolderId:
        if self._free:
            return heapq.heappop(self._free)
        self.given += 1
        return self.given - 1

    def give_back(self, holder: HolderId, now: float) -> None:
        self._resting[holder] = now

    def rested(self, now: float, is_idle: Callable[[HolderId], bool]) -> list[HolderId]:
        """Those that are free from now on."""
        freed = [
            holder
            for holder, since in self._resting.items()
            if now - since >= REST_SECONDS and is_idle(holder)
        ]
        for holder in freed:
            del self._resting[holder]
            heapq.heappush(self._free, holder)
        return freed
