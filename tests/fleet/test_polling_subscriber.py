"""A subscriber against a server that answers as `trtllm-serve` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tests.fleet.servers import serving, until

from inferway.fleet.event_source import EventSource
from inferway.fleet.subscriber import Subscription
from inferway.fleet.subscribing import PollingSubscriber
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex

SIZE = 2


def stored(first: int, last: int) -> dict[str, Any]:
    """Blocks first..last-1 of the prompt 0, 1, 2, ...; a block's hash is 1000 + its number."""
    blocks = [
        {
            "block_hash": 1000 + number,
            "tokens": [{"token_id": SIZE * number + i} for i in range(SIZE)],
            "cache_level": 0,
        }
        for number in range(first, last)
    ]
    return {"type": "stored", "parent_hash": 999 + first if first else None, "blocks": blocks}


def removed(number: int) -> dict[str, Any]:
    return {"type": "removed", "block_hashes": [1000 + number]}


@dataclass
class Engine:
    """A queue of events that an answer empties."""

    queue: list[dict[str, Any]] = field(default_factory=list)
    next_id: int = 0
    status: int = 200
    polls: int = 0
    keys: set[str | None] = field(default_factory=set)

    def happen(self, *data: dict[str, Any], lost: bool = False, **fields: Any) -> None:
        for each in data:
            event = {"event_id": self.next_id, "data": each, "window_size": 256, **fields}
            self.queue += [] if lost else [event]
            self.next_id += 1

    def restart(self) -> None:
        self.queue.clear()
        self.next_id = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert (request.method, request.path) == ("POST", "/kv_cache_events")
        self.polls += 1
        self.keys.add(request.headers.get("authorization"))
        taken, self.queue = self.queue, []
        return web.json_response(taken, status=self.status)


@dataclass
class Gateway:
    index: MemoryIndex
    subscriber: PollingSubscriber

    @property
    def matched(self) -> int:
        keys = BlockHasher(SIZE).keys(np.arange(200, dtype=np.uint32))
        return self.index.match_now(keys).blocks.get(0, 0)

    @property
    def state(self) -> StreamState:
        return self.subscriber.state

    async def has(self, matched: int, state: StreamState) -> None:
        await until(lambda: (self.matched, self.state) == (matched, state))


@asynccontextmanager
async def polling(engine: Engine, **options: Any) -> AsyncIterator[Gateway]:
    async with serving(engine.answer) as url:
        source = EventSource(0, f"{url}/kv_cache_events", None)
        index = MemoryIndex()
        subscriber = PollingSubscriber(
            Subscription(source, 0, SIZE, index, name="trt"),
            poll_seconds=0.001,
            away_seconds=0.001,
            **options,
        )
        subscriber.start()
        try:
            yield Gateway(index, subscriber)
        finally:
            await subscriber.close()


async def test_events_reach_the_index() -> None:
    engine = Engine()
    async with polling(engine, headers=[(b"authorization", b"Bearer key")]) as gateway:
        engine.happen({"type": "created", "num_blocks_per_cache_level": [100, 0]}, stored(0, 2))
        await gateway.has(2, StreamState.EXACT)
        engine.happen(stored(2, 5), removed(4))
        await gateway.has(4, StreamState.EXACT)

    assert engine.keys == {"Bearer key"}


async def test_who_comes_late_knows_a_part() -> None:
    engine = Engine()
    engine.happen(stored(0, 2), lost=True)
    async with polling(engine) as gateway:
        engine.happen(stored(0, 1))

        await gateway.has(1, StreamState.PARTIAL)


async def test_after_a_lost_event_what_was_believed_is_dropped() -> None:
    engine = Engine()
    async with polling(engine) as gateway:
        engine.happen(stored(0, 4))
        await gateway.has(4, StreamState.EXACT)
        engine.happen(removed(3), lost=True)
        engine.happen(stored(0, 1))

        await gateway.has(1, StreamState.PARTIAL)


async def test_a_restarted_engine_begins_with_nothing() -> None:
    engine = Engine()
    async with polling(engine) as gateway:
        engine.happen(stored(0, 4), removed(3))
        await gateway.has(3, StreamState.EXACT)
        engine.restart()
        engine.happen(stored(0, 1))

        await gateway.has(1, StreamState.EXACT)


async def test_an_engine_that_is_away_is_asked_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    async with polling(engine) as gateway:
        engine.happen(stored(0, 4))
        await gateway.has(4, StreamState.EXACT)
        engine.status = 503
        await until(lambda: gateway.state is StreamState.STALE)
        polls = engine.polls
        await until(lambda: engine.polls > polls + 2)
        engine.status = 200
        engine.happen(stored(0, 1))
        await gateway.has(1, StreamState.PARTIAL)

    [message] = caplog.messages[:1]
    assert "engine trt: its KV events cannot be had" in message
    assert sum("cannot be had" in message for message in caplog.messages) == 1


async def test_of_several_attention_ranks_the_first_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    async with polling(engine) as gateway:
        engine.happen(stored(0, 2), attention_dp_rank=0)
        engine.next_id = 0
        engine.happen(stored(2, 4), attention_dp_rank=1)
        await until(lambda: gateway.subscriber.stats.skipped == {"attention_dp_rank": 1})
        await gateway.has(2, StreamState.EXACT)

    assert "kv_events_config" in caplog.text


async def test_an_answer_that_cannot_be_read_is_counted() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"detail": "no events here"})

    engine = Engine()
    async with polling(engine) as gateway, serving(answer) as url:
        source = EventSource(0, url, None)
        subscription = Subscription(source, 1, SIZE, gateway.index)
        other = PollingSubscriber(subscription, poll_seconds=0.001)
        other.start()
        await until(lambda: other.stats.skipped.get("malformed", 0) > 1)
        await other.close()
