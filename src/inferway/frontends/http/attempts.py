"""A request's tries: which engine has it, how that went, and whether another may have it. No I/O.

Which targets are left, and whether one more may be tried, is `flow`'s to say: an engine that has
failed too often is passed over, and further tries have a budget.
"""

from __future__ import annotations

import logging
from typing import Protocol

from inferway.flow.traffic import Traffic
from inferway.model import Target

log = logging.getLogger("inferway.forward")


class Place(Protocol):
    """Where limits count a request (flow_control.Ticket)."""

    def takes(self, engine: str) -> bool: ...
    def move(self, engine: str) -> None: ...
    def leave(self) -> None: ...


class Attempts:
    """Of one request, until `over`, which must be called."""

    __slots__ = ("_has_failed", "_is_over", "_left", "_place", "_traffic", "engine", "number")

    def __init__(self, targets: tuple[Target, ...], traffic: Traffic, place: Place | None) -> None:
        """The request goes to the first of `targets`. `place` None: nothing is limited."""
        self.number = 1
        self.engine = targets[0].endpoint.engine  # that has it
        self._left = targets[1:]
        self._has_failed = False
        self._is_over = False
        self._traffic = traffic
        self._place = place
        traffic.retries.active += 1
        if place is not None or traffic.standing.breakers:
            self._moved()

    def succeeded(self) -> None:
        """The engine has begun to answer."""
        traffic = self._traffic
        if traffic.standing.breakers and not self._has_failed:
            back = traffic.standing.succeeded(self.engine, traffic.clock())
            if back:
                log.info("engine %s answers again; it gets all requests", self.engine)

    def failed(self) -> None:
        """The engine has not answered, or not to the end. Counts once."""
        if self._has_failed:
            return
        self._has_failed = True
        traffic = self._traffic
        if traffic.standing.failed(self.engine, traffic.clock()):
            log.warning(
                "engine %s failed too often; it gets no requests for now (ejection)", self.engine
            )

    def abandoned(self) -> None:
        """The client did not wait for how it would go."""
        self._traffic.standing.abandoned(self.engine)

    def another(self) -> Target | None:
        """The next target, if it may be tried: the request goes there now."""
        retries, standing = self._traffic.retries, self._traffic.standing
        left = self._left
        if self.number >= retries.settings.attempts or not left:
            return None
        if self._place is not None:
            left = tuple(target for target in left if self._place.takes(target.endpoint.engine))
        if not standing.is_plain:
            names = [target.endpoint.engine for target in left]
            allowed = standing.allowed(names, self._traffic.clock())
            left = tuple(target for target in left if target.endpoint.engine in allowed)
        if not left:
            return None
        if self.number == 1:
            if not retries.may_begin():
                return None
            retries.retrying += 1
        retries.made += 1
        self.number += 1
        self.engine, self._left, self._has_failed = left[0].endpoint.engine, left[1:], False
        self._moved()
        return left[0]

    def instead_of(self, status: int) -> Target | None:
        """The same, after an answer with such a status."""
        return self.another() if status in self._traffic.retries.statuses else None

    def over(self) -> None:
        """All that was taken is given back. Only the first call counts."""
        if self._is_over:
            return
        self._is_over = True
        retries = self._traffic.retries
        retries.active -= 1
        if self.number > 1:
            retries.retrying -= 1
        if self._place is not None:
            self._place.leave()

    def _moved(self) -> None:
        if self._place is not None:
            self._place.move(self.engine)
        self._traffic.standing.sent(self.engine, self._traffic.clock())
