"""A stream whose engine was lost in the middle, or is drained: another engine goes on, unseen.

The rest is asked for as a request of its own: it has its turn, is matched, scheduled, booked and
tried like any, but never at the engine that was left. Its events follow those that the client has
(openai_api/stream_rest.py). An answer whose rest is lost, too, ends: its request may be what ends
engines (request_quarantine). If nobody goes on, the client gets the error event that it would have
got at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from inferway.errors import (
    EngineLostError,
    EnginesLostError,
    FleetError,
    InferwayError,
    MovedError,
    SilentEngineError,
    UpstreamError,
)
from inferway.extension import outcome_of
from inferway.http.auth import Auth
from inferway.http.ends import BodySource
from inferway.http.forward import Forwarding
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.model import Headers
from inferway.openai_api.usage import Usage
from inferway.routing.answer_plan import AnswerPlan
from inferway.routing.continuing import (
    ALONE,
    FAILED,
    TOO_OFTEN,
    WENT_ON,
    Continuing,
    RestOfStream,
)
from inferway.routing.director import Director
from inferway.routing.eligible import Within
from inferway.routing.journey import Journey
from inferway.tasks import Tasks
from inferway_structured.sse import content_coding

log = logging.getLogger("inferway.forward")


def move_streams(sources: Callable[[], Iterable[BodySource]], engine: str) -> int:
    """Have other engines go on with what this one streams; return with how many answers.
    `sources`: who produces all answers that are under way."""
    return sum([isinstance(each, Forwarding) and each.leave(engine) for each in [*sources()]])


@dataclass(slots=True)
class Continuer:
    """Has other engines go on with streams. `close` must be called."""

    director: Director
    continuing: Continuing
    auth: Auth
    tasks: Tasks = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = Tasks(log, "a stream that had lost its engine ended, by our fault")

    def within(self, lost: str) -> Within:
        """Return which endpoints may go on with a stream that this engine has lost."""
        takes = self.continuing.takes
        return lambda endpoint: endpoint.engine != lost and takes(endpoint)

    async def close(self) -> None:
        """Give up what is under way."""
        await self.tasks.close()


def open_continuer(director: Director, auth: Auth, stack: AsyncExitStack) -> Continuer | None:
    """Return what has other engines go on, until the stack is closed; None if none shall."""
    continuing = director.continuing
    if continuing is None:
        return None
    continuer = Continuer(director, continuing, auth)
    stack.push_async_callback(continuer.close)
    return continuer


@dataclass(slots=True)
class _Rest:
    """One rest of an answer, behind what engines have said before."""

    asked: RestOfStream
    before: Journey
    journey: Journey | None = None  # None: it is not decided yet

    def ended(self, outcome: str) -> None:
        """Note on the record of the answer that the rest is of how it has ended."""
        whole = self.before.record
        whole.outcome = outcome
        whole.continued = 1
        if self.journey is None:
            return
        record, cut = self.journey.record, self.asked.cut
        whole.continued += record.continued
        whole.target = record.target or whole.target
        whole.attempts += record.attempts
        if record.usage is not None:
            whole.usage = Usage(cut.num_prompt_ids, cut.num_ids + record.usage.completion)


class ContinuedStream:
    """One streamed answer, with all that is needed for other engines to go on with it
    (answer_plan.Continuation)."""

    __slots__ = ("_comment", "_continuer", "_has_begun", "_is_admin", "_journey", "_priority",
                 "_request", "_responder", "_rests", "_share", "error")  # fmt: skip

    error: InferwayError

    def __init__(
        self,
        continuer: Continuer,
        request: Request,
        responder: Responder,
        journey: Journey,
        *,
        priority: int | None,
        share: str,
        is_admin: bool,
    ) -> None:
        """`share`: of the engines, whose it is."""
        self._continuer = continuer
        self._request = request
        self._responder = responder
        self._journey = journey  # of what is answered now
        self._priority = priority
        self._share = share
        self._is_admin = is_admin
        self._rests: list[_Rest] = []
        self._has_begun = False  # the last of them
        self._comment = b""

    def may_go_on(self, error: UpstreamError) -> bool:
        journey, stream = self._journey, self._journey.stream
        if stream is None or stream.sent is None or not self._responder.can_say_more:
            return False
        target = journey.record.target
        assert target is not None
        engine = target.endpoint.engine
        is_moved = isinstance(error, MovedError)
        breaks = not isinstance(error, MovedError | SilentEngineError)  # its connection
        if not breaks and not self._has_another(engine):
            stream.ends_here(ALONE)
            return False
        if not is_moved and self._is_lost_too_often(engine, error):
            stream.ends_here(TOO_OFTEN)
            return False
        asked = journey.rest()
        if asked is None:
            return False
        self._rests.append(_Rest(asked, journey))
        self.error, self._has_begun = error, False
        log.log(
            logging.INFO if is_moved else logging.WARNING,
            "another engine goes on with an answer after %d tokens: %s",
            *(asked.cut.num_ids, error),
        )
        return True

    def _has_another(self, engine: str) -> bool:
        continuer, model = self._continuer, self._journey.record.target_model
        try:
            continuer.director.candidates(model, continuer.within(engine))
        except FleetError:
            return False
        return True

    def _is_lost_too_often(self, engine: str, error: InferwayError) -> bool:
        losses = self._journey.losses
        if isinstance(error, EngineLostError | SilentEngineError):
            losses.lost(engine)
        else:
            losses.failed(engine)
        attempts = self._continuer.auth.failover.retries.settings.attempts
        return losses.are_too_many or losses.number >= attempts

    def ask(
        self, go_on: Callable[[AnswerPlan], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._continuer.tasks.spawn(self._decide(go_on, fail))

    async def _decide(
        self, go_on: Callable[[AnswerPlan], None], fail: Callable[[BaseException], None]
    ) -> None:
        request, auth, rest = self._request, self._continuer.auth, self._rests[-1]
        before = rest.before
        target = before.record.target
        assert target is not None
        journey = self._continuer.director.open(
            *(request.head, rest.asked.body, request.id.decode()),
            within=self._continuer.within(target.endpoint.engine),
            priority=self._priority,
            edits=before.edits,
            tenant=self._share,
            target_model=before.record.target_model,
        )
        journey.goes_on_with(before)
        slot = auth.ticket(self._responder, self._share)
        try:
            decision = await journey.decide(slot)
            if self._responder.span is not None:
                self._responder.span.follow(journey)
            plan = AnswerPlan(
                *(journey, decision, auth.failover, slot),
                explain=self._is_admin,
                continues=lambda: self,
            )
        except BaseException as e:
            journey.close(outcome_of(e))
            if slot is not None:
                slot.leave()
            fail(e)
            if isinstance(e, InferwayError):
                return
            raise
        self._journey = rest.journey = journey
        go_on(plan)

    def begins(self, status: int, headers: Headers) -> bool:
        target = self._journey.record.target
        if status != 200 or target is None or content_coding(headers):
            return False
        self._has_begun = True
        if self._is_admin:
            self._comment = b": x-inferway-continued engine=%b tokens=%d\n\n" % (
                *(target.endpoint.engine.encode(), self._rests[-1].asked.cut.num_ids),
            )
        return True

    def feed(self, events: bytes) -> bytes:
        comment, self._comment = self._comment, b""
        for rest in reversed(self._rests):
            events = rest.asked.events.feed(events)
        return comment + events

    def ended(self, outcome: str) -> None:
        counts = self._continuer.continuing.counts
        for rest in reversed(self._rests):
            counts[WENT_ON if outcome == "ok" else FAILED] += 1
            rest.ended(outcome)

    def last_word(self, error: BaseException) -> InferwayError:
        log.warning("nobody goes on with an answer whose engine was lost: %s", error)
        self.ended("upstream_error")
        is_told = isinstance(error, UpstreamError) and self._has_begun
        if isinstance(error, InferwayError) and (is_told or isinstance(error, EnginesLostError)):
            return error
        return self.error
