"""Connections to ZeroMQ sockets, read on the event loop: ZMTP 3.0 (rfc.zeromq.org/spec/23).

ZeroMQ's own library has threads that read. From them a message comes to an asyncio program through
a file descriptor that says no more than that something has happened, and through futures: for a
batch of KV events that takes several times what reading it here does. Nor
does the library say which of several connections a message came by, or whether it came before
another one was lost; here each connection is an object of its own.

Without encryption (the mechanism NULL), as engines publish. A turn of the event loop reads at most
TURN_FRAMES frames of a connection (`loop_turns`), and the owner may `hold` the connection.

`connect` and `keep_connected` connect to an endpoint, `bound` and `accept` take connections at one.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from inferway.kv.events.event import MAX_PAYLOAD_BYTES
from inferway.loop_turns import LoopTurns, SlicedProtocol

MAX_MESSAGE_BYTES = 4 * MAX_PAYLOAD_BYTES  # one that is longer ends its connection
MAX_COMMAND_BYTES = 8 * 1024  # the same, and all that comes before the handshake is done
MAX_FRAMES = 1024  # of a message
TURN_FRAMES = 256  # that are read in a turn of the loop, in which everybody else waits

CONNECT_SECONDS = 10.0  # until a connection is up, with its handshake
HEARTBEAT_SECONDS = 10.0

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MECHANISM = slice(12, 32)  # of a greeting

MORE, COMMAND = 1, 4  # flags of a frame
_LONG = 2
_SHORT_HEAD, _LONG_HEAD = 2, 9  # bytes before a frame's body
_SUBSCRIBE_TO_ALL = b"\x01"
_MOST_UNREAD = 65_536  # bytes of ours that a peer may leave unread
_PING, _MOST_CONTEXT = b"\x04PING\0\0", 16  # bytes of a ping that its answer repeats

# The sockets that one may be connected to (ZMTP, "The Socket Type Property").
_PEERS = {
    "SUB": ("PUB", "XPUB"),
    "PUB": ("SUB", "XSUB"),
    "DEALER": ("ROUTER", "DEALER", "REP"),
}


class ZmtpError(Exception):
    """The peer is not what it should be, or breaks the protocol."""


class Owner:
    """Whom connections tell what happens. By default it does nothing about it."""

    def connected(self, connection: ZmtpConnection) -> None:
        """The handshake is done."""

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        """Messages have come together, in order, each of some frames."""

    def disconnected(self, connection: ZmtpConnection) -> None:
        """A connection that was up has ended."""

    def refused(self, fault: str) -> None:
        """There can be no connection for this reason, or not any more: the peer is not what it
        should be, or cannot be reached."""


class ZmtpConnection(SlicedProtocol):
    """One connection of a SUB socket, which subscribes to all there is, of a DEALER, or of a PUB.
    Made on the event loop that runs it."""

    def __init__(
        self,
        kind: str,
        owner: Owner,
        *,
        heartbeat_seconds: float | None = HEARTBEAT_SECONDS,
        message_bytes: int = MAX_MESSAGE_BYTES,
        turns: LoopTurns | None = None,
    ) -> None:
        """`kind`: SUB, PUB or DEALER. The connection ends if nothing comes from the peer for
        `heartbeat_seconds` (None: the peer may be silent), or with a message of more than
        `message_bytes`."""
        super().__init__(turns)
        loop = asyncio.get_running_loop()
        self.is_up = False  # the handshake is done, and it has not ended
        self.up: asyncio.Future[None] = loop.create_future()  # done when the handshake is; fails
        # with ZmtpError
        self.down: asyncio.Future[None] = loop.create_future()  # done when it has ended
        self.address = ""  # of the peer; none for a path
        self._fault = "it has ended the connection"
        self._kind = kind
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._read = self._read_greeting
        self._message_bytes = message_bytes
        self._limit = MAX_COMMAND_BYTES  # bytes of a message; that of the owner from READY on
        self._messages: list[list[bytes]] = []  # that the owner is still to be told of
        self._frames: list[bytes] = []  # of a message that is not complete
        self._num_bytes = 0  # of those
        self._heartbeat_seconds = heartbeat_seconds
        self._is_silent = False  # since the last heartbeat
        self._timer = loop.call_later(CONNECT_SECONDS, self._end, "it has not said READY in time")

    def send(self, message: bytes, most_unread: int = _MOST_UNREAD) -> bool:
        """Send a message that `encoded` has returned, unless the peer has left `most_unread` bytes
        unread or the connection is down. Return whether the message was sent."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() >= most_unread:
            return False
        transport.write(message)
        return True

    def close(self) -> None:
        """End it at once. What has come and was not read is dropped."""
        self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def end(self) -> None:
        """End the connection when the peer has read all messages."""
        self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport.write(GREETING)

    def parse(self, data: bytes, start: int) -> int:
        self._is_silent = False
        if self._transport is None:
            return len(data)
        fault: str | None = None
        try:
            start = self._read(data, start)
        except ZmtpError as e:
            fault, start = str(e), len(data)
        if self._messages:
            messages, self._messages = self._messages, []
            self._owner.received(self, messages)
        if fault is not None:
            self._end(fault)
        return start

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
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

    # how its bytes are read, from `start` on -> where the rest begins

    def _read_greeting(self, data: bytes, start: int) -> int:
        said = data[start : start + len(GREETING)]
        if said[:1] != b"\xff" or said[9:10] not in (b"", b"\x7f"):
            raise ZmtpError(f"what answers is no ZeroMQ socket: it begins with {said[:16]!r}")
        if len(said) < len(GREETING):
            self.needed_bytes = len(GREETING)
            return start
        mechanism = said[_MECHANISM].rstrip(b"\0")
        if said[10] < 3 or mechanism != b"NULL":
            raise ZmtpError(
                f"it speaks ZMTP {said[10]} with the mechanism {mechanism!r}; "
                "expected version 3 or later, without encryption"
            )
        self._write(COMMAND, ready(self._kind))
        self._read = self._read_frames
        return self._read_frames(data, start + len(GREETING))

    def _read_frames(self, data: bytes, start: int) -> int:
        end = len(data)
        for _ in range(TURN_FRAMES):
            if start + _SHORT_HEAD > end:
                self.needed_bytes = _SHORT_HEAD
                return start
            flags = data[start]
            if not flags & _LONG:
                body = start + _SHORT_HEAD
                after = body + data[start + 1]
            elif (body := start + _LONG_HEAD) <= end:
                after = body + int.from_bytes(data[start + 1 : body], "big")
            else:
                self.needed_bytes = _LONG_HEAD
                return start
            size = after - body
            if size + self._num_bytes > self._limit or (
                flags & COMMAND and size > MAX_COMMAND_BYTES
            ):
                raise self._too_long(flags)
            if after > end:
                self.needed_bytes = after - start
                return start
            self._take(flags, data[body:after])
            start = after
        self.needed_bytes = 0
        return start

    def _too_long(self, flags: int) -> ZmtpError:
        what, most = "message", self._limit
        if flags & COMMAND or not self.is_up:
            what, most = "command", MAX_COMMAND_BYTES
        return ZmtpError(f"a {what} of more than {most} bytes")

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
            self._write(COMMAND, b"\x04PONG" + data[2 : 2 + _MOST_CONTEXT])
        elif name == b"ERROR":
            raise ZmtpError(f"it refuses the connection: {_shown(data[1:])}")
        elif name == b"READY" and not self.up.done():
            self._greet(data)

    def _greet(self, properties: bytes) -> None:
        kind, expected = _property(properties, b"socket-type"), _PEERS[self._kind][:2]
        if kind.decode(errors="replace") not in _PEERS[self._kind]:
            raise ZmtpError(
                f"what answers is a {_shown(kind)} socket; expected {' or '.join(expected)}"
            )
        if self._kind == "SUB":
            self._write(0, _SUBSCRIBE_TO_ALL)
        self._timer.cancel()
        if self._heartbeat_seconds is not None:
            self._beat(self._heartbeat_seconds)
        self.is_up = True
        self._limit = self._message_bytes
        self.up.set_result(None)
        self._owner.connected(self)

    # steps

    def _beat(self, pause: float) -> None:
        loop = asyncio.get_running_loop()
        # a loop that was held has not read yet what came meanwhile, nor has one who is held
        is_late = loop.time() - self._timer.when() >= pause / 2
        if self._is_silent and not is_late and not self.is_stopped:
            self._end(f"nothing has come from it for {pause:g} s")
            return
        self._is_silent = True
        self._write(COMMAND, _PING)
        self._timer = loop.call_later(pause, self._beat, pause)

    def _end(self, fault: str) -> None:
        self._fault = fault
        self._owner.refused(fault)
        self.close()

    def _write(self, flags: int, body: bytes) -> None:
        self.send(frame(flags, body))


