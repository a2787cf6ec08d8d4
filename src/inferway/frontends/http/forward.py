"""A decision's ranked targets -> one answer for the client.

`forward` returns at once; the answer is pushed through as it arrives, and `journey.close` is
called exactly once, at its end. A suspended coroutine per request would cost as much as the
parsing does.

what happens                     nothing sent to the client yet     after that
cannot connect, connection lost  next target, else 502              error event (SSE), else abort
502, 503 (`retries.statuses`)    next target, else as it is         -
nothing came in time             504                                error event (SSE), else abort
the client goes away             the engine's connection is closed, at once and always

Which targets are left, and whether one more may be tried, is `flow`'s to say: an engine that has
failed too often is passed over, and further tries have a budget.

The head is held back until the first piece of the body that is more than an SSE comment, but
no longer than `hold_head` seconds: vLLM answers 200 before prefill, so that an engine that is
lost during prefill is replaced unseen. An SSE comment is no answer: `timeouts.first_byte` is the
time to the first event.

SSE is passed on in whole events, so that an error event can always follow. It is not followed
by `[DONE]`: OpenAI's clients raise APIError at the error itself, and to all others `[DONE]`
would say that the answer is whole. The bytes of the body are not changed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Protocol

from inferway.errors import (
    InferwayError,
    NoEndpointError,
    OurFaultError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.flow.traffic import Traffic
from inferway.frontends.http.message import Request
from inferway.frontends.http.responder import Source
from inferway.model import Decision, Headers, Target
from inferway.openai_api.responses import error_event
from inferway.structured.report import UNENFORCED_HEADER
from inferway.upstream.exchange import Exchange
from inferway.upstream.headers import (
    HOP_BY_HOP,
    PLAIN_CONNECTION,
    REWRITTEN,
    header_block,
    named_by_connection,
)
from inferway.upstream.pool import Pool

MAX_PARTIAL_EVENT_BYTES = 64 * 1024
_DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")  # a stream's end, as OpenAI has it
_FAILED = frozenset({502, 503, 504})  # what says that the engine is unwell (flow.breaker)

# What a client says here would steer the fleet (field notes 3.5), or an engine's queue (vLLM 0.32,
# entrypoints/generate/base/serving.py); ours to say, or nobody's.
ROUTING_HEADERS = frozenset(
    {
        b"x-data-parallel-host-port",
        b"x-data-parallel-rank",
        b"x-encoder-hosts-ports",
        b"x-forwarded-path",
        b"x-kv-cache-source-host-port",
        b"x-original-path",
        b"x-prefiller-host-port",
        b"x-session-id",
        b"x-session-token",
        b"x-slo-tpot-ms",
        b"x-slo-ttft-ms",
        b"x-vllm-priority",
        b"x-went-into-resp-headers",
    }
)
ROUTING_PREFIXES = (b"x-inferway-", b"x-gateway-", b"x-llm-d-")
_ROUTING_HINT = re.compile(rb"x-(?:inferway|gateway|llm-d)-")  # maybe in a value
_EDITED = b"x-inferway-edited"
_DECIDED_EDITS = frozenset({b"vllm_xargs"})  # whether a report is asked for tells of the cache
log = logging.getLogger("inferway.forward")

# Who may ask from a browser is ours to say (cors): an engine that sees no Origin says nothing.
_DROPPED = HOP_BY_HOP | REWRITTEN | ROUTING_HEADERS | {b"x-request-id", b"origin"}


class Journey(Protocol):
    """What a request is to its director, from here on (director.Journey)."""

    @property
    def body(self) -> bytes: ...
    @property
    def changes_length(self) -> bool: ...
    def attempt(self, target: Target) -> Headers: ...
    def on_head(self, status: int) -> Headers: ...
    def on_chunk(self, chunk: bytes) -> bytes: ...
    def on_end(self) -> bytes: ...
    def close(self, outcome: str) -> None: ...


class Client(Protocol):
    """Who gets the answer (responder.Responder, or who stands before it)."""

    engine: str

    @property
    def started(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def can_say_more(self) -> bool: ...
    def attach(self, source: Source) -> None: ...
    def start(self, status: int, headers: Headers, length: int | None = None) -> None: ...
    def flush(self) -> None: ...
    def write(self, chunk: bytes) -> None: ...
    def end(self, chunk: bytes = b"") -> None: ...
    def send_error(self, error: InferwayError) -> None: ...
    def abort(self) -> None: ...


class Place(Protocol):
    """Where limits count a request (flow_control.Ticket)."""

    def takes(self, engine: str) -> bool: ...
    def move(self, engine: str) -> None: ...
    def leave(self) -> None: ...


def forward(
    request: Request,
    responder: Client,
    journey: Journey,
    decision: Decision,
    pool: Pool,
    *,
    traffic: Traffic | None = None,
    place: Place | None = None,
    explain: bool = True,
) -> None:
    """Sends `request` to the best target that answers, and its answer to the client; with the
    headers that say how it was decided if `explain`. `place` is left when all is over; None:
    nothing is limited.

    Raises NoEndpointError, with the journey closed, if the decision has no target.
    """
    if responder.ended or not decision.targets:
        journey.close("client_gone" if responder.ended else "error")
        if place is not None:
            place.leave()
        if not responder.ended:
            raise NoEndpointError("the decision has no target")
        return
    traffic = traffic or Traffic(pool.time)
    forwarding = _Forwarding(
        request, responder, journey, decision.targets, pool, traffic, place, explain
    )
    responder.attach(forwarding)
    try:
        forwarding.attempt(decision.targets[0])
    except BaseException:  # a fault of ours; nothing stays taken
        forwarding.over("error")
        raise


class _Forwarding:
    """Sink of the engine's answer, source of the client's (see the module)."""

    __slots__ = (
        "_attempts",
        "_begun",
        "_engine",
        "_events",
        "_exchange",
        "_explain",
        "_has_failed",
        "_head",
        "_held",
        "_journey",
        "_left",
        "_lines",
        "_passed",
        "_paused",
        "_place",
        "_pool",
        "_request",
        "_responder",
        "_sent_at",
        "_timer",
        "_traffic",
    )

    def __init__(
        self,
        request: Request,
        responder: Client,
        journey: Journey,
        targets: tuple[Target, ...],
        pool: Pool,
        traffic: Traffic,
        place: Place | None,
        explain: bool,
    ) -> None:
        self._request = request
        self._responder = responder
        self._journey = journey
        self._left = targets[1:]
        self._pool = pool
        self._traffic = traffic
        self._place = place
        self._explain = explain
        traffic.retries.active += 1
        self._lines = request_lines(request)
        self._attempts = 0
        self._exchange: Exchange | None = None
        self._paused = False
        self._head: tuple[int, Headers, int | None] | None = None  # held back
        self._held = b""  # body bytes held back: comments, or the start of an event
        self._passed = b""  # the last events that were passed on
        self._events = False  # the answer is an SSE stream
        self._begun = False  # its first event has come
        self._timer: asyncio.TimerHandle | None = None

    def attempt(self, target: Target) -> None:
        """Sends the request there."""
        self._attempts += 1
        self._head, self._held, self._events = None, b"", False
        request, endpoint = self._request, target.endpoint
        self._engine, self._has_failed = endpoint.engine, False
        engine = self._engine
        self._sent_at = self._pool.time()
        if self._place is not None:
            self._place.move(engine)
        standing = self._traffic.standing
        if standing.breakers:
            standing.sent(engine, self._traffic.clock())
        extra = self._journey.attempt(target)
        lines = self._lines
        if extra:
            names = {name for name, _ in extra}
            lines = request_lines(request, names) + header_block(extra)
        self._responder.engine = engine
        self._exchange = exchange = self._pool.send(
            endpoint.url, request.method, request.target, lines, self._journey.body, self
        )
        if self._paused:
            exchange.pause()

    # ----------------------------------------------------------------------- upstream's Sink

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        if status >= 400:
            if status in _FAILED:
                self._failed()
            if status in self._traffic.retries.statuses and (target := self._another()):
                assert self._exchange is not None
                self._exchange.abort()
                self._traffic.retries.made += 1
                self.attempt(target)
                return
        self._head = (status, headers, length)
        self._events = length is None and _is_event_stream(headers)
        if self._events:
            hold, left = self._pool.timeouts.hold_head, self._time_left()
            after = self._hold_no_more if hold < left else self._too_late
            self._timer = self._pool.loop.call_later(min(hold, left), after)

    def on_chunk(self, chunk: bytes) -> None:
        if self._events:
            chunk = self._whole_events(chunk)
            if not chunk:
                return
            self._passed = chunk
        if self._head is not None:
            self._release()
        if not self._begun and not self._begins(chunk):
            self._responder.write(chunk)
            return
        chunk = self._journey.on_chunk(chunk)
        if chunk:
            self._responder.write(chunk)

    def on_end(self, chunk: bytes) -> None:
        if self._held:
            chunk, self._held = self._held + chunk, b""
        if self._head is not None:
            self._release()
        if not self._begun:
            self._begin()
        if chunk:
            chunk = self._journey.on_chunk(chunk)
        self._exchange = None
        self._responder.end(chunk + self._journey.on_end())
        self.over("ok")

    def on_error(self, error: UpstreamError) -> None:
        self._stop_timer()
        self._exchange = None
        if self._passed.endswith(_DONE):  # the answer is whole: only its frame has no end
            self._responder.end(self._journey.on_end())
            self.over("ok")
            return
        ours = isinstance(error, OurFaultError)
        if not ours and not self._has_failed:
            self._failed()
        responder = self._responder
        if not responder.started:
            final = ours or isinstance(error, UpstreamTimeoutError)
            if not final and (target := self._another()):
                self._traffic.retries.made += 1
                self.attempt(target)
                return
            error.attempts = self._attempts
            responder.send_error(error)
        elif self._events and responder.can_say_more:
            responder.end(error_event(error))
        else:
            responder.abort()
        self.over("upstream_error")

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
        self._stop_timer()
        if self._exchange is not None:
            self._exchange.abort()
            self._exchange = None
        self._traffic.standing.abandoned(self._engine)
        self.over("client_gone")

    # ---------------------------------------------------------------------------------------

    def _another(self) -> Target | None:
        """The next target, if it may be tried."""
        retries, standing = self._traffic.retries, self._traffic.standing
        left = self._left
        if self._attempts >= retries.settings.attempts or not left:
            return None
        if self._place is not None:
            left = tuple(target for target in left if self._place.takes(target.endpoint.engine))
        if not standing.is_plain:
            names = [target.endpoint.engine for target in left]
            allowed = standing.allowed(names, self._traffic.clock())
            left = tuple(target for target in left if target.endpoint.engine in allowed)
        if not left:
            return None
        if self._attempts == 1:
            if not retries.may_begin():
                return None
            retries.retrying += 1
        self._left = left[1:]
        return left[0]

    def _failed(self) -> None:
        """The engine has not answered, or not to the end."""
        traffic, self._has_failed = self._traffic, True
        if traffic.standing.failed(self._engine, traffic.clock()):
            log.warning("engine %s failed too often; it gets no requests for now", self._engine)

    def over(self, outcome: str) -> None:
        """All that was taken is given back."""
        retries = self._traffic.retries
        retries.active -= 1
        if self._attempts > 1:
            retries.retrying -= 1
        self._journey.close(outcome)
        if self._place is not None:
            self._place.leave()

    def _time_left(self) -> float:
        """Until its first event must have come."""
        pool = self._pool
        return max(0.0, self._sent_at + pool.timeouts.first_byte - pool.time())

    def _hold_no_more(self) -> None:
        if self._head is not None:
            self._release()
            self._responder.flush()
        self._timer = self._pool.loop.call_later(self._time_left(), self._too_late)

    def _too_late(self) -> None:
        """No event has come."""
        self._timer = None
        seconds = self._pool.timeouts.first_byte
        if self._paused:  # it is the client who waits
            self._timer = self._pool.loop.call_later(seconds, self._too_late)
            return
        if self._exchange is not None:
            self._exchange.abort()
        self.on_error(
            UpstreamTimeoutError(
                f"engine {self._engine}: no event came within {seconds:g} s (timeouts.first_byte)"
            )
        )

    def _begins(self, chunk: bytes) -> bool:
        """Whether this is more than comments."""
        if self._events and _only_comments(chunk):
            return False
        self._begin()
        return True

    def _begin(self) -> None:
        """The engine has begun to answer."""
        self._begun = True
        if self._timer is not None:
            self._stop_timer()
        standing = self._traffic.standing
        if standing.breakers and not self._has_failed:
            back = standing.succeeded(self._engine, self._traffic.clock())
            if back:
                log.info("engine %s answers again; it gets all requests", self._engine)

    def _release(self) -> None:
        """Sends the head; from here on the answer is this engine's."""
        assert self._head is not None
        (status, headers, length), self._head = self._head, None
        decided = self._journey.on_head(status)
        if self._journey.changes_length:
            length = None
        extra = decided if self._explain else not_ours_alone(decided)
        if self._attempts > 1:
            extra = (*extra, (b"x-inferway-attempts", b"%d" % self._attempts))
        self._responder.start(status, [*headers, *extra], length)

    def _whole_events(self, chunk: bytes) -> bytes:
        """What can be passed on now: whole events, and no comments before the head is out."""
        if self._held:
            chunk, self._held = self._held + chunk, b""
        if not chunk.endswith((b"\n\n", b"\r\n\r\n")):
            border = _last_border(chunk)
            if border == 0 and len(chunk) > MAX_PARTIAL_EVENT_BYTES:
                return chunk
            chunk, self._held = chunk[:border], chunk[border:]
        if self._head is not None and _only_comments(chunk):
            self._held = chunk + self._held
            return b""
        return chunk

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def request_lines(request: Request, replaced: set[bytes] | frozenset[bytes] = frozenset()) -> bytes:
    """The header lines that travel on to the engine."""
    dropped = _DROPPED | replaced if replaced else _DROPPED
    headers = request.headers
    if request.fields.get(b"connection", b"close") not in PLAIN_CONNECTION:
        dropped = dropped | named_by_connection(headers)
    lines = header_block(headers, dropped)
    if _ROUTING_HINT.search(lines):
        headers = [h for h in headers if not h[0].startswith(ROUTING_PREFIXES)]
        lines = header_block(headers, dropped)
    return b"%bx-request-id: %b\r\n" % (lines, request.id)


def not_ours_alone(told: Headers) -> Headers:
    """What is the client's: to come back (x-session-token), what its answer does not keep, what of
    its request was changed; without how it was decided."""
    kept: list[tuple[bytes, bytes]] = []
    for name, value in told:
        if name == _EDITED:
            value = b", ".join([edit for edit in value.split(b", ") if edit not in _DECIDED_EDITS])
        elif name != UNENFORCED_HEADER and name.startswith(b"x-inferway-"):
            continue
        if value:
            kept.append((name, value))
    return tuple(kept)


def _is_event_stream(headers: Headers) -> bool:
    for name, value in headers:
        if name == b"content-type":
            return value.startswith(b"text/event-stream")
    return False


def _last_border(chunk: bytes) -> int:
    """Where the last whole event ends, 0 if none does."""
    lf, crlf = chunk.rfind(b"\n\n"), chunk.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)


def _only_comments(events: bytes) -> bool:
    return all(not line or line.startswith(b":") for line in events.splitlines())
