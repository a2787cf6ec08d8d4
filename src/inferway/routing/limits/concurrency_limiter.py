"""The limit of requests with the engines, and the choice of the next one when one has ended.

A request holds one *place* from when it enters until it leaves: one of all, and one of an engine.
Until it is known which engine it goes to, it holds a place with any engine of its model, so that it
will find one. Who finds none waits in the queue (`queue`). Nobody enters past somebody who waits
for the same model.

No more than the limits are in flight, but while these were just lowered:
then nobody enters until it fits. Where several processes keep the limits together, each has a queue
of its own, and tells the others what it counts (`OtherProcesses`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from inferway.config import FlowSettings
from inferway.errors import QueueFullError, WaitTooLongError
from inferway.routing.limits.queue import FairQueue, Waiter
from inferway.routing.limits.saturation_gate import SaturationGate

# model -> the engines that take requests for it now
EnginesOf = Callable[[str], Collection[str]]

MAX_RETRY_AFTER = 60


class OtherProcesses(Protocol):
    """The processes that keep the limits together with this one (fleet.shared_places)."""

    look_seconds: float  # between two looks whether another process has freed a place

    @property
    def in_flight(self) -> int:
        """The requests of all processes that hold places, those of this one included."""

    @property
    def others_waiting(self) -> int:
        """The requests that wait in other processes."""

    def let_in(self, most: int) -> bool:
        """Return whether a request of this process may take one of so many places of all."""

    def count(self, in_flight: int, waiting: int) -> None:
        """Tell the others how many requests of this process hold places, and wait."""

    def count_engine(self, name: str, requests: int) -> None:
        """Tell the others how many requests of this process hold places with the engine."""

    def full(self, most: int) -> Container[str]:
        """Return the engines with which requests of all processes hold so many places, whenever it
        is asked; it is false if there is none."""


@dataclass(slots=True)
class FlowStats:
    """The counters since the start."""

    waited: int = 0  # and got a place
    left: int = 0  # waited, and went away
    full: int = 0  # refused: no room in the queue
    displaced: int = 0  # put out of the queue by a request of a higher priority or a quieter tenant
    too_long: int = 0  # refused: it would have waited, or has waited, for too long
    seconds: float = 0.0  # waited by requests that got a place


@dataclass(slots=True)
class _Pace:
    """The pace at which a lane's queue gets shorter. Kept while somebody waits: older figures would
    refuse those whose turn would show that they are old."""

    last: float  # when a request began to wait, or had waited
    seconds: float | None = None  # between two requests that had waited

    def went(self, now: float) -> None:
        took, self.last = now - self.last, now
        self.seconds = took if self.seconds is None else self.seconds + (took - self.seconds) / 8

    def expected(self, number: int, now: float) -> float | None:
        """Until the last of so many has gone; None if nothing is known."""
        return None if self.seconds is None else max(number * self.seconds, now - self.last)


@dataclass(slots=True)
class ConcurrencyLimiter:
    """See the module. `engines_of` may change at any time: `turns` finds out. With a gate, requests
    wait while it says so, too. Those for a model whose engines are all suspended wait for these."""

    settings: FlowSettings
    engines_of: EnginesOf
    gate: SaturationGate | None = None
    others: OtherProcesses | None = None  # None: this process is alone
    is_suspended: Callable[[str], bool] = lambda _: False  # whether all engines of a model are
    stats: FlowStats = field(default_factory=FlowStats)
    in_flight: int = 0
    engines: dict[str, int] = field(default_factory=dict)  # in flight; none is 0
    # engines at their limit, whoever has sent them requests; it is false if there is none
    full: Container[str] = field(init=False)
    _full: set[str] = field(default_factory=set)  # those that are by this process's requests
    queue: FairQueue = field(default_factory=FairQueue)
    _paces: dict[str, _Pace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.set_settings(self.settings)

    def set_settings(self, settings: FlowSettings) -> None:
        """Keep these limits from now on."""
        self.settings = settings
        most, others = settings.engine_in_flight, self.others
        self._full = {name for name, n in self.engines.items() if most is not None and n >= most}
        self.full = self._full if others is None or most is None else others.full(most)

    @property
    def limits_engines(self) -> bool:
        """True if each engine has a limit; else requests hold no place at engines."""
        return self.settings.engine_in_flight is not None

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait, in all processes."""
        return self.queue.size + (0 if self.others is None else self.others.others_waiting)

    def enter(self, lane: str, priority: int = 0) -> str | None:
        """Return the engine that a place is held with ("" if engines have no limit), or None: the
        request must wait."""
        gate = self.gate
        if gate is not None:
            gate.note(priority)
        if self.queue.size and lane in self.queue.lanes():
            return None
        if gate is not None and priority < gate.floor(lane):
            return None
        return self._place(lane)

    def most_seconds(self, priority: int) -> float:
        """Return how long a request of that priority may wait; infinite: as long as it takes."""
        if self.gate is None:
            return self.settings.queue_seconds
        flow = self.gate.flow
        for seconds in (flow.band(priority).seconds, flow.seconds):
            if seconds is not None:
                return seconds
        return self.settings.queue_seconds

    def wait(self, waiter: Waiter) -> Waiter | None:
        """Put the waiter into the queue; return the one that it displaces, which waits no longer.
        Raises QueueFullError or WaitTooLongError."""
        expected = self._expected(waiter)
        if expected is not None and waiter.came + expected > waiter.deadline:
            self.stats.too_long += 1
            raise WaitTooLongError(
                f"it would wait for about {expected:.1f} s, longer than it may",
                retry_after=self._retry_after(expected),
            )
        victim = None
        is_full, of_its_own = self._is_full(waiter.priority)
        if is_full:
            victim = self.queue.victim(waiter.priority, waiter.tenant, of_its_own=of_its_own)
            if victim is None:
                self.stats.full += 1
                raise self.refusal(waiter)
            self._remove(victim)
            self.stats.displaced += 1
        self.queue.add(waiter)
        if self.others is not None:
            self.others.count(self.in_flight, self.queue.size)
        if waiter.lane not in self._paces:
            self._paces[waiter.lane] = _Pace(waiter.came)
        return victim

    def refusal(self, waiter: Waiter) -> QueueFullError:
        """Return the error for a waiter that has no room in the queue."""
        in_flight = self.in_flight if self.others is None else self.others.in_flight
        return QueueFullError(
            f"{in_flight} requests are with the engines and {self.num_waiting} wait; try again"
            " later",
            retry_after=self._retry_after(self._expected(waiter)),
        )

    def withdraw(self, waiter: Waiter) -> None:
        """The waiter has gone away."""
        if self._remove(waiter):
            self.stats.left += 1

    def expire(self, now: float) -> list[tuple[Waiter, WaitTooLongError]]:
        """Take those whose time is over out of the queue; return each with its error."""
        late = [waiter for waiter in self.queue if waiter.deadline <= now]
        for waiter in late:
            self._remove(waiter)
        self.stats.too_long += len(late)
        return [
            (
                waiter,
                WaitTooLongError(
                    f"no engine had room for it within {waiter.deadline - waiter.came:.3g} s",
                    retry_after=self._retry_after(self._expected(waiter)),
                ),
            )
            for waiter in late
        ]

    def turns(self, now: float) -> list[tuple[Waiter, str]]:
        """Take those whose turn it is out of the queue; return each with its place."""
        went: list[tuple[Waiter, str]] = []
        while self.queue.size and self._has_room():
            waiter = self.queue.pop(self._is_open, self.gate, now)
            if waiter is None:
                break
            place = self._place(waiter.lane)
            assert place is not None
            self.stats.waited += 1
            self.stats.seconds += now - waiter.came
            self._paces[waiter.lane].went(now)
            self._rest(waiter.lane)
            went.append((waiter, place))
        return went

    def move(self, place: str, engine: str) -> None:
        """A request that holds a place goes to this engine, which must have room, or be the
        same."""
        if place == engine:
            return
        if place:
            self._give_back(place)
        self._take(engine)

    def free(self, place: str) -> None:
        """A request that held this place beside another one does not need it any more."""
        self._give_back(place)

    def leave(self, place: str, lane: str = "") -> None:
        """A request of that lane, which held this place, has ended."""
        self.in_flight -= 1
        if self.others is not None:
            self.others.count(self.in_flight, self.queue.size)
        if self.gate is not None:
            self.gate.leaves(lane)
        if place:
            self._give_back(place)

    def takes(self, engine: str, place: str = "") -> bool:
        """Return whether the engine has room for a request that holds `place`."""
        return engine not in self.full or engine == place

    def _has_room(self) -> bool:
        most = self.settings.in_flight
        if most is None:
            return True
        return self.in_flight < most if self.others is None else self.others.let_in(most)

    def _is_open(self, lane: str) -> bool:
        if self.is_suspended(lane):
            return False
        return self.settings.engine_in_flight is None or self._freest(lane) is not None

    def _freest(self, lane: str) -> str | None:
        names = self.engines_of(lane)
        if self.full:
            names = [name for name in names if name not in self.full]
            if not names and self.engines_of(lane):
                return None
        # without an engine it goes on, to be told so
        return min(names, key=lambda name: self.engines.get(name, 0), default="")

    def _place(self, lane: str) -> str | None:
        if not self._has_room():
            return None
        place, others = "", self.others
        if self.settings.engine_in_flight is not None:
            freest = self._freest(lane)
            if freest is None:
                return None
            place = freest
            if place:
                self._take(place)
        self.in_flight += 1
        if others is not None:
            others.count(self.in_flight, self.queue.size)
        if self.gate is not None:
            self.gate.enters(lane)
        return place

    def _is_full(self, priority: int) -> tuple[bool, bool]:
        """Return whether there is no room in the queue, and whether that is so of this priority
        alone."""
        most = self.settings.queue
        if self.gate is not None:
            flow = self.gate.flow
            most = most if flow.max_requests is None else flow.max_requests
            its_most = flow.band(priority).max_requests
            if its_most is not None and self.queue.size_of(priority) >= its_most:
                return True, True
        return self.num_waiting >= most, False

    def _take(self, engine: str) -> None:
        self.engines[engine] = count = self.engines.get(engine, 0) + 1
        most = self.settings.engine_in_flight
        if most is not None and count >= most:
            self._full.add(engine)
        if self.others is not None:
            self.others.count_engine(engine, count)

    def _give_back(self, engine: str) -> None:
        left = self.engines[engine] - 1
        most = self.settings.engine_in_flight
        if most is None or left < most:
            self._full.discard(engine)
        if left:
            self.engines[engine] = left
        else:
            del self.engines[engine]
        if self.others is not None:
            self.others.count_engine(engine, left)

    def _remove(self, waiter: Waiter) -> bool:
        if not self.queue.remove(waiter):
            return False
        if self.others is not None:
            self.others.count(self.in_flight, self.queue.size)
        self._rest(waiter.lane)
        return True

    def _rest(self, lane: str) -> None:
        if lane not in self.queue.lanes():
            del self._paces[lane]

    def _expected(self, waiter: Waiter) -> float | None:
        """Return the seconds until the waiter's turn; None if nothing is known."""
        pace = self._paces.get(waiter.lane)
        if pace is None:
            return None
        ahead = self.queue.ahead(waiter.lane, waiter.priority, waiter.tenant)
        return pace.expected(ahead + 1, waiter.came)

    def _retry_after(self, expected: float | None) -> int:
        return min(max(1, ceil(expected or 0.0)), MAX_RETRY_AFTER)
