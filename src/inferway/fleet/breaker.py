"""Whether an engine is asked to render, and whether anybody waits for it. Pure: time is given.

closed                       up to `MAX_ASKING` questions at once, each is waited for
`MISSES` misses in a row     open: a question only when no other is on its way, and nobody waits
an answer in time            closed

A miss is an answer that is late or fails. After a failure the next question has to wait, twice
as long each time. What is late has cost its caller the budget; so a service that is slow, or that
takes questions and never answers, costs a few requests that much, and then nobody anything.
"""

from __future__ import annotations

from dataclasses import dataclass

MISSES = 5
MAX_ASKING = 4
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0


@dataclass(slots=True)
class Breaker:
    """One engine's."""

    asking: int = 0  # questions on their way
    misses: int = 0  # in a row
    _pause: float = 0.0
    _retry_at: float = 0.0

    @property
    def closed(self) -> bool:
        return self.misses < MISSES

    def may_ask(self, now: float) -> bool:
        if self.closed:
            return self.asking < MAX_ASKING
        return self.asking == 0 and now >= self._retry_at

    def in_time(self) -> None:
        self.misses, self._pause, self._retry_at = 0, 0.0, 0.0

    def late(self) -> None:
        self.misses += 1

    def failed(self, now: float) -> None:
        self.misses += 1
        self._pause = min(max(2 * self._pause, PAUSE_SECONDS), MAX_PAUSE_SECONDS)
        self._retry_at = now + self._pause
