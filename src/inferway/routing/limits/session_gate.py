"""The turns that wait because their session is new and the caches are full of others.

A turn of a session that is alive goes on at once; so does a request that names none. A new session
waits until there is room (scheduling/session_admission): by priority, fair between tenants, then in
the order of arrival, as in the queue (`queue`). All turns of a session go on with its first. Where
nothing is known of the caches, nobody waits.

No session waits for ever: once the one that has waited the longest has done so for
`max_wait_seconds`, it goes on if nobody else has for a tenth of that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inferway.errors import QueueFullError, WaitTooLongError
from inferway.model import Headers
from inferway.routing.limits.queue import FairQueue, Waiter
from inferway.scheduling.session_admission import SessionAdmission

# model -> tokens that the caches hold of the engines that get requests for it now, by endpoint;
# none: nothing is known
CacheTokensOf = Callable[[str], Mapping[str, float]]

RETRY_AFTER = 30  # seconds

_Key = tuple[str, bytes]  # the model, and the session


@dataclass(slots=True)
class SessionGate:
    """See the module. Its memory is bounded by `most_waiting` and the sessions there are."""

    admission: SessionAdmission
    cache_tokens_of: CacheTokensOf
    most_waiting: int = 1_000
    queue: FairQueue = field(default_factory=FairQueue)
    num_waited: int = 0  # turns that waited, and went on
    num_overdue: int = 0  # of them, those that went on without room
    num_too_long: int = 0  # whose client would not wait any longer
    num_full: int = 0  # for which there was no room to wait
    # in order of arrival
    _sessions: OrderedDict[Waiter, bytes] = field(default_factory=OrderedDict)
    _turns: dict[_Key, list[Waiter]] = field(default_factory=dict)  # that wait; none is empty

    def session(self, headers: Headers) -> bytes:
        """Return the session that a request names; b"" if it names none."""
        return self.admission.session(headers)

    def enters(self, model: str, name: bytes, now: float) -> bool:
        """Return whether a turn of that session goes on now; a new session is alive then."""
        live = self.admission.of(model)
        if not name or live.knows(name, now):
            return True
        if model in self.queue.lanes() or not self._has_room(model, now):
            return False
        live.enter(name, now)
        return True

    def wait(self, waiter: Waiter, name: bytes) -> None:
        """Have a turn wait. Raises QueueFullError."""
        if len(self._sessions) >= self.most_waiting:
            self.num_full += 1
            raise QueueFullError(
                f"caches are full of the sessions that are alive, and {len(self._sessions)} turns "
                "of new ones wait; try again later",
                retry_after=RETRY_AFTER,
            )
        self._sessions[waiter] = name
        self._turns.setdefault((waiter.lane, name), []).append(waiter)
        self.queue.add(waiter)

    def turns(self, now: float) -> list[Waiter]:
        """Take the requests that go on now out of the queue."""
        went: list[Waiter] = []
        while self.queue.size:
            waiter = self.queue.pop(lambda model: self._has_room(model, now))
            if waiter is None:
                waiter = self._overdue(now)
                if waiter is None:
                    break
                self.queue.remove(waiter)
                self.num_overdue += 1
            name = self._forget(waiter)
            self.admission.of(waiter.lane).enter(name, now)
            went.append(waiter)
            for other in list(self._turns.get((waiter.lane, name), ())):
                self.queue.remove(other)
                self._forget(other)
                went.append(other)
        self.num_waited += len(went)
        return went

    def expire(self, now: float) -> list[tuple[Waiter, WaitTooLongError]]:
        """Take those out of the queue whose clients do not wait any longer; return each with its
        error."""
        late = [waiter for waiter in self._sessions if waiter.deadline <= now]
        for waiter in late:
            self.withdraw(waiter)
        self.num_too_long += len(late)
        return [
            (
                waiter,
                WaitTooLongError(
                    f"no cache had room for a new session within "
                    f"{waiter.deadline - waiter.came:.3g} s",
                    retry_after=RETRY_AFTER,
                ),
            )
            for waiter in late
        ]

    def withdraw(self, waiter: Waiter) -> None:
        """The waiter does not wait any more; nothing happens if it has not."""
        if self.queue.remove(waiter):
            self._forget(waiter)

    def _has_room(self, model: str, now: float) -> bool:
        live = self.admission.of(model)
        live.sizes = self.cache_tokens_of(model)
        return live.has_room(self.admission.parameters.cache_share, now)

    def _overdue(self, now: float) -> Waiter | None:
        oldest = next(iter(self._sessions))
        most = self.admission.parameters.max_wait_seconds
        is_due = self.admission.of(oldest.lane).is_overdue(oldest.came, most, now)
        return oldest if is_due else None

    def _forget(self, waiter: Waiter) -> bytes:
        name = self._sessions.pop(waiter)
        key = (waiter.lane, name)
        self._turns[key].remove(waiter)
        if not self._turns[key]:
            del self._turns[key]
        return name
