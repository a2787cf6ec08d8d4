"""Connections to ZeroMQ sockets, against the library's own."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from tests.fleet.servers import until

from inferway.fleet import zmtp
from inferway.fleet.zmtp import GREETING, ZmtpConnection, ZmtpError, encoded, frame

READY = zmtp.ready("PUB")


class Heard(zmtp.Owner):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.up: list[ZmtpConnection] = []
        self.messages: list[list[bytes]] = []
        self.down: list[ZmtpConnection] = []
        self.faults: list[str] = []

    def connected(self, connection: ZmtpConnection) -> None:
        self.up.append(connection)

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        assert connection is self.up[-1]
        self.messages += messages

    def disconnected(self, connection: ZmtpConnection) -> None:
        self.down.append(connection)

    def refused(self, fault: str) -> None:
        self.faults.append(fault)


@asynccontextmanager
async def library(kind: int, endpoint: str = "tcp://127.0.0.1:*") -> AsyncIterator[Any]:
    """A bound socket of ZeroMQ's library."""
    with zmq.asyncio.Context() as context, context.socket(kind) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        yield socket


@asynccontextmanager
async def connected(
    endpoint: str, kind: str = "SUB"
) -> AsyncIterator[tuple[Heard, ZmtpConnection]]:
    heard = Heard()
    connection = ZmtpConnection(kind, heard)
    await zmtp.connect(endpoint, connection)
    try:
        yield heard, connection
    finally:
        connection.close()
        await connection.down


def at(socket: Any) -> str:
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")


@asynccontextmanager
async def peer(*writes: bytes, heard: list[bytes] | None = None) -> AsyncIterator[str]:
    """A server that is no ZeroMQ socket: it writes this, and reads whatever comes."""
    heard = [] if heard is None else heard
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        for each in writes:
            writer.write(each)
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                heard.append(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, serving))


# what it must do with the library


async def test_messages_come_whole_and_in_order_whatever_their_length() -> None:
    sent = [[b"topic", bytes(8), b"x" * size] for size in (0, 1, 255, 256, 70_000, 3_000_000)]
    sent.append([b"alone"])
    sent.append([b"", *[b"%d" % i for i in range(300)]])
    async with library(zmq.XPUB) as publisher, connected(at(publisher)) as (heard, _):
        assert await publisher.recv() == b"\x01"
        for each in sent:
            await publisher.send_multipart(each)
        await until(lambda: len(heard.messages) == len(sent))

    assert heard.messages == sent


@pytest.mark.parametrize("name", ["events.sock", None])
async def test_it_connects_to_paths_and_abstract_names(name: str | None, tmp_path: Path) -> None:
    endpoint = (
        f"ipc://@{tmp_path.name}-{id(tmp_path)}" if name is None else f"ipc://{tmp_path}/{name}"
    )
    async with library(zmq.XPUB, endpoint) as publisher, connected(endpoint) as (heard, _):
        await publisher.recv()
        await publisher.send_multipart([b"one"])
        await until(lambda: heard.messages)

    assert heard.messages == [[b"one"]]


async def test_a_dealer_asks_and_is_answered() -> None:
    async with library(zmq.ROUTER) as router:
        async with connected(at(router), "DEALER") as (heard, connection):
            connection.send(encoded([b"", b"y" * 300]))
            client, *frames = await router.recv_multipart()
            await router.send_multipart([client, *frames, b"answer"])
            await until(lambda: heard.messages)

        assert heard.messages == [[b"", b"y" * 300, b"answer"]]


async def test_sockets_of_the_library_connect_to_one_that_is_bound() -> None:
    heard, listening = Heard(), zmtp.bound("tcp://127.0.0.1:*")
    endpoint = zmtp.endpoint_of(listening)
    accepting = asyncio.ensure_future(zmtp.accept(listening, partial(ZmtpConnection, "SUB", heard)))
    with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        publisher.connect(endpoint)
        await publisher.recv()
        await publisher.send_multipart([b"one", b"two"])
        await until(lambda: heard.messages)
    await until(lambda: heard.down)
    accepting.cancel()
    with suppress(asyncio.CancelledError):
        await accepting

    assert heard.messages == [[b"one", b"two"]]
    assert listening.fileno() == -1


async def test_a_ping_is_answered_with_what_it_says() -> None:
    heard: list[bytes] = []
    ping = frame(4, b"\x04PING\0\0context")
    server = peer(GREETING, frame(4, READY), ping, heard=heard)
    async with server as endpoint, connected(endpoint):
        await until(lambda: b"\x04PONGcontext" in b"".join(heard))


async def test_the_library_answers_a_ping() -> None:
    async with library(zmq.XPUB) as publisher:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(at(publisher).split(":")[2])
        )
        try:
            writer.write(GREETING)
            await reader.readexactly(len(GREETING))
            writer.write(frame(4, READY[:-3] + b"SUB") + frame(4, b"\x04PING\0\0"))
            await reader.readuntil(b"\x04PONG")
        finally:
            writer.close()
            await writer.wait_closed()


async def test_it_connects_again_when_a_publisher_is_back(tmp_path: Path) -> None:
    heard, endpoint = Heard(), f"ipc://{tmp_path}/events.sock"
    keeping = asyncio.ensure_future(
        zmtp.keep_connected(endpoint, heard, partial(ZmtpConnection, "SUB", heard))
    )
    for number in range(2):
        async with library(zmq.XPUB, endpoint) as publisher:
            await publisher.recv()
            await publisher.send_multipart([b"%d" % number])
            await until(lambda: len(heard.messages) == number + 1)  # noqa: B023 - ended before
        await until(lambda: len(heard.down) == number + 1)  # noqa: B023
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping

    assert heard.messages == [[b"0"], [b"1"]]
    assert heard.up[0] is not heard.up[1]
    assert heard.faults == []