def encoded(frames: Sequence[bytes]) -> bytes:
    """Return a message as it is sent."""
    return b"".join([*[frame(MORE, body) for body in frames[:-1]], frame(0, frames[-1])])


def frame(flags: int, body: bytes) -> bytes:
    """Return a frame as it is sent."""
    if len(body) < 256:
        return struct.pack(">BB", flags, len(body)) + body
    return struct.pack(">BQ", flags | _LONG, len(body)) + body


def ready(kind: str) -> bytes:
    """Return the command that says what kind of socket one has."""
    return b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind.encode()


def _shown(text: bytes) -> str:
    """Return the beginning of a peer's text as it may stand in a line of the log."""
    return ascii(text[:200].decode(errors="replace"))[1:-1]


def _property(properties: bytes, wanted: bytes) -> bytes:
    """Return a property of a READY command; its name is in lower case. Raises ZmtpError if it
    cannot be read or is not there."""
    at = 0
    while at < len(properties):
        value = at + 1 + properties[at]
        end = value + 4 + int.from_bytes(properties[value : value + 4], "big")
        if end > len(properties):
            break
        if properties[at + 1 : value].lower() == wanted:
            return properties[value + 4 : end]
        at = end
    raise ZmtpError(f"its READY has no {wanted.decode()}: {properties[:200]!r}")


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
