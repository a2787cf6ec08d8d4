"""Makes those who follow the engines' event streams in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from inferway.fleet.engine import Engine
from inferway.fleet.event_source import EventSource
from inferway.fleet.polling_subscriber import PollingSubscriber
from inferway.fleet.state_dir import StateDir
from inferway.fleet.stream_figures import StreamSnapshot
from inferway.fleet.subscriber import EventSubscriber, Subscription
from inferway.fleet.zmq_subscriber import REPLAYS_AT_ONCE, ZmqSubscriber
from inferway.kv.events.event import Batch
from inferway.kv.index.protocol import Index
from inferway.loop_turns import LoopTurns
from inferway.model import Endpoint, HolderId

# An engine whose block size nobody has told yet is listened to all the same: its first event
# tells. Until then this is what is expected.
ASSUMED_BLOCK_SIZE = 16

OnEngineBatch = Callable[[Engine, HolderId, Batch], None]


class Subscribing:
    """Replays of all streams that it makes wait for each other; reads of their sockets share
    turns."""

    def __init__(
        self,
        index: Index,
        state_dir: StateDir | None,
        on_batch: OnEngineBatch | None = None,
    ) -> None:
        """`on_batch` sees each batch of events that was applied."""
        self._index = index
        self._state_dir = state_dir
        self._on_batch = on_batch
        self._replays = asyncio.Semaphore(REPLAYS_AT_ONCE)
        self._turns = LoopTurns()

    def __call__(self, engine: Engine, source: EventSource, endpoint: Endpoint) -> EventSubscriber:
        """Return who keeps the index true for the endpoint, not started yet."""
        subscription = Subscription(
            source,
            endpoint.holder,
            engine.block_size_told or ASSUMED_BLOCK_SIZE,
            self._index,
            name=engine.name,
            on_batch=partial(self._on_batch, engine) if self._on_batch else None,
            snapshot=self._snapshot(engine, source, endpoint),
            lora_path=engine.adapter_path,
            cache_facts=lambda: engine.cache_facts,
            on_drop=engine.drops_last_block,
        )
        if source.is_polled:
            return PollingSubscriber(subscription, headers=engine.headers)
        return ZmqSubscriber(subscription, replays=self._replays, turns=self._turns)

    def _snapshot(
        self, engine: Engine, source: EventSource, endpoint: Endpoint
    ) -> StreamSnapshot | None:
        """None for an engine without a replay socket: nothing could ever prove what was kept."""
        if self._state_dir is None or source.replay is None:
            return None
        model = engine.base_models[0].root or "" if engine.base_models else ""
        return self._state_dir.stream(endpoint.name, model)
