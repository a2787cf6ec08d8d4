"""Makes those who follow the engines' event streams in this process.

vLLM and SGLang publish by ZeroMQ (`zmq_subscriber`), and so does TensorRT-LLM if it is set up for
that. Else it is asked by HTTP: POST /kv_cache_events of `trtllm-serve` takes what has happened
since the last time out of the engine's queue.

Each event is a batch of the stream, under its own number, so that a lost event is a gap and a
restart of the engine a step back, which the stream sees. There is no replay: then what was believed
is dropped. So it is when the engine cannot be reached. An answer that does not come in time may
have taken events with it; then the next one shows the gap.

Whoever asks gets the events, and nobody else does: one gateway may ask an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.event_source import EventSource
from inferway.fleet.state_dir import StateDir
from inferway.fleet.stream_figures import StreamSnapshot
from inferway.fleet.subscriber import EventSubscriber, Subscription, log
from inferway.fleet.zmq_subscriber import REPLAYS_AT_ONCE, ZmqSubscriber
from inferway.kv.events.adapters.tensorrt_llm import TensorRTEvents, split_answer
from inferway.kv.events.event import Batch
from inferway.kv.index.protocol import Index
from inferway.loop_turns import LoopTurns
from inferway.model import Endpoint, Headers, HolderId
from inferway_structured.decoding import UNREADABLE

POLL_SECONDS = 0.1
AWAY_SECONDS = 2.0  # before an engine that cannot be reached is asked again
ANSWER_SECONDS = 10.0  # the engine itself may wait two seconds for an event
# An engine whose block size nobody has told yet is listened to all the same: its first event
# tells. Until then this is what is expected.
ASSUMED_BLOCK_SIZE = 16

OnEngineBatch = Callable[[Engine, HolderId, Batch], None]


class PollingSubscriber(EventSubscriber):
    """Asks one engine for its events every `poll_seconds`."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        headers: Headers = (),  # its API key
        poll_seconds: float = POLL_SECONDS,
        away_seconds: float = AWAY_SECONDS,
    ) -> None:
        adapter = TensorRTEvents(subscription.block_size).open_batch
        super().__init__(subscription, adapter=adapter)
        self._headers = headers
        self._poll_seconds = poll_seconds
        self._away_seconds = away_seconds
        self._client: EngineClient | None = None
        self._is_reached: bool | None = None  # None: it has not been asked yet

    @property
    def _is_open(self) -> bool:
        return self._client is not None

    def _open(self) -> None:
        self._client = client = EngineClient()
        self._tasks.spawn(self._poll(client))

    async def close(self) -> None:
        """Stop asking, and close the connection. It may be called twice."""
        await super().close()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _poll(self, client: EngineClient) -> None:
        while True:
            try:
                body = await self._ask(client)
            except UpstreamTimeoutError:
                continue
            except UpstreamError as e:
                self._note_away(e)
                self._feed(self._lose)
                await asyncio.sleep(self._away_seconds)
                continue
            if not self._is_reached:
                self._is_reached = True
                self._feed(self.follower.resume)
            self._read(body)
            await self._idle.wait()
            await asyncio.sleep(self._poll_seconds)

    async def _ask(self, client: EngineClient) -> bytes:
        """Raises UpstreamError where no events can be had."""
        url = self.source.endpoint
        origin = f"http://{urlsplit(url).netloc}"
        path = url.removeprefix(origin) or "/"
        status, body = await client.post(origin, path, b"", self._headers, ANSWER_SECONDS)
        if status != 200:
            raise UpstreamError(f"{url} answered {status}")
        return body

    def _read(self, body: bytes) -> None:
        try:
            for event in split_answer(body):
                if event.attention_dp_rank:
                    self.follower.skip(
                        "attention_dp_rank",
                        f"an event of attention rank {event.attention_dp_rank}; only those of rank "
                        "0 can be followed by HTTP; use kv_events_config and its ZMQ sockets",
                    )
                    continue
                self._feed(partial(self.follower.live, event.event_id, event.payload))
        except UNREADABLE as e:
            self.follower.skip("malformed", f"{self.source.endpoint}: {e}")

    def _note_away(self, error: UpstreamError) -> None:
        """Say that the engine is away, if that is new."""
        if self._is_reached is not False:
            log.warning("engine %s: its KV events cannot be had: %s", self._name, error)
        self._is_reached = False


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
