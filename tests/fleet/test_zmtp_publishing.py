"""A PUB socket of our own, read by SUB sockets of ZeroMQ's library."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from tests.fleet.servers import until

from inferway.fleet.zmtp import COMMAND, GREETING, bound, endpoint_of, frame, ready
from inferway.fleet.zmtp_publishing import (
    MOST_SUBSCRIPTIONS,
    MOST_TOPIC_BYTES,
    PubSocket,
)

LOG = logging.getLogger("inferway.publisher")


@asynccontextmanager
async def published(
    endpoint: str = "tcp://127.0.0.1:*", *, most_unread: int = 1 << 20, most: int = 64
) -> AsyncIterator[tuple[PubSocket, str]]:
    socket, listening = PubSocket(LOG, "events", most_unread=most_unread), bound(endpoint)
    at = endpoint_of(listening)
    socket.bind(listening, most=most)
    try:
        yield socket, at
    finally:
        await socket.close()


@contextmanager
def subscriber(*topics: bytes) -> Iterator[Any]:
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        for topic in topics:
            socket.setsockopt(zmq.SUBSCRIBE, topic)
        yield socket


@asynccontextmanager
async def subscribed(pub: PubSocket, endpoint: str, *topics: bytes) -> AsyncIterator[Any]:
    """Yield a subscriber whose subscriptions have all arrived, whatever others have."""
    before = {topic: pub.subscribers(topic) for topic in topics}
    with subscriber(*topics) as socket:
        socket.connect(endpoint)
        await until(lambda: all(pub.subscribers(topic) > before[topic] for topic in topics))
        yield socket


@asynccontextmanager
async def raw(endpoint: str, *said: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Whoever speaks as a subscriber does, and says this."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
    writer.write(GREETING + frame(COMMAND, ready("SUB")) + b"".join(said))
    try:
        yield reader
    finally:
        writer.transport.abort()


def subscribe(topic: bytes) -> bytes:
    return frame(0, b"\1" + topic)


async def received(socket: Any, number: int) -> list[list[bytes]]:
    async with asyncio.timeout(20):
        return [await socket.recv_multipart() for _ in range(number)]


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "ipc"])
async def test_each_gets_the_topics_that_it_has_subscribed_to(
    endpoint: str, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/pub.sock" if endpoint == "ipc" else endpoint
    async with (
        published(endpoint) as (pub, at),
        subscribed(pub, at, b"kv.a", b"kv.b") as some,
        subscribed(pub, at, b"") as everything,
    ):
        for topic in (b"kv.a.1", b"kv.c", b"kv.b", b"x"):
            pub.send([topic, bytes(8), b"y" * 300])

        assert [each[0] for each in await received(some, 2)] == [b"kv.a.1", b"kv.b"]
        heard = await received(everything, 4)
        assert [each[0] for each in heard] == [b"kv.a.1", b"kv.c", b"kv.b", b"x"]
        assert heard[0][1:] == [bytes(8), b"y" * 300]

        some.setsockopt(zmq.UNSUBSCRIBE, b"kv.a")
        everything.setsockopt(zmq.UNSUBSCRIBE, b"")
        await until(lambda: not pub.subscribers(b"kv.a"))
        assert pub.subscribers(b"kv.b")
        assert pub.lost == 0
    if endpoint.startswith("ipc"):
        assert not Path(endpoint.removeprefix("ipc://")).exists()


async def test_it_connects_to_a_subscriber_that_is_bound(tmp_path: Path) -> None:
    endpoint, pub = f"ipc://{tmp_path}/sub.sock", PubSocket(LOG, "events")
    pub.connect(endpoint)
    with subscriber(b"kv") as socket:
        socket.bind(endpoint)
        receiving = asyncio.ensure_future(received(socket, 1))  # the library subscribes then
        await until(lambda: pub.subscribers(b"kv"))
        pub.send([b"kv", b"1"])

        assert await receiving == [[b"kv", b"1"]]
    await pub.close()


async def test_what_was_sent_last_is_read_though_the_socket_closes() -> None:
    async with published() as (pub, at), subscribed(pub, at, b"") as socket:
        for number in range(100):
            pub.send([b"kv", b"%d" % number, bytes(10_000)])
        await pub.close()

        assert [each[1] for each in await received(socket, 100)] == [b"%d" % i for i in range(100)]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            b"".join(subscribe(b"%d" % number) for number in range(MOST_SUBSCRIPTIONS + 1)),
            "it has more than 128 subscriptions",
        ),
        (subscribe(bytes(MOST_TOPIC_BYTES + 1)), "a message of more than 1025 bytes"),
    ],
)
async def test_whoever_subscribes_to_too_much_is_let_go_and_others_are_not(
    said: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with published() as (pub, at), subscribed(pub, at, b"kv") as other:
        for _ in range(2):
            async with raw(at, said) as greedy, asyncio.timeout(20):
                await greedy.read(-1)  # to the end of the connection
        pub.send([b"kv", b"1"])

        assert await received(other, 1) == [[b"kv", b"1"]]
    assert caplog.text.count(why) == 1  # in a minute
    assert not pub.subscribers(b"0")


async def test_a_subscription_that_was_said_again_or_cancelled_counts_once_or_not() -> None:
    again = b"".join(subscribe(b"kv") for _ in range(3 * MOST_SUBSCRIPTIONS))
    others = b"".join(
        subscribe(b"%d" % number) + frame(0, b"\0%d" % number)
        for number in range(3 * MOST_SUBSCRIPTIONS)
    )
    async with published() as (pub, at), raw(at, again + others + subscribe(b"end")):
        await until(lambda: pub.subscribers(b"end"))

        assert pub.subscribers(b"kv")
        assert not pub.subscribers(b"0")


async def test_one_that_does_not_read_loses_messages_and_others_none() -> None:
    async with (
        published(most_unread=100_000) as (pub, at),
        raw(at, subscribe(b"kv.x")),
        subscribed(pub, at, b"kv.own") as other,
    ):
        await until(lambda: pub.subscribers(b"kv.x"))
        while not pub.lost:
            pub.send([b"kv.x", bytes(100_000)])
            await asyncio.sleep(0)
        pub.send([b"kv.own", b"1"])

        assert pub.lost == 1
        assert await received(other, 1) == [[b"kv.own", b"1"]]


async def test_there_are_only_so_many_subscribers() -> None:
    async with published(most=1) as (pub, at), raw(at, subscribe(b"kv")):
        await until(lambda: pub.subscribers(b"kv"))
        async with raw(at) as late, asyncio.timeout(20):
            with suppress(ConnectionResetError):
                assert await late.read(-1) == b""
