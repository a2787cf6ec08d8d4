"""A decision's ranked targets -> one answer for the client.

`forward` returns at once; the answer is pushed through as it arrives, and `journey.close` is
called exactly once, at its end. A suspended coroutine per request would cost as much as the
parsing does.

what happens                     nothing sent to the client yet     after that
cannot connect, connection lost  next target, else 502              error event (SSE), else abort
502 or 503 with targets left     next target                        -
nothing came in time             504                                error event (SSE), else abort
the client goes away             the engine's connection is closed, at once and always

The head is held back until the first piece of the body that is more than an SSE comment, but
no longer than `hold_head` seconds: vLLM answers 200 before prefill, so that an engine that is
lost during prefill is replaced unseen.

SSE is passed on in whole events, so that an error event can always follow. It is not followed
by `[DONE]`: OpenAI's clients raise APIError at the error itself, and to all others `[DONE]`
would say that the answer is whole. The bytes of the body are not changed.
"""

from __future__ import annotations

import asyncio
import re
from typing import Protocol

from inferway.errors import NoEndpointError, UpstreamError, UpstreamTimeoutError
from inferway.frontends.http.message import Request
from inferway.frontends.http.responder import Responder
from inferway.model import Decision, Headers, Target
from inferway.openai_api.responses import error_event
from inferway.upstream.exchange import Exchange
from inferway.upstream.headers import HOP_BY_HOP, REWRITTEN, header_block, named_by_connection
from inferway.upstream.pool import Pool

MAX_ATTEMPTS = 3
HOLD_HEAD_SECONDS = 30.0
MAX_PARTIAL_EVENT_BYTES = 64 * 1024
_TRY_ANOTHER = frozenset({502, 503})

# What a client says here would steer the fleet (field notes 3.5); ours to say, or nobody's.
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
        b"x-went-into-resp-headers",
    }
)
ROUTING_PREFIXES = (b"x-inferway-", b"x-gateway-", b"x-llm-d-")
_ROUTING_HINT = re.compile(rb"x-(?:inferway|gateway|llm-d)-")  # maybe in a value
_DROPPED = HOP_BY_HOP | REWRITTEN | ROUTING_HEADERS | {b"x-request-id"}


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


def forward(
    request: Request,
    responder: Responder,
    journey: Journey,
    decision: Decision,
    pool: Pool,
    *,
    hold_head: float = HOLD_HEAD_SECONDS,
    explain: bool = True,
) -> None:
    """Sends `request` to the best target that answers, and its answer to the client; with the
    headers that say how it was decided if `explain`.

    Raises NoEndpointError, with the journey closed, if the decision has no target.
    """
    if responder.ended:
        journey.close("client_gone")
        return
    if not decision.targets:
        journey.close("error")
        raise NoEndpointError("the decision has no target")
    forwarding = _Forwarding(
        request, responder, journey, decision.targets, pool, hold_head, explain
    )
    responder.attach(forwarding)
    forwarding.attempt()


class _Forwarding:
    """Sink of the engine's answer, source of the client's (see the module)."""

    __slots__ = (
        "_attempts",
        "_events",
        "_exchange",
        "_explain",
        "_head",
        "_held",
        "_hold_seconds",
        "_journey",
        "_lines",
        "_paused",
        "_pool",
        "_request",
        "_responder",
        "_targets",
        "_timer",
    )

    def __init__(
        self,
        request: Request,
        responder: Responder,
        journey: Journey,
        targets: tuple[Target, ...],
        pool: Pool,
        hold_seconds: float,
        explain: bool,
    ) -> None:
        self._request = request
        self._responder = responder
        self._journey = journey
        self._targets = targets
        self._pool = pool
        self._hold_seconds = hold_seconds
        self._explain = explain
        self._lines = request_lines(request)
        self._attempts = 0
        self._exchange: Exchange | None = None
        self._paused = False
        self._head: tuple[int, Headers, int | None] | None = None  # held back
        self._held = b""  # body bytes held back: comments, or the start of an event
        self._events = False  # the answer is an SSE stream
        self._timer: asyncio.TimerHandle | None = None

    def attempt(self) -> None:
        """Sends the request to the next target."""
        target = self._targets[self._attempts]
        self._attempts += 1
        self._head, self._held = None, b""
        request, endpoint = self._request, target.endpoint
        extra = self._journey.attempt(target)
        lines = self._lines
        if extra:
            names = {name for name, _ in extra}
            lines = request_lines(request, names) + header_block(extra)
        self._responder.engine = endpoint.engine
        self._exchange = exchange = self._pool.send(
            endpoint.url, request.method, request.target, lines, self._journey.body, self
        )
        if self._paused:
            exchange.pause()

    # ----------------------------------------------------------------------- upstream's Sink

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        if status in _TRY_ANOTHER and self._may_try_another():
            assert self._exchange is not None
            self._exchange.abort()
            self.attempt()
            return
        self._head = (status, headers, length)
        self._events = length is None and _is_event_stream(headers)
        if self._events:
            self._timer = self._pool.loop.call_later(self._hold_seconds, self._hold_no_more)

    def on_chunk(self, chunk: bytes) -> None:
        if self._events:
            chunk = self._whole_events(chunk)
            if not chunk:
                return
        if self._head is not None:
            self._release()
        chunk = self._journey.on_chunk(chunk)
        if chunk:
            self._responder.write(chunk)

    def on_end(self, chunk: bytes) -> None:
        if self._held:
            chunk, self._held = self._held + chunk, b""
        if self._head is not None:
            self._release()
        if chunk:
            chunk = self._journey.on_chunk(chunk)
        self._exchange = None
        self._responder.end(chunk + self._journey.on_end())
        self._journey.close("ok")

    def on_error(self, error: UpstreamError) -> None:
        self._stop_timer()
        self._exchange = None
        responder = self._responder
        if not responder.started:
            if not isinstance(error, UpstreamTimeoutError) and self._may_try_another():
                self.attempt()
                return
            responder.send_error(error)
        elif self._events and responder.can_say_more:
            responder.end(error_event(error))
        else:
            responder.abort()
        self._journey.close("upstream_error")

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
        self._journey.close("client_gone")

    # ---------------------------------------------------------------------------------------

    def _may_try_another(self) -> bool:
        return self._attempts < min(MAX_ATTEMPTS, len(self._targets))

    def _hold_no_more(self) -> None:
        if self._head is not None:
            self._release()
            self._responder.flush()

    def _release(self) -> None:
        """Sends the head; from here on the answer is this engine's."""
        if self._timer is not None:
            self._stop_timer()
        assert self._head is not None
        (status, headers, length), self._head = self._head, None
        decided = self._journey.on_head(status)
        if self._journey.changes_length:
            length = None
        extra = decided if self._explain else _not_ours_alone(decided)
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
    if len(request.fields.get(b"connection", b"")) > len(b"keep-alive"):
        dropped = dropped | named_by_connection(headers)
    lines = header_block(headers, dropped)
    if _ROUTING_HINT.search(lines):
        headers = [h for h in headers if not h[0].startswith(ROUTING_PREFIXES)]
        lines = header_block(headers, dropped)
    return b"%bx-request-id: %b\r\n" % (lines, request.id)


def _not_ours_alone(told: Headers) -> Headers:
    """What a client needs to come back (x-session-token), without how it was decided."""
    return tuple(header for header in told if not header[0].startswith(b"x-inferway-"))


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