# what it must not believe


@pytest.mark.parametrize(
    ("writes", "fault"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "no ZeroMQ socket: it begins with b'HTTP/1.1 400"),
        ([GREETING[:10] + b"\x02" + GREETING[11:]], "it speaks ZMTP 2 with"),
        (
            [GREETING[:12] + b"CURVE".ljust(20, b"\0") + GREETING[32:]],
            "with the mechanism b'CURVE'; expected version 3 or later, without encryption",
        ),
        ([GREETING, frame(4, b"\x05READY")], "its READY has no socket-type: b''"),
        ([GREETING, frame(4, READY[:-3] + b"\xff\xff")], "its READY has no socket-type: b'\\x0bS"),
        ([GREETING, frame(4, READY[:-3] + b"SUB")], "is a SUB socket; expected PUB or XPUB"),
        ([GREETING, frame(4, b"\x05ERROR\x04away")], "it refuses the connection: away"),
        (
            [GREETING, frame(4, b"\x05ERROR\x09a\nforged\x1b")],
            "it refuses the connection: a\\nforged\\x1b",
        ),
        (
            [GREETING, frame(4, READY[:-7] + b"\0\0\0\x08SUB\nline")],
            "is a SUB\\nline socket; expected PUB or XPUB",
        ),
        ([GREETING, frame(4, READY + bytes(9000))], "a command of more than 8192 bytes"),
        ([GREETING, frame(0, b"early")], "a message before the handshake was done"),
    ],
)
async def test_what_is_no_publisher_is_refused_with_the_reason(
    writes: list[bytes], fault: str
) -> None:
    async with peer(*writes) as endpoint:
        heard = Heard()
        with pytest.raises(ZmtpError) as raised:
            await zmtp.connect(endpoint, ZmtpConnection("SUB", heard))

    assert fault in str(raised.value)
    assert heard.faults == [str(raised.value)]
    assert heard.up == heard.down == []


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        (struct.pack(">BQ", 2, 1 << 62), "a message of more than 67108864 bytes"),
        (frame(1, b"x") * zmtp.MAX_FRAMES, "a message of more than 1024 frames"),
        (frame(4, b"\x05ERROR\x03why"), "it refuses the connection: why"),
    ],
)
async def test_a_message_without_end_ends_the_connection(what: bytes, fault: str) -> None:
    async with peer(GREETING, frame(4, READY), encoded([b"good"]), what) as endpoint:
        heard = Heard()
        connection = ZmtpConnection("SUB", heard)
        await zmtp.connect(endpoint, connection)
        await connection.down

    assert heard.messages == [[b"good"]]
    assert heard.faults == [fault]
    assert heard.down == [connection]


async def test_waiting_for_a_handshake_may_be_given_up() -> None:
    heard: list[bytes] = []
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with peer(heard=heard) as endpoint:
        connection = ZmtpConnection("SUB", Heard())
        connecting = asyncio.ensure_future(zmtp.connect(endpoint, connection))
        await until(lambda: heard)  # it waits for a greeting now
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await connection.down

    assert faults == []


async def test_a_peer_that_is_silent_is_lost() -> None:
    async with peer(GREETING, frame(4, READY)) as endpoint:
        heard = Heard()
        connection = ZmtpConnection("SUB", heard, heartbeat_seconds=0.05)
        await zmtp.connect(endpoint, connection)
        await connection.down

    [fault] = heard.faults
    assert fault.startswith("nothing has come from it for")


@pytest.mark.parametrize(
    "endpoint", ["udp://127.0.0.1:1", "tcp://host", "tcp://host:x", "tcp://:1"]
)
async def test_an_endpoint_that_is_none_is_named(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"expected tcp://HOST:PORT or ipc://PATH, found "):
        await zmtp.connect(endpoint, ZmtpConnection("SUB", Heard()))


@given(st.lists(st.tuples(st.integers(0, 7), st.binary(max_size=40))), st.booleans(), st.binary())
def test_nothing_that_comes_raises(
    frames: list[tuple[int, bytes]], is_greeted: bool, rest: bytes
) -> None:
    """What cannot be read ends the connection, with the reason, and does nothing else."""

    async def read() -> None:
        heard = Heard()
        connection = ZmtpConnection("SUB", heard)
        connection.connection_made(_Pipe())
        stream = b"".join(frame(flags & 5, body) for flags, body in frames)
        connection.data_received(GREETING + frame(4, READY) * is_greeted + stream + rest)
        connection.close()
        for each in heard.messages:
            assert all(isinstance(part, bytes) for part in each)

    asyncio.run(read())


class _Pipe(asyncio.Transport):
    """Where what a connection writes goes."""

    def write(self, data: Any) -> None:
        del data

    def abort(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


@given(
    messages=st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=4), max_size=6),
    cuts=st.lists(st.integers(0, 3000)),
    pings=st.booleans(),
)
def test_bytes_may_come_in_any_pieces(
    messages: list[list[bytes]], cuts: list[int], pings: bool
) -> None:
    async def read() -> Heard:
        heard = Heard()
        connection = ZmtpConnection("SUB", heard)
        connection.connection_made(_Pipe())
        between = frame(4, b"\x04PING\0\0context") if pings else b""
        parts = [GREETING + frame(4, READY), *[encoded(each) for each in messages], b""]
        stream = between.join(parts)
        ends = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
        for start, end in pairwise(ends):
            connection.data_received(stream[start:end])
        connection.close()
        return heard

    assert asyncio.run(read()).messages == messages
