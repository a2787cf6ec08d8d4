"""Connections to engines: one stack of idle ones per engine, the last used on top.

No limit and no queue: how much an engine gets is decided before (scheduling, flow control).
One coarse timer looks after every deadline of every connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from inferway.config import TimeoutSettings, engine_address, unix_path
from inferway.errors import ConfigError, EngineLostError, UpstreamError
from inferway.loop_turns import LoopTurns
from inferway.metrics import Family, Row, counter, table
from inferway.model import Headers
from inferway.tasks import next_multiple
from inferway.upstream.connection import NEVER, EngineConnection
from inferway.upstream.exchange import Sink, UpstreamRequest
from inferway.upstream.headers import KnownHeads

log = logging.getLogger("inferway.upstream")

# A host that has gone without a word, or is cut off, is found out by its kernel's silence: with the
# defaults of Linux after two hours, and what was sent to it after 15 minutes.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
# How long what was sent may be unacknowledged, or wait for room at an engine that is busy with what
# it has read: it may take that long over a prompt of megabytes.
_USER_TIMEOUT_MS = 60_000

# uvicorn, which serves vLLM, closes connections that were idle for 5 s.
IDLE_KEEP_ALIVE_SECONDS = 4.0
_SWEEP_SECONDS = 1.0
_FRESH_SECONDS = 1.0  # an engine would have to stand still for seconds to close such a connection
STOOD_STILL_SECONDS = 1.0  # a timer that rings so late was not the engine's fault
_LATE_SECONDS = 0.05  # a timer that rings so late was slept through
_MOST_WARNED_OF = 1000  # engines; they come and go
_COPY_LIMIT = 16 * 1024  # a larger body is written beside its head instead of behind it
_SHUTTING_DOWN = "the gateway is shutting down"
_BODILESS_METHODS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


@dataclass(slots=True)
class PoolStats:
    """Counters since start, and `open`, read by the metrics."""

    sent: int = 0
    connected: int = 0
    retried: int = 0  # sent once more because a kept-alive connection had died
    failed: int = 0
    aborted: int = 0
    open: int = 0

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of requests to engines."""
        return table(_FIGURES, [], {(): self})


_FIGURES: tuple[Row[PoolStats], ...] = (
    (
        counter,
        "upstream_sent",
        "Requests that were sent to engines, further tries included.",
        lambda stats: stats.sent,
    ),
    (
        counter,
        "upstream_failed",
        "Requests to engines that got no complete answer.",
        lambda stats: stats.failed,
    ),
    (
        counter,
        "upstream_aborted",
        "Requests to engines that the gateway ended because the client left or a timeout passed.",
        lambda stats: stats.aborted,
    ),
    (
        counter,
        "upstream_connects",
        "Connections that were opened to engines.",
        lambda stats: stats.connected,
    ),
)


