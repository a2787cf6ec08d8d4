"""Endpoints of ZeroMQ sockets: connect to one, and accept connections at one."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

from inferway.fleet.zmtp import CONNECT_SECONDS, Owner, ZmtpConnection, ZmtpError

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds before another attempt to connect
MOST_ACCEPTED = 64  # connections to a socket that is bound

_IPC = "ipc://"
_TCP = re.compile(r"tcp://(?P<host>\*|\[[^\]]*\]|[^:/]+):(?P<port>\d+|\*)")


async def connect(endpoint: str, connection: ZmtpConnection) -> None:
    """Connect it, and return when it is up; one that cannot be is closed. Raises OSError,
    ZmtpError, or ValueError for an endpoint that is neither tcp://HOST:PORT nor ipc://PATH."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if endpoint.startswith(_IPC):
                await loop.create_unix_connection(lambda: connection, _path(endpoint))
            else:
                await loop.create_connection(lambda: connection, *_address(endpoint))
        await connection.up
    finally:
        if not connection.is_up:
            connection.close()


async def keep_connected(
    endpoint: str,
    owner: Owner,
    make: Callable[[], ZmtpConnection],
    longest_pause: float = LONGEST_PAUSE,
) -> None:
    """Connect to the endpoint, again and again when that fails or the connection ends. `make`:
    a connection of the owner. Raises ValueError as `connect` does."""
    pause = FIRST_PAUSE
    while True:
        connection = make()
        try:
            await connect(endpoint, connection)
            pause = FIRST_PAUSE
            await connection.down
        except (ConnectionError, TimeoutError, ZmtpError):
            pass  # nobody is there yet, or the owner was told why it is refused
        except OSError as e:
            owner.refused(str(e))
        finally:
            connection.close()
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # so that not all come at once
        pause = min(2 * pause, longest_pause)


def check_endpoint(endpoint: str) -> None:
    """Raises ValueError for one that is neither tcp://HOST:PORT nor ipc://PATH."""
    if not endpoint.startswith(_IPC):
        _address(endpoint)


def bound(endpoint: str) -> socket.socket:
    """Return a socket that listens at tcp://HOST:PORT, where both may be `*`, or at ipc://PATH,
    where another one may have left its socket. Raises OSError if that cannot be done, ValueError
    for another endpoint."""
    at: str | tuple[str, int]
    if endpoint.startswith(_IPC):
        family, at = socket.AF_UNIX, _path(endpoint)
        if Path(at).is_socket():
            Path(at).unlink()
    else:
        host, port = _address(endpoint)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        at = ("" if host == "*" else host, port)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(at)
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


class _Door(asyncio.Protocol):
    """The first protocol of an accepted connection: puts a ZmtpConnection in its own place, or
    closes the connection before a byte is read."""

    def __init__(self, let_in: Callable[[str], ZmtpConnection | None]) -> None:
        self._let_in = let_in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast(asyncio.Transport, transport)
        peer = opened.get_extra_info("peername")
        connection = self._let_in(peer[0] if isinstance(peer, tuple) else "")
        if connection is None:
            opened.abort()
            return
        opened.set_protocol(connection)
        connection.connection_made(opened)


async def accept(
    listening: socket.socket,
    make: Callable[[], ZmtpConnection],
    admits: Callable[[str], bool] = lambda _: True,
    most: int = MOST_ACCEPTED,
) -> None:
    """Accept connections until this is cancelled, then close the connections and the socket.
    Connections beyond `most`, and from addresses that `admits` refuses, are closed at once."""
    accepted: set[ZmtpConnection] = set()

    def let_in(address: str) -> ZmtpConnection | None:
        if len(accepted) >= most or not admits(address):
            return None
        connection = make()
        accepted.add(connection)
        connection.down.add_done_callback(lambda _: accepted.discard(connection))
        return connection

    loop, is_path = asyncio.get_running_loop(), listening.family == socket.AF_UNIX
    create = loop.create_unix_server if is_path else loop.create_server
    path = listening.getsockname() if is_path else ""
    server = await create(lambda: _Door(let_in), sock=listening)
    try:
        await server.serve_forever()
    finally:
        server.close()
        closing = [connection.down for connection in accepted]
        for connection in list(accepted):
            connection.close()
        if closing:
            await asyncio.wait(closing, timeout=CONNECT_SECONDS)
        if path and isinstance(path, str):  # an abstract name is bytes, and goes by itself
            Path(path).unlink(missing_ok=True)


def endpoint_of(listening: socket.socket) -> str:
    """Return where a bound socket can be connected to."""
    if listening.family == socket.AF_UNIX:
        return _IPC + os.fsdecode(listening.getsockname()).replace("\0", "@")
    host, port = listening.getsockname()[:2]
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"


def _path(endpoint: str) -> str:
    """ZeroMQ names an abstract one by an @."""
    path = endpoint.removeprefix(_IPC)
    return f"\0{path[1:]}" if path.startswith("@") else path


def _address(endpoint: str) -> tuple[str, int]:
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise ValueError(f"expected tcp://HOST:PORT or ipc://PATH, found {endpoint!r}")
    return match["host"].strip("[]"), 0 if match["port"] == "*" else int(match["port"])
