"""The engines that a request has had, the outcomes there, and whether another one may be tried.

Only before the first byte of an answer, `attempts` engines at most, and while further tries are no
more than a share of the requests under way: a fleet that is going down must not get two and three
times the load for it. The floor lets a gateway with few requests try again at all. An engine that
has failed too often is passed over (`standing`). A request that two engines had when they were lost
is tried no more (`request_quarantine`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from inferway.config import RetrySettings
from inferway.errors import EngineLostError, EnginesLostError, OurFaultError, UpstreamError
from inferway.model import Target
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.limits.request_quarantine import EngineLosses, RequestQuarantine
from inferway.routing.limits.slot import Slot

log = logging.getLogger("inferway.forward")


@dataclass(slots=True)
class Retries:
    """The budget of second tries, shared by all requests."""

    settings: RetrySettings = field(default_factory=RetrySettings)
    active: int = 0  # requests under way
    retrying: int = 0  # of them, those in a further try
    made: int = 0
    refused: int = 0  # for want of budget
    statuses: frozenset[int] = field(init=False)  # that are tried elsewhere

    def __post_init__(self) -> None:
        self.set_settings(self.settings)

    def set_settings(self, settings: RetrySettings) -> None:
        self.settings = settings
        self.statuses = frozenset(settings.statuses)

    def may_begin(self) -> bool:
        """Return whether one more request may have a second try; a refusal is counted."""
        most = max(self.settings.floor, self.settings.share * self.active)
        if self.retrying + 1 <= most:
            return True
        self.refused += 1
        return False


@dataclass(slots=True)
class FailoverPolicy:
    """The policies of failover: outlier detection, the budget of retries, and the requests that are
    refused for the engines that were lost with them. `clock` returns seconds."""

    clock: Callable[[], float]
    standing: OutlierDetection = field(default_factory=OutlierDetection)
    retries: Retries = field(default_factory=Retries)
    quarantine: RequestQuarantine | None = None  # None: no request is refused for that


class Failover:
    """The tries of one request: the engine that has it, the outcome there, and the next engine.
    `over` must be called."""

    __slots__ = ("_has_failed", "_is_over", "_left", "_policy", "_slot",
                 "losses", "number", "target")  # fmt: skip

    def __init__(
        self,
        targets: tuple[Target, ...],
        policy: FailoverPolicy,
        slot: Slot | None,
        losses: EngineLosses | None = None,
    ) -> None:
        """The request goes to the first of `targets`. Without a `slot` nothing is limited.
        `losses`: engines that were lost with the request before, and are from now on."""
        self.losses = losses or EngineLosses()
        self.number = 1
        self.target = targets[0]  # that has it
        self._left = targets[1:]
        self._has_failed = False
        self._is_over = False
        self._policy = policy
        self._slot = slot
        policy.retries.active += 1
        if slot is not None or policy.standing.breakers:
            self._moved()

    def beside(self, targets: tuple[Target, ...]) -> Failover | None:
        """Return the tries of another leg of the same request, at the first of `targets` that has
        room; None if none has."""
        slot = None if self._slot is None else self._slot.beside()
        if slot is not None:
            targets = tuple([each for each in targets if slot.takes(each.endpoint.engine)])
        return Failover(targets, self._policy, slot, self.losses) if targets else None

    @property
    def engine(self) -> str:
        """The name of the engine that has it."""
        return self.target.endpoint.engine

    def succeeded(self) -> None:
        """The engine has begun to answer."""
        policy, engine = self._policy, self.target.endpoint.engine
        standing = policy.standing
        standing.answered[engine] = now = policy.clock()
        if standing.breakers and not self._has_failed:
            back = standing.succeeded(engine, now)
            if back:
                log.info("engine %s answers again; it gets all requests", engine)

    def failed(self, error: UpstreamError | None = None) -> None:
        """The engine has not answered, or not to the end, because of `error`; None: that is what it
        has said. Counts once for each try."""
        if self._has_failed:
            return
        self._has_failed = True
        if isinstance(error, EngineLostError):
            self.losses.lost(self.engine)
        policy = self._policy
        if policy.standing.failed(self.engine, policy.clock()):
            log.warning(
                "engine %s failed too often; it gets no requests for now (ejection)", self.engine
            )

    def abandoned(self) -> None:
        """Count a request whose client has gone before its outcome."""
        self._policy.standing.abandoned(self.engine)

    def another(self) -> Target | None:
        """Return the next target if it may be tried, and count the request as sent there; else
        None."""
        retries, standing = self._policy.retries, self._policy.standing
        left = self._left
        if self.number >= retries.settings.attempts or not left or self.losses.are_too_many:
            return None
        if self._slot is not None:
            left = tuple(target for target in left if self._slot.takes(target.endpoint.engine))
        if not standing.is_plain:
            names = [target.endpoint.engine for target in left]
            allowed = standing.allowed(names, self._policy.clock())
            left = tuple(target for target in left if target.endpoint.engine in allowed)
        if not left:
            return None
        if self.number == 1:
            if not retries.may_begin():
                return None
            retries.retrying += 1
        retries.made += 1
        self._go_to(left)
        return left[0]

    def _go_to(self, left: tuple[Target, ...]) -> None:
        self.moved_away()
        self.number += 1
        self.target, self._left, self._has_failed = left[0], left[1:], False
        self._moved()

    def elsewhere(self) -> Target | None:
        """Return the next target, because the engine that has the request says nothing any more,
        and count the request as sent there; None if there is none. The budget of further tries is
        against storms of them: here each request that waits for nothing goes on once."""
        self.losses.lost(self.engine)
        if self.losses.are_too_many:
            return None
        silent = self._policy.standing.silent
        return self._take(
            tuple([each for each in self._left if each.endpoint.engine not in silent])
        )

    def _take(self, left: tuple[Target, ...]) -> Target | None:
        if self._slot is not None:
            left = tuple([each for each in left if self._slot.takes(each.endpoint.engine)])
        if not left:
            return None
        retries = self._policy.retries
        retries.retrying += self.number == 1
        retries.made += 1
        self._go_to(left)
        return left[0]

    def not_suspended(self) -> Target | None:
        """Return the next target, because the engine that has the request is suspended, and count
        the request as sent there; None if there is none. No engine has failed."""
        suspended = self._policy.standing.suspended
        left = tuple([each for each in self._left if each.endpoint.engine not in suspended])
        return self._take(left)

    def timed_out(self, sent_at: float) -> bool:
        """The request was not answered in time; return whether its engine has not answered any
        since: then it gets one at a time until it does."""
        policy, engine = self._policy, self.engine
        if policy.standing.has_answered_since(engine, sent_at):
            return False
        policy.standing.eject(engine, policy.clock())
        return True

    def moved_away(self) -> None:
        """Another engine answers, or goes on with the answer."""
        self._policy.standing.was_moved(self.engine, self._policy.clock())

    def last_word(self, error: UpstreamError) -> UpstreamError:
        """Return what the client hears, which gets no answer, or not all of it, for this error."""
        if not isinstance(error, OurFaultError):
            self._policy.standing.was_lost(self.engine, self._policy.clock())
            if self.losses.are_too_many:
                error = EnginesLostError(
                    f"{error}; it is the second engine that was lost while it had this request,"
                    " which is tried no more"
                )
        error.attempts = self.number
        return error

    def again(self) -> None:
        """The request is sent to the same engine once more, for a fault that was not its own."""
        self._has_failed = False

    def instead_of(self, status: int) -> Target | None:
        """Return the next target after an answer with such a status, as `another` does; None if the
        answer is to be passed on."""
        return self.another() if status in self._policy.retries.statuses else None

    def over(self) -> None:
        """Give back all that was taken. Only the first call counts."""
        if self._is_over:
            return
        self._is_over = True
        retries = self._policy.retries
        retries.active -= 1
        if self.number > 1:
            retries.retrying -= 1
        if self._slot is not None:
            self._slot.leave()

    def _moved(self) -> None:
        if self._slot is not None:
            self._slot.move(self.engine)
        self._policy.standing.sent(self.engine, self._policy.clock())
