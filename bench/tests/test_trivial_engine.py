"""The trivial engine: what it answers and what it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq

from inferway_bench.trivial_engine import (
    EngineConnection,
    Publisher,
    TrivialEngine,
    block_stored,
)


def words_of(body: bytes) -> list[int]:
    return list(range(len(body.split())))


@asynccontextmanager
async def listening(engine: TrivialEngine) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EngineConnection(engine), "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(engine: TrivialEngine, *asked: tuple[str, object]) -> list[tuple[int, bytes]]:
    """Status and body of each, all over one connection."""
    connector = aiohttp.TCPConnector(limit=1)
    async with listening(engine) as url, aiohttp.ClientSession(connector=connector) as session:
        found = []
        for path, body in asked:
            method = "GET" if body is None else "POST"
            data = None if body is None else msgspec.json.encode(body)
            async with session.request(method, url + path, data=data) as response:
                found.append((response.status, await response.read()))
        return found


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher(block_size=16)
    yield made
    made.close()


@pytest.fixture
def engine(publisher: Publisher) -> TrivialEngine:
    return TrivialEngine("/models/m", 16, publisher)


def test_it_says_of_itself_what_a_router_asks_an_engine(
    engine: TrivialEngine, publisher: Publisher
) -> None:
    paths = ("/v1/models", "/kv_event_sources", "/metrics", "/health")

    models, sources, metrics, health = asyncio.run(ask(engine, *((p, None) for p in paths)))

    assert msgspec.json.decode(models[1])["data"][0]["root"] == "/models/m"
    assert msgspec.json.decode(sources[1])["0"]["endpoint"] == publisher.endpoint
    assert b'vllm:cache_config_info{block_size="16"' in metrics[1]
    assert health == (200, b"")


def test_a_chat_is_answered_with_a_completion_whatever_its_size(engine: TrivialEngine) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 300_000}]}

    [(status, answer)] = asyncio.run(ask(engine, ("/v1/chat/completions", body)))

    assert status == 200
    assert msgspec.json.decode(answer)["object"] == "chat.completion"


def test_a_streamed_chat_is_answered_with_events(engine: TrivialEngine) -> None:
    body = {"model": "m", "messages": [], "stream": True}

    [(status, answer)] = asyncio.run(ask(engine, ("/v1/chat/completions", body)))

    assert status == 200
    assert answer.startswith(b"data: {")
    assert answer.endswith(b"data: [DONE]\n\n")


def test_an_unknown_path_is_not_found(engine: TrivialEngine) -> None:
    [(status, _)] = asyncio.run(ask(engine, ("/nowhere", None)))

    assert status == 404


def test_render_is_refused_unless_the_engine_was_told_to_serve_it(
    engine: TrivialEngine, publisher: Publisher
) -> None:
    path = "/v1/chat/completions/render"

    [(refused, _)] = asyncio.run(ask(engine, (path, {})))
    [(status, answer)] = asyncio.run(
        ask(TrivialEngine("/models/m", 16, publisher, words_of), (path, {}))
    )

    assert (refused, status) == (403, 200)
    assert msgspec.json.decode(answer)["token_ids"] == [0]


def test_an_event_holds_full_blocks_only_and_hashes_that_depend_on_all_before() -> None:
    one = block_stored(list(range(40)), block_size=16)
    other = block_stored([9, *range(1, 40)], block_size=16)

    assert one["token_ids"] == list(range(32))
    assert isinstance(one["block_hashes"], list)
    assert isinstance(other["block_hashes"], list)
    assert len(one["block_hashes"]) == 2
    assert not set(one["block_hashes"]) & set(other["block_hashes"])


@pytest.fixture
def subscriber() -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.setsockopt(zmq.RCVTIMEO, 100)
    return socket


def test_published_frames_are_topic_sequence_and_batch(
    subscriber: zmq.Socket[bytes], publisher: Publisher
) -> None:
    subscriber.connect(publisher.endpoint.replace("*", "127.0.0.1"))

    frames = publish_until_received(publisher, subscriber)
    subscriber.close(0)

    topic, sequence, payload = frames
    _, events, rank = msgspec.msgpack.decode(payload)
    assert (topic, len(sequence), rank) == (b"", 8, 0)
    assert events[0]["type"] == "BlockStored"


def test_churn_removes_at_each_step_as_many_blocks_as_it_stores(
    subscriber: zmq.Socket[bytes], engine: TrivialEngine, publisher: Publisher
) -> None:
    async def batches_of(steps: int) -> list[list[dict[str, Any]]]:
        engine.answer("/bench/churn", b'{"tokens": 32, "seconds": 0.001}')
        while not subscriber.poll(0):
            await asyncio.sleep(0)
        found: list[list[dict[str, Any]]] = []
        while len(found) < steps:
            await asyncio.sleep(0)
            if subscriber.poll(0):
                found.append(msgspec.msgpack.decode(subscriber.recv_multipart()[2])[1])
        return found

    subscriber.connect(publisher.endpoint.replace("*", "127.0.0.1"))
    batches = asyncio.run(batches_of(20))
    subscriber.close(0)

    for stored, removed in batches:
        assert (stored["type"], removed["type"]) == ("BlockStored", "BlockRemoved")
        assert len(stored["block_hashes"]) == len(removed["block_hashes"]) == 2
    assert batches[0][0]["block_hashes"] == batches[15][1]["block_hashes"]


def publish_until_received(publisher: Publisher, socket: zmq.Socket[bytes]) -> list[bytes]:
    """A subscription takes effect some time after connect."""
    for _ in range(100):
        publisher.publish(list(range(32)))
        try:
            return socket.recv_multipart()
        except zmq.Again:
            continue
    raise AssertionError("nothing received in 10 s")


CHAT = {"model": "m", "messages": [], "stream": True}


def test_a_stream_has_a_role_its_tokens_the_usage_and_an_end(engine: TrivialEngine) -> None:
    pace = {"tokens": 3, "seconds": 0.001}

    [_, (status, answer), (_, written)] = asyncio.run(
        ask(
            engine,
            ("/bench/streams", pace),
            ("/v1/chat/completions", CHAT),
            ("/bench/written", None),
        )
    )

    events = answer.decode().split("\n\n")
    assert status == 200
    assert [e.count('"content":" word"') for e in events] == [0, 1, 1, 1, 0, 0, 0]
    assert '"completion_tokens":3' in events[4]
    assert events[5:] == ["data: [DONE]", ""]
    assert msgspec.json.decode(written) == {"events": 6}


def test_with_no_time_between_steps_all_comes_at_once(engine: TrivialEngine) -> None:
    pace = {"tokens": 1, "seconds": 0}

    [_, (_, answer), (_, written)] = asyncio.run(
        ask(
            engine,
            ("/bench/streams", pace),
            ("/v1/chat/completions", CHAT),
            ("/bench/written", None),
        )
    )

    assert answer.endswith(b"data: [DONE]\n\n")
    assert msgspec.json.decode(written) == {"events": 4}
