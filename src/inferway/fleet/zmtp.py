"""Connections to ZeroMQ sockets, read on the event loop: ZMTP 3.0 (rfc.zeromq.org/spec/23).

ZeroMQ's own library has threads that read. From them a message comes to an asyncio program through
a file descriptor that says no more than that something has happened, and through futures: for a
batch of KV events that takes several times what reading it here does. Nor
does the library say which of several connections a message came by, or whether it came before
another one was lost; here each connection is an object of its own.

Without encryption (the mechanism NULL), as engines publish.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections.abc import Sequence
from typing import Protocol, cast

from inferway.kv.events.event import MAX_PAYLOAD_BYTES

MAX_MESSAGE_BYTES = 4 * MAX_PAYLOAD_BYTES  # one that is longer ends its connection
MAX_FRAMES = 1024  # of a message

CONNECT_SECONDS = 10.0  # until a connection is up, with its handshake
HEARTBEAT_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds before another attempt to connect

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MECHANISM = slice(12, 32)  # of a greeting

MORE, COMMAND = 1, 4  # flags of a frame
_LONG = 2
_SHORT_HEAD, _LONG_HEAD = 2, 9  # bytes before a frame's body
_SUBSCRIBE_TO_ALL = b"\x01"
_MOST_UNREAD = 65_536  # bytes of ours that a peer may leave unread

# The sockets that one may be connected to (ZMTP, "The Socket Type Property").
_PEERS = {"SUB": ("PUB", "XPUB"), "DEALER": ("ROUTER", "DEALER", "REP")}

_TCP = re.compile(r"tcp://(?P<host>\*|\[[^\]]*\]|[^:/]+):(?P<port>\d+|\*)")


class ZmtpError(Exception):
    """The peer is not what it should be, or breaks the protocol."""


class Owner(Protocol):
    """Whom connections tell what happens."""

    def connected(self, connection: ZmtpConnection) -> None:
        """The handshake is done."""

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        """Messages have come together, in order, each of some frames."""

    def disconnected(self, connection: ZmtpConnection) -> None:
        """A connection that was up has ended."""

    def refused(self, fault: str) -> None:
        """There can be no connection for this reason, or not any more: the peer is not what it
        should be, or cannot be reached."""


class ZmtpConnection(asyncio.Protocol):
    """One connection of a SUB socket, which subscribes to all there is, or of a DEALER. Made on the
    event loop that runs it."""

    def __init__(
        self, kind: str, owner: Owner, *, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> None:
        """`kind`: SUB or DEALER. A peer that lets a heartbeat pass without a word is lost."""
        loop = asyncio.get_running_loop()
        self.is_up = False  # the handshake is done, and it has not ended
        self.up: asyncio.Future[None] = loop.create_future()  # done when the handshake is; fails
        # with ZmtpError
        self.down: asyncio.Future[None] = loop.create_future()  # done when it has ended
        self._fault = "it has ended the connection"
        self._kind = kind
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._read = self._read_greeting
        self._rest = bytearray()  # of what has come: the beginning of a frame
        self._needed = 0  # bytes that it must have before there is something to read
        self._messages: list[list[bytes]] = []  # that the owner is still to be told of
        self._frames: list[bytes] = []  # of a message that is not complete
        self._num_bytes = 0  # of those
        self._heartbeat_seconds = heartbeat_seconds
        self._is_silent = False  # since the last heartbeat
        self._timer = loop.call_later(CONNECT_SECONDS, self._end, "it has not said READY in time")

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message. One that is down sends nothing."""
        for body in frames[:-1]:
            self._write(MORE, body)
        self._write(0, frames[-1])

    def close(self) -> None:
        """End it at once. What has come and was not read is dropped."""
        self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        self._is_silent = False
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest = bytearray()
        fault: str | None = None
        try:
            read = self._read(data)
        except ZmtpError as e:
            fault, read = str(e), len(data)
        if read < len(data):
            self._rest += data[read:]
        if self._messages:
            messages, self._messages = self._messages, []
            self._owner.received(self, messages)
        if fault is not None:
            self._end(fault)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._timer.cancel()
        self._transport = None
        was_up, self.is_up = self.is_up, False
        if not self.up.done():
            self.up.set_exception(ZmtpError(self._fault))
            self.up.exception()  # nobody need ask for it
        if not self.down.done():
            self.down.set_result(None)
        if was_up:
            self._owner.disconnected(self)

    # how its bytes are read: what has come -> how many of them were read

    def _read_greeting(self, data: bytes) -> int:
        size = len(GREETING)
        if data[:1] != b"\xff" or data[9:10] not in (b"", b"\x7f"):
            raise ZmtpError(f"what answers is no ZeroMQ socket: it begins with {data[:16]!r}")
        if len(data) < size:
            self._needed = size
            return 0
        mechanism = data[_MECHANISM].rstrip(b"\0")
        if data[10] < 3 or mechanism != b"NULL":
            raise ZmtpError(
                f"it speaks ZMTP {data[10]} with the mechanism {mechanism!r}; "
                "expected version 3 or later, without encryption"
            )
        self._write(COMMAND, ready(self._kind))
        self._read = self._read_frames
        return size + self._read_frames(data[size:])

    def _read_frames(self, data: bytes) -> int:
        start, end = 0, len(data)
        while start + _SHORT_HEAD <= end:
            flags = data[start]
            if not flags & _LONG:
                body = start + _SHORT_HEAD
                after = body + data[start + 1]
            elif (body := start + _LONG_HEAD) <= end:
                after = body + int.from_bytes(data[start + 1 : body], "big")
            else:
                break
            if after - body + self._num_bytes > MAX_MESSAGE_BYTES:
                raise ZmtpError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
            if after > end:
                self._needed = after - start
                return start
            self._take(flags, data[body:after])
            start = after
        self._needed = 0
        return start

    def _take(self, flags: int, body: bytes) -> None:
        if flags & COMMAND:
            self._obey(body)
            return
        if not self.is_up:
            raise ZmtpError("a message before the handshake was done")
        frames = self._frames
        frames.append(body)
        if flags & MORE:
            self._num_bytes += len(body)
            if len(frames) >= MAX_FRAMES:
                raise ZmtpError(f"a message of more than {MAX_FRAMES} frames")
            return
        self._frames, self._num_bytes = [], 0
        self._messages.append(frames)

    def _obey(self, command: bytes) -> None:
        end = 1 + command[0] if command else 0  # of its name
        name, data = command[1:end], command[end:]
        if name == b"PING":
            if (
                self._transport is not None
                and self._transport.get_write_buffer_size() < _MOST_UNREAD
            ):
                self._write(COMMAND, b"\x04PONG" + data[2:])
        elif name == b"ERROR":
            raise ZmtpError(f"it refuses the connection: {data[1:200].decode(errors='replace')}")
        elif name == b"READY" and not self.up.done():
            self._greet(data)

    def _greet(self, properties: bytes) -> None:
        kind = _property(properties, b"socket-type")
        if kind not in _PEERS[self._kind]:
            expected = " or ".join(_PEERS[self._kind][:2])
            raise ZmtpError(f"what answers is a {kind} socket; expected {expected}")
        if self._kind == "SUB":
            self._write(0, _SUBSCRIBE_TO_ALL)
        self._timer.cancel()
        self._beat()
        self.is_up = True
        self.up.set_result(None)
        self._owner.connected(self)

    # steps

    def _beat(self) -> None:
        loop, pause = asyncio.get_running_loop(), self._heartbeat_seconds
        # a loop that was held has not read yet what came meanwhile
        if self._is_silent and loop.time() - self._timer.when() < pause / 2:
            self._end(f"nothing has come from it for {pause:g} s")
            return
        self._is_silent = True
        self._write(COMMAND, b"\x04PING\0\0")
        self._timer = loop.call_later(pause, self._beat)

    def _end(self, fault: str) -> None:
        self._fault = fault
        self._owner.refused(fault)
        self.close()

    def _write(self, flags: int, body: bytes) -> None:
        """Nothing more for a peer that does not read."""
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() < _MOST_UNREAD:
            transport.write(frame(flags, body))


