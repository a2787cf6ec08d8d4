"""A listener for calls: a port, its methods, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from inferway.http.listening import Listener
from inferway.loop_turns import LoopTurns
from inferway_llmd.ext_proc.wire.call import Open
from inferway_llmd.ext_proc.wire.connection import Connection

log = logging.getLogger("inferway.picker")

# A proxy whose machine has gone says nothing: so many seconds of silence, then so many tries.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Credentials(Protocol):
    """The certificates of our side of TLS (ext_proc.tls)."""

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context, the same object always."""

    def refresh(self) -> None:
        """A connection is about to be made: the files may have changed."""


class GrpcServer:
    """`methods`: path -> who opens calls of it. `start`, then `port`; `stop` ends it."""

    def __init__(
        self,
        methods: Mapping[bytes, Open],
        *,
        host: str,
        port: int,
        credentials: Credentials | None = None,
        max_message: int = 4 << 20,
        handshake_seconds: float = 11.0,
        reuse_port: bool = False,
    ) -> None:
        self._methods = methods
        self._credentials = credentials
        self._max_message = max_message
        self._handshake_seconds = handshake_seconds
        self._warned = False
        context = None if credentials is None else credentials.context
        self._listener = Listener(host, port, context, reuse_port=reuse_port)
        self._connections: set[Connection] = set()
        self._turns = LoopTurns()
        self._empty = asyncio.Event()

    @property
    def port(self) -> int:
        return self._listener.port

    async def start(self) -> None:
        """Raises ConfigError when the address cannot be had."""
        await self._listener.open(self._connection)

    async def stop(self, drain_seconds: float) -> None:
        """Takes no more calls; those under way have so long."""
        self._listener.close()
        for connection in list(self._connections):
            connection.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                await self._until_empty()
        for connection in list(self._connections):
            connection.abort()
        await self._until_empty()
        await self._listener.wait_closed()

    async def _until_empty(self) -> None:
        self._empty.clear()
        if self._connections:
            await self._empty.wait()

    def _connection(self) -> Connection:
        connection = Connection(
            *(self._methods, self._max_message, self._opened, self._closed), turns=self._turns
        )
        if self._credentials is not None:
            self._credentials.refresh()
        loop = asyncio.get_running_loop()
        loop.call_later(self._handshake_seconds, self._look_at, connection)
        return connection

    def _look_at(self, connection: Connection) -> None:
        """Who has said nothing by now is none that asks. asyncio says nothing of a handshake that
        has failed, and the proxy only that we are not there."""
        if connection.was_made:
            connection.greeted_or_closed()
        elif not self._warned:
            self._warned = True
            log.warning(
                "a connection to port %d has come to no TLS handshake; if the proxy speaks none,"
                " say --secure-serving=false (said once)",
                self.port,
            )

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        _keep_alive(connection.socket)

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()


def _keep_alive(found: socket.socket | None) -> None:
    """Finds out that the other side has gone without a word."""
    if found is None or found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