class Pool:
    """Sends requests to engines. Use from one running loop; `close` when done."""

    def __init__(
        self,
        timeouts: TimeoutSettings | None = None,
        *,
        idle_keep_alive: float = IDLE_KEEP_ALIVE_SECONDS,
        tls: ssl.SSLContext | None = None,
        on_closed: Callable[[str], None] | None = None,
    ) -> None:
        """`tls` says who is trusted to be an https engine; else whom the system trusts.
        `on_closed` is called with the URL of an engine that has closed an idle connection."""
        self.timeouts = timeouts or TimeoutSettings()
        self.idle_keep_alive = idle_keep_alive
        self.stats = PoolStats()
        self.loop = asyncio.get_running_loop()
        self.time = self.loop.time
        self._swept = self._swept_before = monotonic()
        self._tls = tls
        self.on_closed = on_closed
        self.turns = LoopTurns()
        self.heads = KnownHeads[tuple[int, Headers]]()
        self._origins: dict[str, Origin] = {}
        self._encoding: set[str] = set()  # engines whose answers have a content coding
        self._sweep_seconds = min(
            _SWEEP_SECONDS,
            idle_keep_alive / 4,
            self.timeouts.first_byte / 4,
            self.timeouts.idle_stream / 4,
        )
        self._timer = self._next_sweep()

    def send(
        self,
        url: str,
        method: str,
        target: bytes,
        headers: bytes,
        body: bytes,
        sink: Sink,
        *,
        once: bool = False,
    ) -> UpstreamRequest:
        """Start one exchange with the engine at `url` (EngineSettings.http_url).

        `headers` is a block of lines (headers.header_block) without Host, framing and
        hop-by-hop fields. `once`: it must not be sent a second time, so that a connection that the
        engine may be about to close is not for it. Never raises for what the engine does: `sink`
        hears of it, later.
        """
        origin = self._origins.get(url)
        if origin is None:
            origin = self._origins[url] = Origin(self, url)
        if origin.prefix:
            target = origin.prefix + target
        if body or method not in _BODILESS_METHODS:
            head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % (
                method.encode(), target, origin.authority, headers, len(body),
            )  # fmt: skip
        else:
            head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (
                method.encode(), target, origin.authority, headers,
            )  # fmt: skip
        pieces = (head + body,) if len(body) <= _COPY_LIMIT else (head, body)
        self.stats.sent += 1
        exchange = UpstreamRequest(origin, pieces, sink, method == "HEAD", once)
        origin.send(exchange)
        return exchange

    @property
    def tls(self) -> ssl.SSLContext:
        """The context for https engines. Their names are checked, whoever signed for them."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def idle(self, url: str) -> int:
        """Return how many idle connections to `url` are kept."""
        origin = self._origins.get(url)
        return len(origin.idle) if origin else 0

    async def close(self) -> None:
        """Drop every connection; exchanges under way fail."""
        self._timer.cancel()
        while self._origins:  # what fails may be tried at another engine
            _, origin = self._origins.popitem()
            await origin.close()

    def warn_of_coding(self, engine: str, coding: bytes) -> None:
        """Log once that the engine's answers come compressed, which was not asked for."""
        if engine in self._encoding:
            return
        if len(self._encoding) >= _MOST_WARNED_OF:
            self._encoding.clear()
        self._encoding.add(engine)
        log.warning(
            "engine %s sends its answers with content-encoding %r, although only identity is asked"
            " for; they pass to clients as they are: no usage is counted, no model renamed, no"
            " shape judged, and no stream continued; turn off compression between the gateway and"
            " the engine",
            engine,
            coding[:40].decode("latin-1"),
        )

    @property
    def unread(self) -> float:
        """The seconds for which bytes that were just read may have waited here at most: normally
        one or two, but longer if the whole process stood still."""
        return monotonic() - self._swept_before  # not the loop's time, which stands in between

    def _sweep(self) -> None:
        now = self.time()
        self._swept_before, self._swept = self._swept, monotonic()
        stood_still = self._swept - self._swept_before > self._sweep_seconds + STOOD_STILL_SECONDS
        for url, origin in list(self._origins.items()):
            for connection in [c for c in origin.connections if c.deadline <= now]:
                # while this process stood still, nothing was read: that comes now
                if connection.is_idle or not stood_still:
                    connection.timed_out()
            if origin.is_unused:  # pods come and go, each with an address of its own
                del self._origins[url]
        self._timer = self._next_sweep()

    def _next_sweep(self) -> asyncio.TimerHandle:
        return self.loop.call_at(next_multiple(self.time(), self._sweep_seconds), self._sweep)


