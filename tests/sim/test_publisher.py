"""Frames on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from inferway.errors import ConfigError
from inferway_sim.config import EventsConfig
from inferway_sim.publisher import END_OF_REPLAY, EventPublisher

HOST = "127.0.0.1"


@asynccontextmanager
async def publishing(config: EventsConfig) -> AsyncIterator[EventPublisher]:
    assert config.endpoint is not None
    publisher = EventPublisher(config, config.endpoint, HOST)
    try:
        publisher.start()
        yield publisher
    finally:
        await publisher.stop()


@asynccontextmanager
async def connected(kind: int, endpoint: str) -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    socket = context.socket(kind)
    socket.connect(endpoint.replace("*", HOST))
    if kind == zmq.SUB:
        socket.subscribe(b"")
    try:
        yield socket
    finally:
        context.destroy(linger=0)


async def subscribe(publisher: EventPublisher, socket: zmq.asyncio.Socket) -> list[bytes]:
    """A PUB drops what it sends before the subscription arrives: publish until one comes."""
    while not await socket.poll(10):
        publisher.publish(b"again")
    return await socket.recv_multipart()


async def replayed(publisher: EventPublisher, first: int) -> list[list[bytes]]:
    endpoint = publisher.source.replay_endpoint
    assert endpoint is not None
    async with connected(zmq.DEALER, endpoint) as socket:
        await socket.send_multipart([b"", first.to_bytes(8, "big")])
        answers = []
        while True:
            answers.append(await asyncio.wait_for(socket.recv_multipart(), 10))
            if answers[-1][2] == END_OF_REPLAY:
                return answers


def test_a_message_is_topic_sequence_number_and_payload() -> None:
    async def scenario() -> None:
        async with (
            publishing(EventsConfig(topic="kv@here@m")) as publisher,
            connected(zmq.SUB, publisher.source.endpoint) as socket,
        ):
            topic, seq, payload = await subscribe(publisher, socket)
            assert (topic, payload, len(seq)) == (b"kv@here@m", b"again", 8)

    asyncio.run(scenario())


def test_sequence_numbers_count_up_from_zero() -> None:
    async def scenario() -> list[list[bytes]]:
        async with publishing(EventsConfig(topic="t")) as publisher:
            for payload in (b"a", b"b"):
                publisher.publish(payload)
            return await replayed(publisher, first=0)

    answers = asyncio.run(scenario())

    assert [int.from_bytes(answer[2], "big") for answer in answers[:2]] == [0, 1]


def test_a_replay_repeats_batches_from_the_one_asked_for_and_marks_its_end() -> None:
    async def scenario() -> list[list[bytes]]:
        async with publishing(EventsConfig(topic="t")) as publisher:
            for payload in (b"a", b"b", b"c"):
                publisher.publish(payload)
            return await replayed(publisher, first=1)

    assert asyncio.run(scenario()) == [
        [b"", b"t", bytes(7) + b"\x01", b"b"],
        [b"", b"t", bytes(7) + b"\x02", b"c"],
        [b"", b"", b"\xff" * 8, b""],
    ]


def test_only_the_last_batches_are_kept() -> None:
    async def scenario() -> list[list[bytes]]:
        async with publishing(EventsConfig(buffer_steps=1)) as publisher:
            for payload in (b"a", b"b"):
                publisher.publish(payload)
            return await replayed(publisher, first=0)

    assert [answer[3] for answer in asyncio.run(scenario())] == [b"b", b""]


def test_a_malformed_request_is_ignored_and_the_next_answered() -> None:
    async def scenario() -> list[list[bytes]]:
        async with publishing(EventsConfig()) as publisher:
            endpoint = publisher.source.replay_endpoint
            assert endpoint is not None
            async with connected(zmq.DEALER, endpoint) as socket:
                await socket.send_multipart([b"x"])
                return await replayed(publisher, first=0)

    assert len(asyncio.run(scenario())) == 1


def test_an_endpoint_without_a_wildcard_is_connected_to() -> None:
    async def scenario() -> None:
        context = zmq.asyncio.Context()
        listener = context.socket(zmq.SUB)
        listener.subscribe(b"")
        port = listener.bind_to_random_port(f"tcp://{HOST}")
        try:
            async with publishing(EventsConfig(f"tcp://{HOST}:{port}", None)) as publisher:
                assert (await subscribe(publisher, listener))[2] == b"again"
                assert publisher.source.endpoint == f"tcp://{HOST}:{port}"
        finally:
            context.destroy(linger=0)

    asyncio.run(scenario())


def test_a_taken_port_is_named() -> None:
    async def scenario() -> None:
        async with publishing(EventsConfig(replay_endpoint=None)) as first:
            with pytest.raises(ConfigError, match=first.source.endpoint.replace("*", r"\*")):
                async with publishing(EventsConfig(first.source.endpoint, None)):
                    pass

    asyncio.run(scenario())


@pytest.mark.parametrize("endpoint", [f"tcp://{HOST}:*", "tcp://*:*"])
def test_any_free_port_is_bound_and_the_real_one_announced(endpoint: str) -> None:
    async def scenario() -> None:
        async with publishing(EventsConfig(endpoint, endpoint)) as publisher:
            start, _, port = publisher.source.endpoint.rpartition(":")
            assert start == endpoint.removesuffix(":*")
            assert int(port) > 0
            async with connected(zmq.SUB, publisher.source.endpoint) as socket:
                assert (await subscribe(publisher, socket))[2] == b"again"
            assert (await replayed(publisher, first=0))[0][3] == b"again"

    asyncio.run(scenario())


@pytest.mark.parametrize("endpoint", ["5557", "tcp://*:99999", f"tcp://{HOST}:0"])
def test_an_endpoint_that_cannot_be_had_is_refused_with_what_is_expected(endpoint: str) -> None:
    async def scenario() -> None:
        async with publishing(EventsConfig(endpoint, None)):
            pass

    with pytest.raises(ConfigError, match=r"expected .*tcp://HOST:PORT.*with --zmq-endpoint") as e:
        asyncio.run(scenario())
    assert repr(endpoint) in str(e.value)
