"""The requests that wait because no engine can begin their prompts soon.

A request goes on at once while an engine of its model is open (scheduling/goodput_admission) and
nobody waits for that model. Else it waits: by priority, fair between tenants (`queue`), and then by
how long it can still wait to be in time. One that cannot be in time any more goes behind all others
of its priority. Of those that go on as many as there are open engines are on their way at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inferway.errors import InferwayError, NoEndpointError, QueueFullError, WaitTooLongError
from inferway.model import Candidates
from inferway.routing.limits.queue import FairQueue, Waiter
from inferway.scheduling.plugin import AdmitsInTime

RETRY_AFTER = 5  # seconds

# model -> its endpoints that get requests now; raises NoEndpointError
CandidatesOf = Callable[[str], Candidates]


@dataclass(slots=True)
class GoodputGate:
    """See the module. Its memory is bounded by `most_waiting` and the models there are."""

    admission: AdmitsInTime
    candidates_of: CandidatesOf
    most_waiting: int = 1_000
    queue: FairQueue = field(default_factory=FairQueue)
    _coming: dict[str, int] = field(default_factory=dict)  # let in, and not sent yet, by model
    _displaced: list[Waiter] = field(default_factory=list)

    def enters(self, model: str, now: float) -> bool:
        """Return whether a request for that model goes on now. If so, `sent` must be called."""
        if model in self.queue.lanes() or not self._has_room(model, now):
            return False
        self._let_in(model)
        return True

    def wait(
        self, model: str, tenant: str, priority: int, now: float, *, most: float, spare: float
    ) -> Waiter:
        """Have a request wait for `most` seconds at most, and behind all others of its priority
        once it has waited for `spare` seconds; return its place. Raises QueueFullError."""
        # of one priority those that can be in time have the upper level
        waiter = Waiter(model, tenant, 2 * priority + 1, now + most, now, now + spare)
        counts = self.admission.counts
        if self.queue.size >= self.most_waiting:
            victim = self.queue.victim(waiter.priority, tenant)
            counts.full += 1
            if victim is None:
                raise self._full_error()
            self.queue.remove(victim)
            self._displaced.append(victim)
        self.queue.add(waiter)
        counts.waiting = self.queue.size
        return waiter

    def turns(self, now: float) -> list[Waiter]:
        """Take the requests that go on now out of the queue; `sent` must be called for each."""
        self._put_back_late(now)
        counts = self.admission.counts
        went: list[Waiter] = []
        while self.queue.size:
            waiter = self.queue.pop(lambda model: self._has_room(model, now))
            if waiter is None:
                break
            self._let_in(waiter.lane)
            counts.went += 1
            counts.late += not waiter.priority % 2
            went.append(waiter)
        counts.waiting = self.queue.size
        return went

    def sent(self, model: str) -> None:
        """Note that a request that went on is with an engine now, or has ended."""
        self._coming[model] -= 1

    def expire(self, now: float) -> list[tuple[Waiter, InferwayError]]:
        """Take out of the queue those whose time is over; return each with its error, and those
        that others have displaced."""
        late = [waiter for waiter in self.queue if waiter.deadline <= now]
        for waiter in late:
            self.withdraw(waiter)
        self.admission.counts.too_long += len(late)
        displaced, self._displaced = self._displaced, []
        refused: list[tuple[Waiter, InferwayError]] = [
            (waiter, self._full_error()) for waiter in displaced
        ]
        refused += [
            (
                waiter,
                WaitTooLongError(
                    "no engine could begin its prompt within "
                    f"{waiter.deadline - waiter.came:.3g} s",
                    retry_after=RETRY_AFTER,
                ),
            )
            for waiter in late
        ]
        return refused

    def withdraw(self, waiter: Waiter) -> None:
        """The waiter does not wait any more; nothing happens if it has not."""
        self.queue.remove(waiter)
        self.admission.counts.waiting = self.queue.size

    def _put_back_late(self, now: float) -> None:
        late = [each for each in self.queue if each.priority % 2 and each.rank < now]
        for waiter in late:
            self.queue.remove(waiter)
            waiter.priority -= 1
            self.queue.add(waiter)

    def _has_room(self, model: str, now: float) -> bool:
        try:
            candidates = self.candidates_of(model)
        except NoEndpointError:
            return True  # it goes on to be told so
        candidates.now = now
        opened = int(self.admission.is_open(candidates).sum())
        return opened > self._coming.get(model, 0)

    def _let_in(self, model: str) -> None:
        self._coming[model] = self._coming.get(model, 0) + 1

    def _full_error(self) -> QueueFullError:
        return QueueFullError(
            f"no engine can begin another prompt soon, and {self.queue.size} requests wait; try "
            "again later",
            retry_after=RETRY_AFTER,
        )
