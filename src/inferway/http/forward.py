"""A decision's ranked targets -> one answer for the client.

`forward` returns at once; the answer is pushed through as it arrives, and `journey.close` is
called exactly once, before the answer's end: who logs the answer then knows how it went. A
suspended coroutine per request would cost as much as the parsing does.

what happens                     nothing sent to the client yet     after that
cannot connect, connection lost  next target, else 502              `goes_on`, else error event
502, 503 (`retries.statuses`)    next target, else as it is         -
nothing came in time             504                                `goes_on`, else error event
the client goes away             the engine's connection is closed, at once and always

Which target is next, if any, is `attempts`' to say.

The head is held back until the first piece of the body that is more than an SSE comment: vLLM
answers 200 before prefill, so that an engine that is lost during prefill is replaced unseen. But
no longer than `hold_head` seconds where the client is not kept alive meanwhile. An SSE comment is
no answer: `timeouts.first_byte` is the time to the first event.

SSE is passed on in whole events (`sse`), so that an error event can always follow. It is not
followed by `[DONE]`: OpenAI's clients raise APIError at the error itself, and to all others
`[DONE]` would say that the answer is whole. The bytes of the body are not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inferway.errors import (
    InferwayError,
    MovedError,
    NoEndpointError,
    OurFaultError,
    SilentEngineError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.http.ends import Client, RequestLifecycle
from inferway.http.errors import withheld
from inferway.http.headers import not_ours_alone, request_lines
from inferway.http.message import Request
from inferway.model import Decision, Headers, Target
from inferway.openai_api.responses import error_event
from inferway.routing.limits.concurrency_limiter import Slot
from inferway.routing.limits.failover import Failover, FailoverPolicy
from inferway.routing.record import Passed, Record
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.headers import header_block
from inferway.upstream.pool import STOOD_STILL_SECONDS, Pool
from inferway_structured.sse import MAX_HELD_BYTES, WholeEvents, is_event_stream, only_comments

UNWELL = frozenset({502, 503, 504})  # what says that the engine is unwell (circuit_breaker)
MOST_HELD_BYTES = 8 << 20  # of an event that must be whole: the ids of a long prompt

# Told of a stream whose engine was lost after it had begun; returns whether its rest comes from
# another one, and then nothing is the forwarding's any more.
GoesOn = Callable[["Forwarding", UpstreamError], bool]


def forward(
    request: Request,
    responder: Client,
    journey: RequestLifecycle,
    decision: Decision,
    pool: Pool,
    *,
    policy: FailoverPolicy | None = None,
    slot: Slot | None = None,
    explain: bool = True,
    record: Record | None = None,
    passed: Passed | None = None,
    kind: type[Forwarding] | None = None,
    goes_on: GoesOn | None = None,
) -> None:
    """Sends `request` to the best target that answers, and its answer to the client; with the
    headers that say how it was decided if `explain`, else no error names an engine. `slot` is
    left when all is over; None: nothing is limited. `passed` hears of the events of a stream, for
    its `record`. `kind`: of a request with two legs. `goes_on`: who is asked for the rest of
    a stream whose engine was lost.

    Raises NoEndpointError, with the journey closed, if the decision has no target."""
    if responder.ended or not decision.targets:
        journey.close("client_gone" if responder.ended else "error")
        if slot is not None:
            slot.leave()
        if not responder.ended:
            raise NoEndpointError("the decision has no target")
        return
    shared = policy or FailoverPolicy(pool.time)
    attempts = Failover(decision.targets, shared, slot, journey.losses)
    forwarding = (kind or Forwarding)(
        *(request, responder, journey, pool, attempts, explain, record, passed, goes_on)
    )
    responder.attach(forwarding)
    try:
        forwarding.begin(decision)
    except BaseException:  # a fault of ours; nothing stays taken
        forwarding.over("error")
        raise


class Forwarding:
    """Sink of the engine's answer, source of the client's (see the module)."""

    __slots__ = (
        "_attempts",
        "_begun",
        "_events",
        "_exchange",
        "_explain",
        "_goes_on",
        "_head",
        "_journey",
        "_lines",
        "_passed",
        "_paused",
        "_pool",
        "_record",
        "_request",
        "_responder",
        "_sent_at",
        "_timer",
    )

    def __init__(
        self,
        request: Request,
        responder: Client,
        journey: RequestLifecycle,
        pool: Pool,
        attempts: Failover,
        explain: bool,
        record: Record | None,
        passed: Passed | None,
        goes_on: GoesOn | None,
    ) -> None:
        self._goes_on = goes_on
        self._request = request
        self._responder = responder
        self._journey = journey
        self._pool = pool
        self._attempts = attempts
        self._explain = explain
        self._passed = None if record is None else passed
        if record is not None:
            self._record = record
        self._lines = request_lines(request)
        self._exchange: UpstreamRequest | None = None
        self._paused = False
        self._head: tuple[int, Headers, int | None] | None = None  # held back
        self._events: WholeEvents | None = None  # None: the answer is no SSE stream
        self._begun = False  # its first event has come
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = pool.time()

    @property
    def sent_at(self) -> float:
        """When the request was last sent to an engine that is to answer it, by the loop's clock."""
        return self._sent_at

    def begin(self, decision: Decision) -> None:
        """Send the request where it was decided."""
        self.attempt(decision.targets[0])

    def attempt(self, target: Target) -> None:
        """Send the request to `target`."""
        self._head = self._events = None
        request, endpoint = self._request, target.endpoint
        self._sent_at = self._pool.time()
        extra = self._journey.attempt(target)
        lines = self._lines
        if extra:
            names = {name for name, _ in extra}
            lines = request_lines(request, names) + header_block(extra)
        journey = self._journey
        self._exchange = exchange = self._pool.send(
            *(endpoint.url, request.method, request.target, lines, journey.body, self),
            once=journey.is_moved,  # a reference to blocks serves once, whoever has lost it
        )
        if self._paused:
            exchange.pause()

    # ----------------------------------------------------------------------- upstream's Sink

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        if status >= 400:
            if status in UNWELL:
                self._attempts.failed()
            if target := self._attempts.instead_of(status):
                self._drop_exchange()
                self.attempt(target)
                return
        self._head = (status, headers, length)
        assert self._exchange is not None
        if self._exchange.is_encoded:
            self._journey.pass_encoded()
        elif length is None and is_event_stream(headers):
            self._events = WholeEvents(MOST_HELD_BYTES if self._goes_on else MAX_HELD_BYTES)
            hold, left = self._pool.timeouts.hold_head, self._time_left()
            is_held = hold >= left or self._responder.is_kept_alive
            after = self._too_late if is_held else self._hold_no_more
            self._timer = self._pool.loop.call_later(left if is_held else hold, after)

    def on_chunk(self, chunk: bytes) -> None:
        head_waits, exchange = self._head is not None, self._exchange
        assert exchange is not None
        if self._events is not None:
            chunk = self._events.whole(chunk, head_waits)
            # What is no event does not begin the time until the next one anew.
            exchange.is_waiting = chunk[:1] in (b"", b":") and only_comments(chunk)
            if not chunk:
                return
            if self._passed is not None:
                self._passed(self._record, chunk)
        if head_waits:
            self._release()
        if self._begun or self._begins(chunk):
            chunk = self._journey.on_chunk(chunk)
            if self._goes_on is not None and self._journey.is_cut_off:
                self._given_up(chunk)
                return
        self._responder.write(chunk)

    def on_end(self, chunk: bytes) -> None:
        if self._events is not None:
            chunk = self._events.rest() + chunk
            if chunk and self._passed is not None:
                self._passed(self._record, chunk)
        if self._head is not None:
            self._release()
        if not self._begun:
            self._begin()
        if chunk:
            chunk = self._journey.on_chunk(chunk)
            if self._goes_on is not None and self._journey.is_cut_off:
                if self._leaves(chunk):
                    return
                chunk = self._journey.give_up()
        self._exchange = None
        chunk += self._journey.on_end()
        try:
            self.over("ok")
        finally:
            self._responder.end(chunk)

    def on_error(self, error: UpstreamError) -> None:
        self._stop_timer()
        self._exchange = None
        if self._events is not None and self._events.are_done:  # only their frame has no end
            rest = self._journey.on_end()
            try:
                self.over("ok")
            finally:
                self._responder.end(rest)
            return
        ours = isinstance(error, OurFaultError)
        if not ours:
            self._attempts.failed(error)
            if self._responder.started and self._is_gone_on_with(error):
                return
        if not (ours or self._responder.started) and (target := self._next_target(error)):
            self.attempt(target)
            return
        self._give_up(error)

    def _next_target(self, error: UpstreamError) -> Target | None:
        """Return where the request is tried next. One that was not answered in time is not, unless
        its engine has not answered anybody since: then it is lost."""
        if isinstance(error, UpstreamTimeoutError) and not self._attempts.timed_out(self._sent_at):
            return None
        return self._attempts.another()

    def _give_up(self, error: UpstreamError) -> None:
        """End the answer, which nobody gives."""
        if not isinstance(error, OurFaultError):
            self._attempts.lost()
        error = self._attempts.last_word(error)
        try:
            self.over("upstream_error")
        finally:
            self._say(error)

    def engine_is_silent(self, error: SilentEngineError, *, may_wait: bool) -> bool | None:
        """Have another engine answer, or go on with the answer, if the silent one was to. Return
        whether one does; None if the answer comes from elsewhere. An answer that no other engine
        gives is given up, unless it `may_wait`."""
        if self._exchange is None or self._attempts.engine != error.engine:
            return None
        if self._is_moved_away(error):
            return True
        if not may_wait:
            self._drop_exchange()
            self._give_up(error)
        return False

    def _is_moved_away(self, error: UpstreamError) -> bool:
        assert self._exchange is not None
        if self._responder.started:
            return self._is_gone_on_with(error)
        target = self._attempts.elsewhere()
        if target is None:
            return False
        self._drop_exchange()
        self.attempt(target)
        return True

    def leave(self, engine: str) -> bool:
        """Return whether another engine goes on with the answer, which is this engine's and has
        begun."""
        if (
            self._goes_on is None
            or self._exchange is None
            or not self._responder.started
            or self._attempts.engine != engine
        ):
            return False
        return self._is_gone_on_with(MovedError(f"engine {engine} is drained"))

    def _is_gone_on_with(self, error: UpstreamError) -> bool:
        """Return whether another engine goes on with the answer, which has begun."""
        if self._goes_on is None or not self._goes_on(self, error):
            return False
        self._drop_exchange()
        if not isinstance(error, MovedError):
            self._attempts.moved_away()
        return True

    def _given_up(self, chunk: bytes) -> None:
        """The engine has said, after `chunk`, that it will not end its answer."""
        if not self._leaves(chunk):
            self._responder.write(self._journey.give_up())

    def _leaves(self, chunk: bytes) -> bool:
        """Return whether another engine goes on with the answer behind `chunk`."""
        attempts = self._attempts
        attempts.failed()
        self._responder.write(chunk)
        error = UpstreamError(f"engine {attempts.engine} gave up its answer in the middle")
        return self._is_gone_on_with(error)

    def _say(self, error: UpstreamError) -> None:
        """Tell the client of the error, as far as it still can be told."""
        responder = self._responder
        if not responder.started:
            responder.send_error(self._told(error))
        elif self._events is not None and responder.can_say_more:
            responder.end(error_event(self._told(error), self._request.path))
        else:
            responder.abort()

    # --------------------------------------------------------------------- responder's Source

    def pause(self) -> None:
        self._paused = True
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        self._paused = False
        if self._exchange is not None:
            self._exchange.resume()

    def client_gone(self) -> None:
        self._drop_exchange()
        self._attempts.abandoned()
        self.over("client_gone")

    # --------------------------------------------------------------------------------- the rest

    def over(self, outcome: str) -> None:
        """Give back all that was taken."""
        self._attempts.over()
        self._journey.close(outcome)

    def _told(self, error: UpstreamError) -> InferwayError:
        """Return the error as this caller may read it."""
        return error if self._explain else withheld(error, self._request.id)

    def _time_left(self) -> float:
        """Return the seconds until the first event must have come."""
        pool = self._pool
        return max(0.0, self._sent_at + pool.timeouts.first_byte - pool.time())

    def _hold_no_more(self) -> None:
        if self._head is not None:
            self._release()
            self._responder.flush()
        self._timer = self._pool.loop.call_later(self._time_left(), self._too_late)

    def _too_late(self) -> None:
        """No event has come in time."""
        assert self._timer is not None
        pool, seconds, due = self._pool, self._pool.timeouts.first_byte, self._timer.when()
        self._timer = None
        if self._paused:  # it is the client who waits
            self._timer = pool.loop.call_later(seconds, self._too_late)
            return
        if pool.time() - due > STOOD_STILL_SECONDS:
            # this process stood still: what came meanwhile is about to be read
            self._timer = pool.loop.call_later(STOOD_STILL_SECONDS, self._too_late)
            return
        if self._exchange is not None:
            self._exchange.abort()
        self.on_error(
            UpstreamTimeoutError(
                f"engine {self._attempts.engine}: no event came within {seconds:g} s"
                " (timeouts.first_byte)"
            )
        )

    def _begins(self, chunk: bytes) -> bool:
        """Return whether the chunk is more than comments, with which the answer begins."""
        if self._events is not None and only_comments(chunk):
            return False
        self._begin()
        return True

    def _begin(self) -> None:
        """The engine has begun to answer."""
        self._begun = True
        if self._timer is not None:
            self._stop_timer()
        self._attempts.succeeded()

    def _release(self) -> None:
        """Send the head; from here on the answer is this engine's."""
        assert self._head is not None
        (status, headers, length), self._head = self._head, None
        self._request.forget_body()  # it is not sent again
        decided = self._journey.on_head(status)
        if self._journey.changes_length:
            length = None
        extra = decided if self._explain else not_ours_alone(decided)
        if self._attempts.number > 1:
            extra = (*extra, (b"x-inferway-attempts", b"%d" % self._attempts.number))
        self._responder.start(status, [*headers, *extra], length)

    def _drop_exchange(self) -> None:
        """Let the engine's answer go, of which nothing more is wanted."""
        self._stop_timer()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
