"""One request to an engine and its answer, as its two sides see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from inferway.errors import OurFaultError, UpstreamError, crash_report
from inferway.model import Headers

if TYPE_CHECKING:
    from inferway.upstream.connection import EngineConnection
    from inferway.upstream.pool import Origin


log = logging.getLogger("inferway.upstream")


class Sink(Protocol):
    """Takes an answer as it arrives: on_head, on_chunk..., then on_end or on_error, once.

    `on_end` has the last piece, which may be empty. `on_error` may come first, or instead of the
    end; it is never called by `send` itself, always later. After `UpstreamRequest.abort` nothing
    more is called. `headers` are end to end, and without Content-Length: that is `length` (None:
    unknown until the end)."""

    def on_head(self, status: int, headers: Headers, length: int | None) -> None: ...
    def on_chunk(self, chunk: bytes) -> None: ...
    def on_end(self, chunk: bytes) -> None: ...
    def on_error(self, error: UpstreamError) -> None: ...


# An engine has switched to the protocol that it was asked for: called with the headers of its 101,
# and what it has said in that protocol already. Returns what takes over the connection.
Switch = Callable[["EngineConnection", Headers, bytes], asyncio.Protocol]


class UpstreamRequest(msgspec.Struct, eq=False):
    """The sender's handle on a request under way. Its methods do nothing once it is over."""

    origin: Origin
    pieces: tuple[bytes, ...]  # head and body; kept until it is answered: it may be sent once more
    sink: Sink
    is_head: bool
    retried: bool = False
    connection: EngineConnection | None = None
    over: bool = False
    paused: bool = False
    is_encoded: bool = False  # the answer has a content coding, as gzip; known from its head on
    switch: Switch | None = None  # None: no other protocol is asked for
    was_read: bool = False  # maybe, by the engine, on a connection that it closed then
    is_waiting: bool = False  # the sink says so of a piece that tells nothing, as a comment

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the machine that answers: as it was asked for, and its address. It is known
        from the head on."""
        connection = self.connection
        peer = None if connection is None else connection.transport.get_extra_info("peername")
        host = self.origin.host
        return (host, peer[0]) if isinstance(peer, tuple) and peer else (host,)

    def give_to(self, sink: Sink) -> None:
        """Give `sink` what has not come yet."""
        self.sink = sink

    def pause(self) -> None:
        """Stop reading the answer; the engine's socket fills up and holds it back."""
        self.paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read the answer on after `pause`."""
        self.paused = False
        if self.connection is not None:
            self.connection.resume()

    def abort(self) -> None:
        """Close the engine's connection, which is how vLLM learns to stop generating."""
        if self.over:
            return
        self.over = True
        self.origin.pool.stats.aborted += 1
        if self.connection is not None:
            self.connection.drop()

    def finish(self, chunk: bytes) -> None:
        """End the exchange: the answer is complete with `chunk`."""
        self.over = True
        self.connection = None
        try:
            self.sink.on_end(chunk)
        except Exception as error:
            self.crashed(error)

    def crashed(self, error: Exception) -> None:
        """End the exchange, because the sink failed, which it must not. It is told so, that its
        client may not wait for what will never come."""
        self.over = True
        self.connection = None
        log.error(
            "an answer of engine %s was lost by a fault of the gateway: %s",
            self.origin.label,
            crash_report(error),
        )
        self.sink.on_error(OurFaultError("internal error; the gateway's log has the reason"))

    def fail(self, error: UpstreamError) -> None:
        """End the exchange: the answer will not come, or not to its end."""
        if self.over:
            return
        self.over = True
        self.connection = None
        self.origin.pool.stats.failed += 1
        self.sink.on_error(error)