def frame(flags: int, body: bytes) -> bytes:
    """Return a frame as it is sent."""
    if len(body) < 256:
        return struct.pack(">BB", flags, len(body)) + body
    return struct.pack(">BQ", flags | _LONG, len(body)) + body


def ready(kind: str) -> bytes:
    """Return the command that says what kind of socket one has."""
    return b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind.encode()


def _property(properties: bytes, wanted: bytes) -> str:
    """Return a property of a READY command; its name is in lower case. Raises ZmtpError if it
    cannot be read or is not there."""
    at = 0
    while at < len(properties):
        value = at + 1 + properties[at]
        end = value + 4 + int.from_bytes(properties[value : value + 4], "big")
        if end > len(properties):
            break
        if properties[at + 1 : value].lower() == wanted:
            return properties[value + 4 : end].decode(errors="replace")
        at = end
    raise ZmtpError(f"its READY has no {wanted.decode()}: {properties[:200]!r}")


async def connect(endpoint: str, connection: ZmtpConnection) -> None:
    """Connect it, and return when it is up; one that cannot be is closed. Raises OSError,
    ZmtpError, or ValueError for an endpoint that is neither tcp://HOST:PORT nor ipc://PATH."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if endpoint.startswith("ipc://"):
                path = endpoint.removeprefix("ipc://")
                # ZeroMQ names an abstract one by an @
                path = f"\0{path[1:]}" if path.startswith("@") else path
                await loop.create_unix_connection(lambda: connection, path)
            else:
                await loop.create_connection(lambda: connection, *_address(endpoint))
        await connection.up
    finally:
        if not connection.is_up:
            connection.close()


async def keep_connected(endpoint: str, kind: str, owner: Owner) -> None:
    """Connect to the endpoint, again and again when that fails or the connection ends. Raises
    ValueError as `connect` does."""
    pause = FIRST_PAUSE
    while True:
        connection = ZmtpConnection(kind, owner)
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
        pause = min(2 * pause, LONGEST_PAUSE)


def check_endpoint(endpoint: str) -> None:
    """Raises ValueError for one that is neither tcp://HOST:PORT nor ipc://PATH."""
    if not endpoint.startswith("ipc://"):
        _address(endpoint)


def bound(endpoint: str) -> socket.socket:
    """Return a socket that listens at tcp://HOST:PORT, where both may be `*`. Raises OSError if
    that cannot be done, ValueError for another endpoint."""
    host, port = _address(endpoint)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("" if host == "*" else host, port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


async def accept(listening: socket.socket, kind: str, owner: Owner) -> None:
    """Accept connections until this is cancelled; then they are closed, and the socket is."""
    accepted: set[ZmtpConnection] = set()

    def accepting() -> ZmtpConnection:
        connection = ZmtpConnection(kind, owner)
        accepted.add(connection)
        connection.down.add_done_callback(lambda _: accepted.discard(connection))
        return connection

    server = await asyncio.get_running_loop().create_server(accepting, sock=listening)
    try:
        await server.serve_forever()
    finally:
        server.close()
        for connection in list(accepted):
            connection.close()


def endpoint_of(listening: socket.socket) -> str:
    """Return where a bound socket can be connected to."""
    host, port = listening.getsockname()[:2]
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"


def _address(endpoint: str) -> tuple[str, int]:
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise ValueError(f"expected tcp://HOST:PORT or ipc://PATH, found {endpoint!r}")
    return match["host"].strip("[]"), 0 if match["port"] == "*" else int(match["port"])
