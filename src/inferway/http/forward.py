"""A plan -> one answer for the client.

`forward` returns at once; the answer is pushed through as it arrives, and `journey.close` is
called exactly once, before the answer's end: who logs the answer then knows how it went. A
suspended coroutine per request would cost as much as the parsing does.

Which engine is asked, and what becomes of its answer, is the plan's to say (`routing/answer_plan`):
here is how that is done.

The head is held back until the first piece of the body that is more than an SSE comment: vLLM
answers 200 before prefill, so that an engine that is lost during prefill is replaced unseen. But
no longer than `hold_head` seconds where the client is not kept alive meanwhile. An SSE comment is
no answer: `timeouts.first_byte` is the time to the first event. While the engine fetches blocks
from another one, the head of a stream is held back until a piece with content: vLLM answers 200,
and with a role, before it has them.

SSE is passed on in whole events (`sse`), so that an error event can always follow. It is not
followed by `[DONE]`: OpenAI's clients raise APIError at the error itself, and to all others
`[DONE]` would say that the answer is whole. The bytes of the body are not changed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec

from inferway.errors import (
    InferwayError,
    MovedError,
    OurFaultError,
    SeamError,
    SilentEngineError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.http.collected import CollectedAnswer, Refusal
from inferway.http.ends import Client
from inferway.http.errors import withheld
from inferway.http.headers import not_ours_alone, request_lines
from inferway.http.message import Request
from inferway.model import Headers, Target
from inferway.openai_api.responses import error_event
from inferway.openai_api.token_events import bears_tokens
from inferway.routing.answer_plan import (
    Action,
    AnswerPlan,
    Continuation,
    Incident,
    PlannedLeg,
    PlannedRequest,
    State,
    What,
)
from inferway.routing.limits.suspension import REFUSAL_STATUS, refusal
from inferway.routing.record import LegOutcome, Passed, Record
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.headers import header_block
from inferway.upstream.pool import STOOD_STILL_SECONDS, Pool
from inferway_structured.sse import MAX_HELD_BYTES, WholeEvents, is_event_stream, only_comments

MOST_HELD_BYTES = 8 << 20  # of an event that must be whole: the ids of a long prompt
_MOST_WITHOUT_CONTENT = 1 << 20  # bytes of a stream that is held back for its first content
_ERROR = re.compile(rb'^(?:event: ?error\b|data: ?\{"error")', re.MULTILINE)
_COLON = ord(":")  # a comment begins so
_BEGUN_WITH_ERROR = What(why="its stream began with an error")
# The prefill engine's answer must come as we can read it.
_NOT_FOR_PREFILL = frozenset({b"accept-encoding"})


def forward(request: Request, responder: Client, plan: AnswerPlan, pool: Pool) -> None:
    """Send `request` to the best target that answers, and its answer to the client."""
    if responder.ended:
        plan.over("client_gone")
        return
    journey = plan.journey
    forwarding = Forwarding(request, responder, plan, pool, journey, journey.record, plan.passed)
    responder.attach(forwarding)
    forwarding.begin()


class Forwarding(msgspec.Struct, eq=False):
    """Sink of the engine's answer, source of the client's (see the module)."""

    _request: Request
    _responder: Client
    _plan: AnswerPlan
    _pool: Pool
    _journey: PlannedRequest
    _record: Record  # of the whole answer
    _passed: Passed | None
    _exchange: UpstreamRequest | None = None  # with the engine that is to answer
    _collected: CollectedAnswer | None = None  # of the prefill engine, until it has come
    _rest: Continuation | None = None  # None: the client's engine is still the first
    _events: WholeEvents | None = None  # None: the answer is no SSE stream
    _takes: Callable[[bytes], None] | None = None  # of events that pass as they are
    _timer: asyncio.TimerHandle | None = None
    _paused: bool = False
    _begun: bool = False  # the engine has begun to answer
    _head: tuple[int, Headers, int | None] | None = None  # that is held back
    _held: bytes | None = None  # events that wait for content; None: none has to

    @property
    def sent_at(self) -> float:
        """The time of the loop's clock when an engine that is to answer last got the request."""
        return self._plan.sent_at

    def begin(self) -> None:
        """Send what the plan has to be sent first."""
        try:
            if self._plan.prefill:
                self._do(self._plan.split())
            else:
                self._send()
        except BaseException:  # a fault of ours; nothing stays taken
            self._over("error")
            raise

    def _do(self, action: Action, error: UpstreamError | None = None) -> None:
        """Do what comes next. `error`: that the client hears if nobody answers."""
        if action in (Action.STAY, Action.LATER):
            return
        self._drop_exchange()
        if action is Action.SEND:
            if self._collected is not None and not self._plan.awaits_prefill:
                self._drop_collected()
            self._send()
            return
        self._drop_collected()
        if action is Action.HOLD:
            assert self._plan.again is not None
            assert error is not None
            self._plan.again(error)
        elif action is Action.SEND_PREFILL:
            self._send_prefill()
        elif action is Action.GO_ON:
            self._rest = self._plan.continuation
            self._rest.ask(self.go_on, self.fail)
        else:
            assert error is not None
            error = self._plan.attempts.last_word(error)
            try:
                self._plan.over("upstream_error")
            finally:
                if self._rest is None:
                    self._say(error)
                else:
                    self.fail(error)

    def _send(self) -> None:
        """Send the request to the engine that is to answer."""
        plan, request, pool = self._plan, self._request, self._pool
        self._head = self._events = self._held = self._takes = None
        self._begun = False
        extra = plan.sending(pool.time())
        if extra:
            lines = request_lines(request, {name for name, _ in extra}) + header_block(extra)
        else:
            lines = request_lines(request)
        self._exchange = exchange = pool.send(
            plan.attempts.target.endpoint.url,
            request.method,
            request.target,
            lines,
            self._journey.body,
            self,
            once=plan.state is State.FETCHING,  # references serve once, also if a leg was lost
        )
        if self._paused:
            exchange.pause()

    # ------------------------------------------------------------------------------ prefill leg

    def _send_prefill(self) -> None:
        """Send the prompt to the prefill engine, which may have to be looked up before."""
        leg, target = self._leg()
        url = leg.bootstrap_to_ask(target)
        if url is None:
            self._send_leg()
        else:
            self._collected = CollectedAnswer(self._pool, self._looked_up)
            self._collected.send(url, "GET", b"/query", b"", b"")

    def _leg(self) -> tuple[PlannedLeg, Target]:
        plan = self._plan
        assert plan.leg is not None
        assert plan.prefill_attempts is not None
        return plan.leg, plan.prefill_attempts.target

    def _looked_up(self, answer: CollectedAnswer) -> None:
        leg, target = self._leg()
        if answer.status == 200 and leg.learn_engine_ids(target, answer.body):
            self._send_leg()
        else:
            is_ours = isinstance(answer.error, OurFaultError)
            self._prefill_failed(
                What(answer.error if is_ours else None, outcome=LegOutcome.NO_BOOTSTRAP)
            )

    def _send_leg(self) -> None:
        leg, target = self._leg()
        extra, request = leg.attempt(target), self._request
        if extra is None:
            self._prefill_failed(What(outcome=LegOutcome.NOT_EDITED))
            return
        dropped = _NOT_FOR_PREFILL | {name for name, _ in extra}
        lines = request_lines(request, dropped) + header_block(extra)
        self._collected = answer = CollectedAnswer(self._pool, self._prefilled)
        answer.send(target.endpoint.url, request.method, request.target, lines, leg.body)
        if leg.is_at_once:
            self._send()

    def _prefilled(self, answer: CollectedAnswer) -> None:
        """The prefill engine has answered, or will not."""
        if 200 <= answer.status < 300 and not answer.outcome:
            self._collected = None
            delay = self._pool.timeouts.connect  # until the engine that answers has it, at most
            self._do(self._plan.prefilled(answer.body, answer.age, delay, answer.hosts))
        else:
            outcome = answer.outcome or (
                LegOutcome.REFUSED if answer.status < 500 else LegOutcome.FAILED
            )
            is_suspended = refusal(answer.status, answer.body) is not None  # which is no failure
            status = 0 if is_suspended else answer.status
            self._prefill_failed(What(answer.error, status, outcome))

    def _prefill_failed(self, what: What) -> None:
        self._collected = None
        is_ours = isinstance(what.error, OurFaultError)
        incident = Incident.FAULT if is_ours else Incident.PREFILL_FAILED
        self._do(self._plan.after(incident, what), what.error)

    # ----------------------------------------------------------------------- upstream's Sink

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        if status >= 400:
            if status == REFUSAL_STATUS:
                assert self._exchange is not None
                self._head = (status, headers, length)
                self._exchange.give_to(Refusal(self))
                return
            if self._is_left(status):
                return
        self._take_head(status, headers, length)

    def _is_left(self, status: int) -> bool:
        """Return whether the engine is left because of the status of its answer."""
        incident = Incident.REFUSED if status < 500 else Incident.FAILED
        action = self._plan.after(incident, What(status=status))
        if action is Action.STAY:
            return False
        self._do(action)
        return True

    def on_refusal(self, body: bytes, *, is_whole: bool) -> None:
        assert self._head is not None
        (status, headers, length), self._head = self._head, None
        engine, is_suspended = self._plan.attempts.engine, refusal(status, body) is not None
        if is_suspended:
            error = UpstreamError(f"engine {engine} is suspended and has refused the request")
            action = self._plan.after(Incident.SUSPENDED, What(error))
            if action is not Action.STAY:
                self._do(action, error)
                return
        elif self._is_left(status):
            return
        exchange = self._exchange
        assert exchange is not None
        exchange.give_to(self)
        self._take_head(status, headers, length)
        (self.on_end if is_whole else self.on_chunk)(body)

    def _take_head(self, status: int, headers: Headers, length: int | None) -> None:
        self._head = (status, headers, length)
        assert self._exchange is not None
        if self._exchange.is_encoded:
            self._journey.pass_encoded()
        elif length is None and is_event_stream(headers):
            self._begin_stream()

    def _begin_stream(self) -> None:
        is_kept = self._plan.continues is not None
        self._events = WholeEvents(MOST_HELD_BYTES if is_kept else MAX_HELD_BYTES)
        if self._plan.state is State.FETCHING:
            self._held = b""
        hold, left = self._pool.timeouts.hold_head, self._time_left()
        is_held = hold >= left or self._responder.is_kept_alive
        after = self._too_late if is_held else self._hold_no_more
        self._timer = self._pool.loop.call_later(left if is_held else hold, after)

    def on_chunk(self, chunk: bytes) -> None:
        if self._events is not None:
            chunk = self._events.whole(chunk, self._head is not None)
            # What is no event does not begin the time until the next one anew.
            if not chunk or (chunk[0] == _COLON and only_comments(chunk)):
                assert self._exchange is not None
                self._exchange.is_waiting = True
                if not chunk:
                    return
            if self._passed is not None:
                self._passed(self._record, chunk)
            if self._takes is not None:
                self._takes(chunk)
                self._responder.write(chunk)
                return
        if not self._begun:
            chunk = self._first(chunk)
            if not self._begun:
                return
            if self._rest is None:  # else they are put behind what the client has
                self._takes = self._journey.further_pieces()
        journey = self._journey
        chunk = journey.on_chunk(chunk)
        if journey.is_cut_off:
            if not self._is_gone_on_with(chunk):
                self._write(journey.give_up())
        elif self._rest is None:
            self._responder.write(chunk)
        else:
            self._write(chunk)

    def _first(self, chunk: bytes) -> bytes:
        """Let the answer begin with this piece, if it may; return what the client gets of it."""
        if self._held is not None:
            chunk = self._with_content(chunk)
            if not chunk:
                return b""
        if self._head is not None and not self._release():
            return b""
        if self._events is not None and only_comments(chunk):
            self._write(chunk)
        else:
            self._begin()
        return chunk

    def _with_content(self, events: bytes) -> bytes:
        """Return all that the engine has sent, once there is content in it: then it has the blocks
        that it fetches from another one."""
        assert self._held is not None
        held = self._held + events
        if not bears_tokens(events):
            if _ERROR.search(events):
                self._do(self._plan.after(Incident.NO_BLOCKS, _BEGUN_WITH_ERROR))
                return b""
            if len(held) <= _MOST_WITHOUT_CONTENT:
                self._held = held
                return b""
        self._held = None
        return held

    def _write(self, chunk: bytes) -> None:
        """Send the client a piece of the answer, which may be of its rest."""
        if self._rest is not None:
            try:
                chunk = self._rest.feed(chunk)
            except SeamError as e:
                self._give_up_rest(e)
                return
        self._responder.write(chunk)

    def on_end(self, chunk: bytes) -> None:
        if self._events is not None:
            chunk = self._events.rest() + chunk
            if self._held is not None:
                if _ERROR.search(chunk) and not bears_tokens(chunk):
                    self._do(self._plan.after(Incident.NO_BLOCKS, _BEGUN_WITH_ERROR))
                    return
                chunk = self._held + chunk
            if chunk and self._passed is not None:
                self._passed(self._record, chunk)
        if self._head is not None and not self._release():
            return
        if not self._begun:
            self._begin()
        if chunk:
            chunk = self._journey.on_chunk(chunk)
            if self._journey.is_cut_off:
                if self._is_gone_on_with(chunk):
                    return
                chunk = self._journey.give_up()
        self._exchange = None
        chunk += self._journey.on_end()
        if self._rest is not None:
            self._end_rest(chunk)
            return
        try:
            self._plan.over("ok")  # what is collected is read to its end, as SGLang wants it
        finally:
            self._responder.end(chunk)

    def _end_rest(self, chunk: bytes) -> None:
        """End the answer, whose rest has come to its end, which is `chunk`."""
        assert self._rest is not None
        try:
            chunk = self._rest.feed(chunk)
        except SeamError as e:
            self._give_up_rest(e)
            return
        try:
            self._plan.over("ok")
        finally:
            self._rest.ended("ok")
            self._responder.end(chunk)

    def on_error(self, error: UpstreamError) -> None:
        self._stop_timer()
        self._exchange = None
        plan = self._plan
        if self._has_said_all:
            self._events = None  # only their frame has no end
            self.on_end(b"")
            return
        incident = Incident.FAULT if isinstance(error, OurFaultError) else Incident.LOST
        self._do(plan.after(incident, What(error)), error)

    def _is_gone_on_with(self, chunk: bytes) -> bool:
        """The engine has said, after `chunk`, that it will not end its answer. Return whether
        another one goes on with it, or nobody needs to."""
        self._write(chunk)
        plan = self._plan
        if plan.state is State.OVER:
            return True
        error = UpstreamError(f"engine {plan.attempts.engine} gave up its answer in the middle")
        action = plan.after(Incident.GAVE_UP, What(error))
        self._do(action)
        return action is Action.GO_ON

    # ------------------------------------------------------------------ who leaves an engine, why

    def engine_is_silent(self, error: SilentEngineError, *, may_wait: bool) -> bool | None:
        """Have another engine answer, or go on with the answer, if the silent one was to. Return
        whether one does; None if the answer comes from elsewhere. An answer that no other engine
        gives is given up, unless it `may_wait`."""
        action = self._plan.silent(error, error.engine, may_wait=may_wait)
        if action is None:
            return None
        self._do(action, error)
        return action not in (Action.STAY, Action.TELL)

    def leave(self, engine: str) -> bool:
        """Return whether another engine goes on with the answer, which is this engine's and has
        begun."""
        action = self._plan.drained(MovedError(f"engine {engine} is drained"), engine)
        self._do(action)
        return action is Action.GO_ON

    def go_on(self, plan: AnswerPlan) -> None:
        """Get the rest of the answer, as its plan has it."""
        if self._responder.ended:
            plan.over("client_gone")
            return
        self._plan, self._journey = plan, plan.journey
        self._takes = None
        self._paused = False
        self._responder.attach(self)
        self.begin()

    def fail(self, error: BaseException) -> None:
        """End the answer, which has begun: its engine was lost, and no other engine goes on."""
        assert self._rest is not None
        if not self._responder.ended:
            self._say(self._rest.last_word(error))

    def _give_up_rest(self, error: SeamError | None) -> None:
        """End the answer, because its rest is none; `error` says why, if not the head."""
        assert self._rest is not None
        self._leave()
        self.fail(error or self._rest.error)

    def _say(self, error: InferwayError) -> None:
        """Tell the client of the error, as far as it still can be told."""
        responder, is_stream = self._responder, self._rest is not None or self._events is not None
        if responder.started and not (is_stream and responder.can_say_more):
            responder.abort()
            return
        told = error if self._plan.explain else withheld(error, self._request.id)
        if responder.started:
            responder.end(error_event(told, self._request.path))
        else:
            responder.send_error(told)

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
        if self._has_said_all:  # OpenAI's client closes the connection at `[DONE]`
            self._over("ok")
            if self._rest is not None:
                self._rest.ended("ok")
        else:
            self._leave()

    def _leave(self) -> None:
        self._drop_exchange()
        self._drop_collected()
        self._plan.client_gone()

    # --------------------------------------------------------------------------------- the rest

    @property
    def _has_said_all(self) -> bool:
        """True if the client gets a stream whose engine has said that it is whole."""
        events = self._events
        return self._plan.state is State.PASSING and events is not None and events.are_done

    def _over(self, outcome: str) -> None:
        """Give back all that was taken for an answer whose end does not come."""
        self._drop_exchange()
        self._drop_collected()
        self._plan.over(outcome)

    def _time_left(self) -> float:
        """Return the seconds until the first event must have come."""
        pool = self._pool
        return max(0.0, self._plan.sent_at + pool.timeouts.first_byte - pool.time())

    def _hold_no_more(self) -> None:
        if self._head is not None and self._held is None and self._release():
            self._responder.flush()
        if self._exchange is not None:
            self._timer = self._pool.loop.call_later(self._time_left(), self._too_late)

    def _too_late(self) -> None:
        """No event has come in time."""
        assert self._timer is not None
        pool, seconds, due = self._pool, self._pool.timeouts.first_byte, self._timer.when()
        self._timer = None
        if self._paused or pool.time() - due > STOOD_STILL_SECONDS:
            # the client waits, or this process stood still, and is about to read what came
            left = seconds if self._paused else STOOD_STILL_SECONDS
            self._timer = pool.loop.call_later(left, self._too_late)
            return
        if self._exchange is not None:
            self._exchange.abort()
        self.on_error(
            UpstreamTimeoutError(
                f"engine {self._plan.attempts.engine}: no event came within {seconds:g} s"
                " (timeouts.first_byte)"
            )
        )

    def _begin(self) -> None:
        """The engine has begun to answer."""
        self._begun = True
        if self._timer is not None:
            self._stop_timer()
        self._plan.attempts.succeeded()

    def _release(self) -> bool:
        """Send the head; from here on the answer is this engine's. Return whether it is one."""
        assert self._head is not None
        (status, headers, length), self._head = self._head, None
        plan, journey = self._plan, self._journey
        self._request.forget_body()  # it is not sent again
        plan.passes()
        decided = journey.on_head(status)
        if self._rest is not None:
            if self._rest.begins(status, headers):
                return True
            self._give_up_rest(None)
            return False
        if journey.changes_length:
            length = None
        extra = decided if plan.explain else not_ours_alone(decided)
        if plan.attempts.number > 1:
            extra = (*extra, (b"x-inferway-attempts", b"%d" % plan.attempts.number))
        self._responder.start(status, [*headers, *extra], length)
        return True

    def _drop_exchange(self) -> None:
        """Let the engine's answer go, of which nothing more is wanted."""
        self._stop_timer()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()

    def _drop_collected(self) -> None:
        collected, self._collected = self._collected, None
        if collected is not None:
            collected.drop()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