def watch_host(sock: socket.socket) -> None:
    """Have the connection end if its other end's kernel is silent."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*_KEEP_ALIVE.items(), ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS)):
        option = getattr(socket, name, None)  # macOS has some of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Origin:
    """One engine's connections, idle and busy. Written by the pool and the connections."""

    __slots__ = ("_connecting", "authority", "connections", "host", "idle", "label", "path",
                 "pool", "port", "prefix", "tls", "url")  # fmt: skip

    def __init__(self, pool: Pool, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"engine {url!r}: expected http://HOST:PORT or https://HOST:PORT")
        self.pool = pool
        self.url = url
        self.path = unix_path(parts.netloc)
        self.label = self.path or engine_address(url)
        self.prefix = parts.path.rstrip("/").encode()  # of the path of each request
        self.authority = b"localhost" if self.path else parts.netloc.encode()
        self.host = parts.hostname
        self.tls = pool.tls if parts.scheme == "https" else None
        self.port = parts.port or (443 if self.tls else 80)
        self.idle: list[EngineConnection] = []
        self.connections: set[EngineConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def is_unused(self) -> bool:
        """True if no connection is kept or made here."""
        return not self.connections and not self._connecting

    def send(self, exchange: UpstreamRequest) -> None:
        """Send an exchange on the most recently used idle connection, else on a new one. After a
        pause of this process, the sweep has not yet closed those that are too old."""
        pool, idle = self.pool, self.idle
        kept = max(0.0, pool.idle_keep_alive - _FRESH_SECONDS) if exchange.retried else 0.0
        oldest = pool.time() + kept
        while idle and idle[-1].deadline > oldest:
            connection = idle.pop()
            if not connection.transport.is_closing():
                connection.send(exchange)
                return
        self.connect(exchange)

    def connect(self, exchange: UpstreamRequest) -> None:
        """Send an exchange on a new connection."""
        task = self.pool.loop.create_task(self._connect(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, exchange: UpstreamRequest) -> None:
        try:
            connection = await self._open_patiently()
        except asyncio.CancelledError:
            exchange.fail(UpstreamError(f"engine {self.label}: {_SHUTTING_DOWN}"))
            raise
        except TimeoutError:
            seconds = self.pool.timeouts.connect
            exchange.fail(
                UpstreamError(
                    f"engine {self.label}: no connection within {seconds:g} s (timeouts.connect)"
                )
            )
        except OSError as e:
            # an engine that has just closed a connection, and now takes none, has ended
            kind = EngineLostError if exchange.was_read else UpstreamError
            error = kind(f"engine {self.label}: cannot connect: {e}")
            error.__cause__ = e
            exchange.fail(error)
        else:
            if connection.transport.is_closing():
                exchange.fail(UpstreamError(f"engine {self.label} closed the connection at once"))
            elif exchange.over:  # aborted meanwhile; the connection is as good as new
                self.idled(connection)
            else:
                connection.send(exchange)

    async def _open_patiently(self) -> EngineConnection:
        """As `_open`; a timeout that this process has slept through is not the engine's: what came
        meanwhile was not read before the time was over."""
        while True:
            due = self.pool.time() + self.pool.timeouts.connect
            try:
                return await self._open()
            except TimeoutError:
                if self.pool.time() < due + _LATE_SECONDS:
                    raise

    async def _open(self) -> EngineConnection:
        loop, pool = self.pool.loop, self.pool
        connection = EngineConnection(self)
        try:
            async with asyncio.timeout(pool.timeouts.connect):
                if self.path is not None:
                    await loop.create_unix_connection(lambda: connection, self.path)
                else:
                    await loop.create_connection(
                        *(lambda: connection, self.host, self.port), ssl=self.tls
                    )
        except BaseException:
            if connection in self.connections:  # made at that very moment, and uvloop forgets it
                connection.drop()
                self.lost(connection)  # it may have closed it already, without a word
            raise
        pool.stats.connected += 1
        if self.path is None:
            watch_host(connection.transport.get_extra_info("socket"))
        return connection

    def opened(self, connection: EngineConnection) -> None:
        """Count a connection whose socket is open now."""
        self.connections.add(connection)
        self.pool.stats.open += 1

    def idled(self, connection: EngineConnection) -> None:
        """Keep a connection whose answer is complete for the next exchange."""
        connection.deadline = self.pool.time() + self.pool.idle_keep_alive
        self.idle.append(connection)

    def lost(self, connection: EngineConnection) -> None:
        """Forget a connection whose socket is closed. Only the first call counts."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.pool.stats.open -= 1
        if connection in self.idle:
            self.idle.remove(connection)
            is_closed_here = connection.deadline == NEVER
            if self.pool.on_closed is not None and not is_closed_here:
                self.pool.on_closed(self.url)

    async def close(self) -> None:
        """Drop connections, and attempts to connect."""
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self.connections):
            connection.fail(UpstreamError(f"engine {self.label}: {_SHUTTING_DOWN}"))
