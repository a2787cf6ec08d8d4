"""A stream whose engine was lost in the middle: another engine goes on with it, unseen.

the stream's engine   what is done
is lost, or gives up  the rest is asked for as a request of its own: it has its turn, is matched,
                      scheduled, booked and tried like any, but never at the engine that was lost
is drained, and has   the same, if there is another engine; else it ends where it is
had its grace
answers the rest      its events follow those that the client has (openai_api/stream_rest.py)
is lost, too          the client hears of it: the request may be what ends them (request_quarantine)

If nobody goes on, the client gets the error event that it would have got at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from inferway.errors import (
    EngineLostError,
    EnginesLostError,
    FleetError,
    InferwayError,
    MovedError,
    SeamError,
    SilentEngineError,
)
from inferway.extension import outcome_of
from inferway.http.auth import Auth
from inferway.http.ends import BodySource, Client
from inferway.http.errors import withheld
from inferway.http.forward import Forwarding, forward
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.two_legs import TwoLegs
from inferway.http.waiting import InQueue
from inferway.model import Headers
from inferway.openai_api.responses import error_event
from inferway.openai_api.usage import Usage
from inferway.routing.continuing import (
    ALONE,
    FAILED,
    NO_CUT,
    TOO_OFTEN,
    WENT_ON,
    Continuing,
    RestOfStream,
)
from inferway.routing.director import Director
from inferway.routing.eligible import Within
from inferway.routing.journey import Journey
from inferway.routing.record import Passed, Record
from inferway.tasks import Tasks
from inferway.upstream.pool import Pool
from inferway_structured.decoding import UNREADABLE
from inferway_structured.sse import content_coding

log = logging.getLogger("inferway.forward")


@dataclass(slots=True)
class StreamCaller:
    """Who has asked for a stream, and is told of it."""

    request: Request
    responder: Responder
    priority: int | None
    share: str  # of the engines, whose it is
    is_admin: bool
    record: Record  # of the whole answer
    passed: Passed | None


def move_streams(sources: Callable[[], Iterable[BodySource]], engine: str) -> int:
    """Have other engines go on with what this one streams; return with how many answers.
    `sources`: who produces all answers that are under way."""
    return sum([isinstance(each, Forwarding) and each.leave(engine) for each in [*sources()]])


@dataclass(slots=True)
class Continuer:
    """Has other engines go on with streams. `close` must be called."""

    director: Director
    continuing: Continuing
    pool: Pool
    auth: Auth
    _tasks: Tasks = field(init=False)

    def __post_init__(self) -> None:
        self._tasks = Tasks(log, "a stream that had lost its engine ended, by our fault")

    def go_on(
        self,
        asked: StreamCaller,
        client: Client,
        journey: Journey,
        leaving: Forwarding,
        error: InferwayError,
    ) -> bool:
        """Return whether the client hears no error: another engine is asked for the rest of the
        answer, which has begun. `leaving` is told that it is over here."""
        if journey.stream.kept is None or not client.can_say_more:
            return False
        is_moved = isinstance(error, MovedError)
        target = journey.record.target
        assert target is not None
        engine = target.endpoint.engine
        breaks = not isinstance(error, MovedError | SilentEngineError)  # its connection
        if not breaks and not self._has_another(journey, engine):
            journey.stream.ends_here(ALONE)
            return False
        if not is_moved and self._is_lost_too_often(journey, engine, error):
            journey.stream.ends_here(TOO_OFTEN)
            return False
        rest = journey.rest()
        if rest is None:
            return False
        try:
            seam = _Seam(self.continuing, asked, client, journey, rest, error)
        except UNREADABLE:  # how its stream began
            journey.stream.ends_here(NO_CUT)
            return False
        # what an engine is asked no more is not its fault: as if the client had gone
        leaving.over("client_gone" if is_moved else "upstream_error")
        log.log(
            logging.INFO if is_moved else logging.WARNING,
            "another engine goes on with an answer after %d tokens: %s",
            *(rest.cut.num_ids, error),
        )
        client.attach(InQueue(seam.client_gone))
        self._tasks.spawn(self._send(seam, rest.body, engine))
        return True

    def _is_lost_too_often(self, journey: Journey, engine: str, error: InferwayError) -> bool:
        losses = journey.losses
        if isinstance(error, EngineLostError | SilentEngineError):
            losses.lost(engine)
        else:
            losses.failed(engine)
        attempts = self.auth.failover.retries.settings.attempts
        return losses.are_too_many or losses.number >= attempts

    def _within(self, lost: str) -> Within:
        takes = self.continuing.takes
        return lambda endpoint: endpoint.engine != lost and takes(endpoint)

    def _has_another(self, journey: Journey, engine: str) -> bool:
        try:
            self.director.candidates(journey.record.target_model, self._within(engine))
        except FleetError:
            return False
        return True

    async def _send(self, seam: _Seam, body: bytes, lost: str) -> None:
        asked, before = seam.asked, seam.before
        request = asked.request
        journey = self.director.open(
            *(request.head, body, request.id.decode()),
            within=self._within(lost),
            priority=asked.priority,
            edits=before.edits,
            tenant=asked.share,
            target_model=before.record.target_model,
        )
        journey.goes_on_with(before)
        slot = self.auth.ticket(asked.responder, asked.share)
        try:
            decision = await journey.decide(slot)
            if asked.responder.span is not None:
                asked.responder.span.follow(journey)
            seam.journey = journey
        except BaseException as e:
            journey.close(outcome_of(e))
            if slot is not None:
                slot.leave()
            seam.fail(e)
            if isinstance(e, InferwayError):
                return
            raise
        forward(
            *(request, seam, journey, decision, self.pool),
            policy=self.auth.failover,
            slot=slot,
            explain=asked.is_admin,
            record=asked.record,
            passed=asked.passed,
            kind=TwoLegs if decision.prefill else None,
            goes_on=partial(self.go_on, asked, seam, journey),
        )

    async def close(self) -> None:
        """Give up what is under way."""
        await self._tasks.close()


def open_continuer(
    director: Director, pool: Pool, auth: Auth, stack: AsyncExitStack
) -> Continuer | None:
    """Return who has other engines go on, until the stack is closed; None if nobody shall."""
    continuing = director.continuing
    if continuing is None:
        return None
    continuer = Continuer(director, continuing, pool, auth)
    stack.push_async_callback(continuer.close)
    return continuer


class _Seam:
    """The client of the rest, in front of the client of the whole answer."""

    def __init__(
        self,
        continuing: Continuing,
        asked: StreamCaller,
        client: Client,
        before: Journey,
        rest: RestOfStream,
        error: InferwayError,
    ) -> None:
        self.asked = asked
        self.before = before
        self.journey: Journey | None = None  # of the rest; None: it is not decided yet
        self.started = False
        self._counts = continuing.counts
        self._client = client
        self._error = error  # that the client hears of if nobody goes on
        record = before.record
        renamed = record.model if before.changes_length else ""
        # what was cached where the answer began, its engine did not come to tell: what we believe
        num_cached = record.reused_tokens if record.prompt_tokens else None
        self._events = rest.kept.events(rest.cut, renamed, num_cached)
        self._num_ids = rest.cut.num_ids
        self._num_prompt_ids = rest.cut.num_prompt_ids
        self._source: BodySource | None = None
        self._is_over = False
        self._comment = b""

    # ---------------------------------------------------------------------- client of the rest

    @property
    def ended(self) -> bool:
        return self._is_over or self._client.ended

    @property
    def can_say_more(self) -> bool:
        return not self._is_over and self._client.can_say_more

    @property
    def is_kept_alive(self) -> bool:
        return self._client.is_kept_alive

    def attach(self, source: BodySource) -> None:
        self._source = source
        self._client.attach(source)

    def start(self, status: int, headers: Headers, length: int | None = None) -> None:
        del length  # the client has the head of the first engine
        self.started = True
        assert self.journey is not None
        target = self.journey.record.target
        if status != 200 or target is None or content_coding(headers):
            self._give_up()
        elif self.asked.is_admin:
            self._comment = b": x-inferway-continued engine=%b tokens=%d\n\n" % (
                *(target.endpoint.engine.encode(), self._num_ids),
            )

    def flush(self) -> None:
        pass

    def write(self, chunk: bytes) -> None:
        if self._is_over:
            return
        try:
            self._client.write(self._edited(chunk))
        except SeamError as e:
            self._give_up(e)

    def end(self, chunk: bytes = b"") -> None:
        if self._is_over:
            return
        try:
            last = self._edited(chunk)
        except SeamError as e:
            self.fail(e)
            return
        assert self.journey is not None
        self._note(self.journey.record.outcome)
        self._client.end(last)

    def send_error(self, error: InferwayError) -> None:
        self.fail(error)

    def abort(self) -> None:
        self.fail(self._error)

    # ----------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """The client has gone before the rest has an engine."""
        self._is_over = True

    def _edited(self, chunk: bytes) -> bytes:
        comment, self._comment = self._comment, b""
        return comment + self._events.feed(chunk)

    def _give_up(self, error: BaseException | None = None) -> None:
        """End the rest, of which no more is wanted."""
        source = self._source
        if source is not None:
            source.client_gone()
        self.fail(error or self._error)

    def fail(self, error: BaseException) -> None:
        """Tell the client that its answer has ended: its engine was lost, and nobody goes on."""
        if self.ended:
            return
        log.warning("nobody goes on with an answer whose engine was lost: %s", error)
        self._note("upstream_error")
        client, asked = self._client, self.asked
        told = error if isinstance(error, EnginesLostError) else self._error
        if isinstance(told, FleetError) and not asked.is_admin:
            told = withheld(told, asked.request.id)
        if client.can_say_more:
            client.end(error_event(told, asked.request.path))
        else:
            client.abort()

    def _note(self, outcome: str) -> None:
        """Note on the record of the answer that the rest is of how it has ended."""
        self._is_over = True
        self._counts[WENT_ON if outcome == "ok" else FAILED] += 1
        whole = self.before.record
        whole.outcome = outcome
        whole.continued = 1
        if self.journey is None:
            return
        record = self.journey.record
        whole.continued += record.continued
        whole.target = record.target or whole.target
        whole.attempts += record.attempts
        if record.usage is not None:
            made = self._num_ids + record.usage.completion
            whole.usage = Usage(self._num_prompt_ids, made)
