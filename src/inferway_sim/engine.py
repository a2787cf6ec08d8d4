"""A simulated vLLM engine, put together: server, core, cache and events of one process, or of
one corner of a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from inferway.kv.blocks.dialects import Dialect, wire_hash
from inferway_sim.app_server import AppServer
from inferway_sim.block_contents import BlockContents
from inferway_sim.cache import EngineCache, KvCache
from inferway_sim.config import SimulatorConfig
from inferway_sim.core import EngineCore
from inferway_sim.dev_mode import DevMode
from inferway_sim.drafting import Drafter
from inferway_sim.events import Event, encode_batch
from inferway_sim.kv_groups.cache import GroupedCache
from inferway_sim.kv_transfer import Connector
from inferway_sim.metrics import EngineMetrics
from inferway_sim.models import AdapterNames
from inferway_sim.planning import Planner
from inferway_sim.publisher import EventPublisher, EventSourceEntry
from inferway_sim.replies import Reply, echo, random_sentences, recite, recited
from inferway_sim.scheduler import Scheduler
from inferway_sim.server import Server
from inferway_sim.server_info import ServerInfo
from inferway_sim.side_channel import SideChannel
from inferway_sim.structured import Structured
from inferway_sim.text import TextModel


class SimulatedEngine:
    """A simulated engine. `start` it, send requests to `url`, `stop` it; or use it with `async
    with`. `reply` overrides the reply mode of the configuration."""

    def __init__(
        self, config: SimulatorConfig, model: TextModel, reply: Reply | None = None
    ) -> None:
        self.config = config
        self._model = model
        self._reply = reply or _reply(config, model)
        dialect = Dialect(seed=config.hash_seed)
        # How it hands blocks to others, if it does; tests inject faults there.
        self.transfer: Connector | None = None
        self._cache: EngineCache
        if config.kv_groups is not None:
            self._cache = GroupedCache(
                config.kv_cache_size, config.kv_groups, dialect, config.max_model_len
            )
        else:
            transfers = config.kv_transfer
            contents = None if transfers is None else BlockContents(config.block_size)
            plain = KvCache(config.kv_cache_size, config.block_size, dialect, contents)
            self._cache = plain
            self.transfer = None if transfers is None else Connector(transfers, plain)
        self._scheduler = Scheduler(
            self._cache,
            config.latency,
            config.max_num_seqs,
            config.max_waiting_queue_length,
            transfer=self.transfer,
            drafter=_drafter(config),
        )
        self._metrics = EngineMetrics(config, self._scheduler)
        self.side_channel: SideChannel | None = None
        self.structured = Structured() if config.structured else None
        self.names = AdapterNames(config)
        self._publisher: EventPublisher | None = None
        self._server: AppServer | None = None
        self._running: asyncio.Task[None] | None = None
        self._port = config.port

    @property
    def url(self) -> str:
        """`http://host:port`, the port as bound."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self._port}"

    @property
    def events_endpoint(self) -> str | None:
        """The endpoint that a subscriber on this machine connects to, or None if no events are
        published."""
        source = self._event_source
        return None if source is None else self._local(source.endpoint)

    @property
    def replay_endpoint(self) -> str | None:
        """The endpoint that replay requests on this machine are sent to, or None."""
        source = self._event_source
        return None if source is None else self._local(source.replay_endpoint)

    def cached_blocks(self) -> set[int]:
        """Return the hashes, as events carry them, of all blocks that a prompt could reuse now."""
        return {wire_hash(block_hash) for block_hash in self._cache.cached()}

    @property
    def num_requests(self) -> int:
        """Requests inside, running or waiting."""
        scheduler = self._scheduler
        return len(scheduler.running) + len(scheduler.waiting) + len(scheduler.loading)

    async def start(self) -> None:
        """Open all sockets and run. Raises ConfigError naming a port that cannot be had."""
        try:
            self._start_publisher()
            core = EngineCore(self._scheduler, self._publish, self._metrics.first_token)
            await self._start_side_channel(core)
            await self._start_server(core)
        except BaseException:
            await self.stop()
            raise
        self._running = asyncio.create_task(core.run())

    async def stop(self) -> None:
        """Close everything, in reverse order. Requests that still run are cut off."""
        if self._server is not None:
            await self._server.stop()
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        if self.side_channel is not None:
            await self.side_channel.stop()
        if self._publisher is not None:
            await self._publisher.stop()
        self._server = self._running = self._publisher = self.side_channel = None

    async def __aenter__(self) -> SimulatedEngine:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def _start_publisher(self) -> None:
        events = self.config.events
        if events.endpoint is not None:
            self._publisher = EventPublisher(events, events.endpoint, self.config.host)
            self._publisher.start()

    async def _start_side_channel(self, core: EngineCore) -> None:
        if self.transfer is not None:
            fit = f"{self.config.vllm_version} {self.config.model} {self.config.block_size}"
            self.side_channel = core.side_channel = SideChannel(
                self.transfer, self.transfer.cache, fit, core.wake, lambda: core.now
            )
            await self.side_channel.start()

    async def _start_server(self, core: EngineCore) -> None:
        limit = self.config.max_model_len
        server = Server(
            core=core,
            planner=Planner(
                self._model, self.names, self._cache, self._reply, limit, self.transfer
            ),
            names=self.names,
            model=self._model,
            metrics=self._metrics,
            event_source=self._event_source,
            reset_cache=self._cache.clear,
            max_model_len=limit,
            info=ServerInfo(self.config, self.transfer),
            scale_out=self.config.enable_scale_out,
            structured=self.structured,
            dev_mode=self._dev_mode(core) if self.config.dev_mode else None,
        )
        self._server = await AppServer.start(
            server.application(), self.config.host, self.config.port
        )
        self._port = self._server.port

    def _dev_mode(self, core: EngineCore) -> DevMode:
        return DevMode(core, self._cache.clear, self._metrics.updated_weights)

    def _publish(self, events: Sequence[Event]) -> None:
        if not events or self._publisher is None:
            return
        payload = encode_batch(
            events, timestamp=time.time(), rank=0, format=self.config.events.format
        )
        self._publisher.publish(payload)

    @property
    def _event_source(self) -> EventSourceEntry | None:
        return None if self._publisher is None else self._publisher.source

    def _local(self, endpoint: str | None) -> str | None:
        return endpoint and endpoint.replace("*", self.config.host)


def _drafter(config: SimulatorConfig) -> Drafter | None:
    groups = config.kv_groups
    if groups is None or groups.speculation.method == "none":
        return None
    return Drafter(groups.speculation)


def _reply(config: SimulatorConfig, model: TextModel) -> Reply:
    match config.mode:
        case "echo":
            return echo(model.encode)
        case "recite":
            return recite(recited(model.encode))
    return random_sentences(config.seed)
