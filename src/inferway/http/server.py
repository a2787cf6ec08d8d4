"""Listens, hands requests to the handler, looks after deadlines, and ends gracefully."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Container, Coroutine, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from inferway.config import LimitSettings, TimeoutSettings
from inferway.errors import (
    ClientGoneError,
    InferwayError,
    ShuttingDownError,
    crash_report,
    panic_as_error,
)
from inferway.extension import Tap, is_probe
from inferway.http.connection import ClientConnection
from inferway.http.content_coding import BodyDecoder
from inferway.http.eager import resumed
from inferway.http.ends import BodySource
from inferway.http.listening import Certificate, Listener
from inferway.http.message import CONTENT_ENCODING, REALTIME, BodyMemory, KnownHead, Request
from inferway.http.responder import Responder
from inferway.loop_turns import LoopTurns
from inferway.metrics import Family, Row, counter, gauge, table
from inferway.tasks import next_multiple
from inferway.telemetry.tracing import TRACEPARENT, TRACESTATE, Tracing
from inferway.upstream.headers import KnownHeads

# Answers, or attaches a source to the Responder and returns. What it raises is answered: an
# InferwayError as what it is, the rest as 500. It is called in the reader's callback and runs
# there up to its first real wait, without a task of its own: what needs one before that
# (asyncio.timeout, wait_for, current_task) awaits asyncio.sleep(0) first.
Handler = Callable[[Request, Responder], Coroutine[Any, Any, None]]


_SWEEP_SECONDS = 1.0
_LAST_WORDS_SECONDS = 1.0  # that clients have to read why their streams end at shutdown
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class HttpStats:
    """Counters since start, and `open` and `answering`, read by the metrics."""

    accepted: int = 0
    over_limit: int = 0  # connections closed because there were too many
    open: int = 0
    requests: int = 0
    answering: int = 0
    refused: int = 0  # were not HTTP, or over a limit
    timed_out: int = 0
    crashed: int = 0  # the handler raised what it should not
    body_bytes: int = 0  # of answers


_FIGURES: tuple[Row[HttpStats], ...] = (
    (gauge, "http_connections", "Client connections that are open now.", lambda s: s.open),
    (gauge, "http_answering", "Requests that are being answered now.", lambda s: s.answering),
    (
        counter,
        "http_refused",
        "Requests that were refused because they were not HTTP or exceeded a limit.",
        lambda s: s.refused,
    ),
    (
        counter,
        "http_timed_out",
        "Client connections that were closed because the client was silent for too long.",
        lambda s: s.timed_out,
    ),
    (
        counter,
        "http_crashed",
        "Requests whose handler failed because of a fault of the gateway; the log has the"
        " traceback.",
        lambda s: s.crashed,
    ),
)


class HttpServer:
    """`start`, then `port` and `url`; `stop` ends it. Everything runs in one loop. `host` may be
    `unix:/path`; with a certificate it speaks TLS alone. `awaits_body`: whether the handler does
    not refuse a request for its head alone; the body of one that it refuses is not received."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: LimitSettings | None = None,
        timeouts: TimeoutSettings | None = None,
        tap: Tap | None = None,
        awaits_body: Callable[[Request], bool] = lambda _: True,
        certificate: Certificate | None = None,
        reuse_port: bool = False,
    ) -> None:
        self.handler = handler
        self._certificate = certificate
        tls = certificate.context if certificate else None
        self._listener = Listener(host, port, tls, reuse_port=reuse_port)
        self.limits = limits or LimitSettings()
        self.timeouts = timeouts or TimeoutSettings()
        self.bodies = BodyMemory(self.limits.bodies_bytes)
        self.heads = KnownHeads[KnownHead]()
        self._decoder = BodyDecoder()
        self.awaits_body = awaits_body
        self.turns = LoopTurns()
        self.stats = HttpStats()
        self.statuses: dict[int, int] = {}  # status -> answers
        self.date = b""
        self.disconnect_checks = (
            0  # of so many requests to come, Responder.check_client looks for the client
        )
        self._tap = tap
        self._connections: set[ClientConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._id_prefix = os.urandom(8).hex().encode()
        self._id_numbers = itertools.count()
        self._stopping = False

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of clients and their requests."""
        yield counter(
            "http_answers",
            "Answers to clients of all paths, by HTTP status.",
            ["status"],
            {(str(status),): n for status, n in self.statuses.items()},
        )
        yield from table(_FIGURES, [], {(): self.stats})

    async def start(self) -> None:
        """Listen at the server's address. Raises ConfigError when the address cannot be had."""
        self.loop = asyncio.get_running_loop()
        self.time = self.loop.time
        await self._listener.open(lambda: ClientConnection(self))
        timeouts = self.timeouts
        self._sweep_seconds = min(
            _SWEEP_SECONDS,
            timeouts.keep_alive / 4,
            timeouts.request_body / 4,
            timeouts.idle_stream / 4,
            timeouts.stream_keep_alive / 4 or _SWEEP_SECONDS,
        )
        self._sweep()

    @property
    def port(self) -> int:
        """The port of this server; 0 on a Unix socket."""
        return self._listener.port

    @property
    def url(self) -> str:
        """The URL of this server, as a client writes it."""
        return self._listener.url

    def hold_to(self, limits: LimitSettings, timeouts: TimeoutSettings) -> None:
        """Hold clients to these from now on."""
        self.limits, self.timeouts = limits, timeouts
        self.bodies.limit = limits.bodies_bytes

    def check_tls(self) -> None:
        """Raises ConfigError if the certificate in its files cannot be used."""
        if self._certificate is not None:
            self._certificate.check()

    def reload_tls(self) -> None:
        """New connections see the certificate that is in its files now. Raises ConfigError, and
        then goes on with the one it had."""
        if self._certificate is not None:
            self._certificate.reload()

    def stop_accepting(self) -> None:
        """Takes no more connections; those that are open go on."""
        self._stopping = True
        self._listener.close()

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Accepts no more, lets answers under way finish for so long, then closes them."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.drain()
        if drain_seconds is None:
            drain_seconds = self.timeouts.drain
        try:
            async with asyncio.timeout(drain_seconds):
                await self._wait_until_empty()
        except TimeoutError:
            await self._shut_down()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.wait_closed()
        self._timer.cancel()
        if self._tap is not None:
            self._tap.flush()

    def buffered_bytes(self) -> int:
        """Return the number of bytes of answers that wait here for clients to read them."""
        return sum([connection.buffered_bytes for connection in self._connections])

    def sources(self) -> list[BodySource]:
        """Return the sources of the answers that are under way."""
        found = [connection.source for connection in self._connections]
        return [source for source in found if source is not None]

    def cut(self) -> None:
        """Close every connection as it is, without the wait of `stop`."""
        self._warn_of_cut()
        for connection in list(self._connections):
            connection.cut("shutdown")

    async def _shut_down(self) -> None:
        """Ends the answers under way: clients of streams are told why, if they read."""
        self._warn_of_cut()
        error = ShuttingDownError(
            "the gateway is shutting down, and running answers have had their time"
            " (timeouts.drain); ask again"
        )
        for connection in list(self._connections):
            connection.shut_down(error)
        try:
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._wait_until_empty()
        except TimeoutError:
            for connection in list(self._connections):
                connection.cut("shutdown")
            await self._wait_until_empty()

    def _warn_of_cut(self) -> None:
        if self.stats.answering:
            _log.warning(
                "%d answers were cut off at shutdown (timeouts.drain)", self.stats.answering
            )

    async def _wait_until_empty(self) -> None:
        self._empty.clear()
        if self._connections:
            await self._empty.wait()

    # ------------------------------------------------------------------- for the connections

    def opened(self, connection: ClientConnection) -> None:
        """Count a client that has connected, or abort the connection if there are too many."""
        self.stats.accepted += 1
        self.stats.open += 1
        self._connections.add(connection)
        if self._stopping or len(self._connections) > self.limits.connections:
            self.stats.over_limit += 1
            connection.abort()

    def lost(self, connection: ClientConnection) -> None:
        """Count out a connection that has ended."""
        self.stats.open -= 1
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def new_request_id(self) -> bytes:
        """Return a unique id, which sorts in order of arrival within one process."""
        return b"%b-%x" % (self._id_prefix, next(self._id_numbers))

    def carries(self, request: Request) -> bool:
        """Return whether the request may switch its connection to the WebSocket protocol."""
        return request.method == "GET" and request.path == REALTIME

    def serve(self, request: Request, responder: Responder) -> None:
        """Runs the handler to its first wait, and the rest, if there is any, as a task."""
        self.stats.requests += 1
        self.stats.answering += 1
        plain = CONTENT_ENCODING not in request.fields
        coroutine = (self.handler if plain else self._handle_encoded)(request, responder)
        try:
            waited = coroutine.send(None)
        except StopIteration:
            if responder.source is None and not responder.ended:
                self._unanswered(responder)
        except BaseException as error:
            self._raised(panic_as_error(error), responder)
        else:
            task = self.loop.create_task(self._finish(coroutine, waited, responder))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def answered(self, responder: Responder) -> None:
        """Count an answer that has ended, one way or another, and put it aside for extensions."""
        stats = self.stats
        stats.answering -= 1
        stats.body_bytes += responder.body_bytes
        status = responder.status
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if self._tap is not None:
            self._tap.add(responder.as_ended())

    # ------------------------------------------------------------------------------- handlers

    async def _handle_encoded(self, request: Request, responder: Responder) -> None:
        """Call the handler once the body is as it was before the client compressed it."""
        if request.body and self.awaits_body(request):
            coding = request.fields[CONTENT_ENCODING]
            body = await self._decoder.decoded(request.body, coding, self.limits.body_bytes)
            if responder.ended:
                raise ClientGoneError("the client has gone")
            request.replace_body(body)
        await self.handler(request, responder)

    async def _finish(
        self, coroutine: Coroutine[Any, Any, None], waited: object, responder: Responder
    ) -> None:
        try:
            await resumed(coroutine, waited)
        except BaseException as error:
            self._raised(panic_as_error(error), responder)
        else:
            if responder.source is None and not responder.ended:
                self._unanswered(responder)

    def _unanswered(self, responder: Responder) -> None:
        self._raised(RuntimeError("the handler returned without an answer"), responder)

    def _raised(self, error: Exception, responder: Responder) -> None:
        if not isinstance(error, InferwayError):
            self.stats.crashed += 1
            request = responder.request
            _log.error(
                "the request %s %s failed by a fault of the gateway: %s",
                request.method,
                request.path,
                crash_report(error),
            )
            error = InferwayError("internal error; the gateway's log has the reason")
        if responder.started:
            responder.cut = "error"
            responder.abort()
        elif not responder.ended:
            responder.send_error(error)

    def _sweep(self) -> None:
        now = self.time()
        self.date = formatdate(usegmt=True).encode()
        for connection in [c for c in self._connections if c.deadline <= now]:
            connection.timed_out()
        if self._tap is not None:
            self._tap.flush()
        self._timer = self.loop.call_at(next_multiple(now, self._sweep_seconds), self._sweep)


def traced(handler: Handler, tracing: Tracing, known: Container[str]) -> Handler:
    """Return a handler that begins a span for each request and then is `handler`; the server ends
    it, if `tracing` is one of its logs. Paths that are not `known` name no span."""

    async def begin_and_handle(request: Request, responder: Responder) -> None:
        fields = request.fields
        if not is_probe(request.path, fields.get(b"user-agent", b"")):
            seconds = time.perf_counter() - request.started
            responder.span = span = tracing.begin(
                *(request.method, request.path, request.request_id, fields.get(TRACEPARENT)),
                seconds,
                is_known=request.path in known,
            )
            _tell(request, span.traceparent, drops_state=span.is_root)
        await handler(request, responder)

    return begin_and_handle


def _tell(request: Request, traceparent: bytes, *, drops_state: bool) -> None:
    """Whoever gets this request knows of our span; `tracestate` is its parent's, or nobody's."""
    dropped = {TRACEPARENT, TRACESTATE} if drops_state else {TRACEPARENT}
    request.headers = [h for h in request.headers if h[0] not in dropped]
    request.headers.append((TRACEPARENT, traceparent))
    request.fields = {n: v for n, v in request.fields.items() if n not in dropped}
    request.fields[TRACEPARENT] = traceparent
