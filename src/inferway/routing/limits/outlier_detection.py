"""The engines that get new requests: not those that an operator drains, that are suspended, or that
fail.

suspended  sleeps, is paused or scales (suspension): its requests wait for it, none goes there
silent     says nothing: none of what waits there goes on to another such one (failover)
drained    by hand: none of its model left is an error (503)
ejected    by its breaker: it gets requests after all if every other one is drained or ejected
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from inferway.config import EjectionSettings
from inferway.routing.limits.circuit_breaker import BreakerState, CircuitBreaker
from inferway.routing.limits.suspension import Suspension

OF_OUTAGE_SECONDS = 10.0  # requests that were hurt no longer before an outage was noticed are of it


@dataclass(slots=True)
class Affected:
    """The outcomes of requests that an engine had, since its last outage began."""

    moved: int = 0  # another engine took them over, streams included
    failed: int = 0  # whose clients got an error for it
    at: float = float("-inf")  # when the last of them was


@dataclass(slots=True)
class OutlierDetection:
    """Tells which engines are ejected or drained, by their names."""

    settings: EjectionSettings = field(default_factory=EjectionSettings)
    drained: set[str] = field(default_factory=set)
    suspended: Mapping[str, Suspension] = field(default_factory=dict)  # the fleet writes it
    ejected: set[str] = field(default_factory=set)  # whose breaker is open, or half open
    breakers: dict[str, CircuitBreaker] = field(default_factory=dict)  # of those that have failed
    failures: dict[str, int] = field(default_factory=dict)
    ejections: dict[str, int] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)  # in an outage
    silent: set[str] = field(default_factory=set)  # of those, by silence
    answered: dict[str, float] = field(default_factory=dict)  # when an answer last began
    affected: dict[str, Affected] = field(default_factory=dict)  # by the last outage of each
    moved: dict[str, int] = field(default_factory=dict)  # of all outages: `Affected.moved`
    lost: dict[str, int] = field(default_factory=dict)  # and `Affected.failed`
    # Others that send to the same engines are told of what has come from one that has a breaker:
    # its name, and whether it failed
    tell: Callable[[str, bool], None] | None = None

    def begins(self, engine: str, now: float, *, is_silent: bool) -> None:
        """An outage of the engine has begun, or is of another kind now. Connections that broke just
        before are of it."""
        if engine not in self.out:
            self.out.add(engine)
            affected = self.affected.get(engine)
            if affected is None or now - affected.at > OF_OUTAGE_SECONDS:
                self.affected[engine] = Affected()
        (self.silent.add if is_silent else self.silent.discard)(engine)

    def ends(self, engine: str) -> None:
        """The engine is well again: what was held against one that was silent is forgotten."""
        self.out.discard(engine)
        if engine in self.silent:
            self.silent.discard(engine)
            self.ejected.discard(engine)
            self.breakers.pop(engine, None)

    def has_answered_since(self, engine: str, when: float) -> bool:
        """Return whether an answer of the engine has begun since."""
        return self.answered.get(engine, float("-inf")) > when

    def eject(self, engine: str, now: float) -> None:
        """Give the engine one request at a time until it answers one. It is no fault of one that is
        suspended that it has not answered."""
        if engine in self.suspended:
            return
        self._breaker(engine).eject(now)
        self.ejected.add(engine)

    @property
    def is_plain(self) -> bool:
        """True if no engine is ejected, drained or suspended: `allowed` need not be called then."""
        return not self.drained and not self.ejected and not self.suspended

    def takes(self, engine: str, now: float) -> bool:
        if engine in self.drained or engine in self.suspended:
            return False
        return engine not in self.ejected or self.breakers[engine].takes(now)

    def allowed(self, engines: Iterable[str], now: float) -> frozenset[str]:
        """Return those of the engines that get new requests; empty if all of them are drained or
        suspended."""
        out = self.drained | self.suspended.keys()
        left = frozenset(engine for engine in engines if engine not in out)
        return frozenset(engine for engine in left if self.takes(engine, now)) or left

    def sent(self, engine: str, now: float) -> None:
        if (breaker := self.breakers.get(engine)) is not None:
            breaker.sent(now)

    def abandoned(self, engine: str) -> None:
        if (breaker := self.breakers.get(engine)) is not None:
            breaker.abandoned()

    def succeeded(self, engine: str, now: float) -> bool:
        """An answer has come from the engine; return whether that has brought it back."""
        if engine not in self.breakers:
            return False
        if self.tell is not None:
            self.tell(engine, False)
        return self._succeeded(engine, now)

    def _succeeded(self, engine: str, now: float) -> bool:
        breaker = self.breakers.get(engine)
        if breaker is None:
            return False
        back = breaker.succeeded(now)
        if back:
            self.ejected.discard(engine)
        if breaker.is_idle(now):
            del self.breakers[engine]
        return back

    def failed(self, engine: str, now: float) -> bool:
        """A request has failed at the engine; return whether that has put it out. Nothing is held
        against an engine that is suspended."""
        if engine in self.suspended:
            return False
        self.failures[engine] = self.failures.get(engine, 0) + 1
        if self.tell is not None:
            self.tell(engine, True)
        ejected = self._failed(engine, now)
        if ejected:
            self.ejections[engine] = self.ejections.get(engine, 0) + 1
        return ejected

    def _failed(self, engine: str, now: float) -> bool:
        ejected = self._breaker(engine).failed(now)
        if ejected:
            self.ejected.add(engine)
        return ejected

    def _breaker(self, engine: str) -> CircuitBreaker:
        breaker = self.breakers.get(engine)
        if breaker is None:
            breaker = self.breakers[engine] = CircuitBreaker(self.settings)
        return breaker

    def was_moved(self, engine: str, now: float) -> None:
        """Another engine has taken over a request, or the rest of a stream, that this one had."""
        self.moved[engine] = self.moved.get(engine, 0) + 1
        affected = self.affected.setdefault(engine, Affected())
        affected.moved, affected.at = affected.moved + 1, now

    def was_lost(self, engine: str, now: float) -> None:
        """A client has got an error for a request that the engine had."""
        self.lost[engine] = self.lost.get(engine, 0) + 1
        affected = self.affected.setdefault(engine, Affected())
        affected.failed, affected.at = affected.failed + 1, now

    def hear(self, engine: str, has_failed: bool, now: float) -> None:
        """Take over an outcome that another process has told; nothing is counted."""
        (self._failed if has_failed else self._succeeded)(engine, now)

    def state(self, engine: str, now: float) -> BreakerState:
        breaker = self.breakers.get(engine)
        return BreakerState.CLOSED if breaker is None else breaker.state(now)

    def set_settings(self, settings: EjectionSettings) -> None:
        """Judge what happens from now on by these settings."""
        self.settings = settings
        for breaker in self.breakers.values():
            breaker.settings = settings

    def forget_others(self, engines: Iterable[str]) -> None:
        """Forget all engines but these: the others are no more."""
        there = set(engines)
        self.drained &= there
        self.ejected &= there
        self.out &= there
        self.silent &= there
        for engine in {*self.answered, *self.affected, *self.moved, *self.lost} - there:
            for known in (self.answered, self.affected, self.moved, self.lost):
                known.pop(engine, None)
        for engine in {*self.breakers, *self.failures} - there:
            self.breakers.pop(engine, None)
            self.failures.pop(engine, None)
            self.ejections.pop(engine, None)
