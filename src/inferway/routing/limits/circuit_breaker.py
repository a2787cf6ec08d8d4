"""A circuit breaker for an engine that has failed. A table and arithmetic; time is given.

state       requests          leaves it
closed      all               `failures` in a row, or `share` of at least `least` lately: open
open        none              its time is over: half open
half open   one, as a probe   it is answered: closed; it fails: open, for twice as long

*Lately*: both counts fade as exp(-t / window). A failure is an answer that did not come, or came
as 502, 503 or 504; not a 500, which a request may be the cause of itself, nor a 429, which says how
busy the engine is. Once closed for as long as the longest time out, it begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import exp

from inferway.config import EjectionSettings

_FORGOTTEN = 0.01


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class CircuitBreaker:
    """The circuit breaker of one engine. It is made at the engine's first failure; `is_idle` says
    when it can be forgotten."""

    settings: EjectionSettings
    ejections: int = 0  # since it began
    _in_a_row: int = 0
    _good: float = 0.0
    _bad: float = 0.0
    _at: float = 0.0  # when those two were right
    since: float = 0.0  # when the engine was put out, of the last time
    _open: bool = False
    _until: float = 0.0  # open: when that ends; closed: since when
    _seconds: float = field(default=0.0)  # how long it is, or was, out
    _probed_at: float | None = None  # a probe is on its way

    def state(self, now: float) -> BreakerState:
        if not self._open:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._until else BreakerState.HALF_OPEN

    def takes(self, now: float) -> bool:
        """Return whether a request may go to the engine. A probe that says nothing for as long as
        the engine was out is given up."""
        if not self._open:
            return True
        if now < self._until:
            return False
        return self._probed_at is None or now - self._probed_at >= self._seconds

    def sent(self, now: float) -> None:
        """A request goes to the engine: the probe, if it is half open."""
        if self._open and now >= self._until:
            self._probed_at = now

    def abandoned(self) -> None:
        """A request has ended without a word of how the engine is."""
        self._probed_at = None

    def succeeded(self, now: float) -> bool:
        """A request was answered; return whether that has closed the breaker."""
        self._fade(now)
        self._good += 1.0
        self._in_a_row = 0
        if not self._open or now < self._until:
            return False
        self._open, self._probed_at, self._until = False, None, now
        self._good = self._bad = 0.0
        return True

    def failed(self, now: float) -> bool:
        """A request has failed; return whether that has put the engine out."""
        self._fade(now)
        self._bad += 1.0
        self._in_a_row += 1
        if self._open:
            if now < self._until:
                return False  # of a request that was there before
            self._eject(now)
            return True
        total = self._good + self._bad
        often = total >= self.settings.least and self._bad >= self.settings.share * total
        if self._in_a_row < self.settings.failures and not often:
            return False
        self._eject(now)
        return True

    def eject(self, now: float) -> None:
        """Put the engine out at once, unless it is; what runs there ends as it would have."""
        if not self._open or now >= self._until:
            self._eject(now)

    def is_idle(self, now: float) -> bool:
        """Return whether the breaker is closed, and its failures are as good as forgotten."""
        if self._open or self._in_a_row or now - self._until < self.settings.max_seconds:
            return False
        return self._bad * exp((self._at - now) / self.settings.window) < _FORGOTTEN

    def _eject(self, now: float) -> None:
        settings = self.settings
        if not self._open and now - self._until >= settings.max_seconds:
            self._seconds = 0.0
        self._seconds = min(max(2 * self._seconds, settings.seconds), settings.max_seconds)
        if not self._open:
            self.since = now
        self._open, self._until, self._probed_at = True, now + self._seconds, None
        self._in_a_row = 0
        self.ejections += 1

    def _fade(self, now: float) -> None:
        kept = exp((self._at - now) / self.settings.window)
        self._good, self._bad, self._at = self._good * kept, self._bad * kept, now
