"""The composition root: builds the parts, passes them down, closes them in reverse."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from inferway.cluster.bus.replicas import Replicas, has_peers, own_replicas
from inferway.config import EngineSettings, ModelRewrite, ServeSettings
from inferway.doctor.traffic_rules import traffic_alarms
from inferway.extension import Core, Extension, Snapshot, Tap, installed, methods, snapshots
from inferway.fleet.discovery.members import Members, build_members
from inferway.fleet.draining import Draining
from inferway.fleet.engine import Engine
from inferway.fleet.orphan_resolution import OrphanResolver
from inferway.fleet.structured_gate import fleet_gate
from inferway.fleet.tokens_once import build_continuing, build_tokens_once
from inferway.http.admin import AlarmPages
from inferway.http.auth import Auth, build_auth, read_keys
from inferway.http.continued import move_streams, open_continuer
from inferway.http.extension_parts import ExtensionParts, Route
from inferway.http.held import HeldRequests
from inferway.http.inference_ingress import build_ingress
from inferway.http.metrics import MetricsPage
from inferway.http.reload import Reloading
from inferway.http.routes import Routes
from inferway.http.server import HttpServer
from inferway.http.silent_engines import SilentEngines
from inferway.indexer import Indexer
from inferway.kv.events.dialect_finder import SEEDS
from inferway.kv.events.event import Batch
from inferway.model import Alarm, HolderId
from inferway.openai_api.long_strings import AFTER_TEXT
from inferway.prompts.freed_memory import give_back_large
from inferway.prompts.renderer import Renderer
from inferway.routing.director import EVENT_SECONDS, Director
from inferway.routing.journey import OnRequest
from inferway.routing.kv_legs import build_legs
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.rewrite import Rewrites
from inferway.routing.warm_prefixes import WarmPrefixes
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.load import scheduling_of
from inferway.servers import Process, Servers
from inferway.tasks import Later, give_way
from inferway.telemetry.access_log import AccessLog
from inferway.telemetry.autoscaling import Autoscaling
from inferway.telemetry.cache_worth import CacheWorth
from inferway.telemetry.engine_rows import EngineRows
from inferway.telemetry.engine_speeds import EngineSpeeds
from inferway.telemetry.observers import WantsPrompts, looking_at_requests
from inferway.telemetry.publisher import Publisher, ZmqPublisher, publish_events
from inferway.telemetry.request_counts import RequestCounts
from inferway.telemetry.slo_counts import SloCounts
from inferway.telemetry.tracing import Tracing, otlp
from inferway.telemetry.traffic_counts import TrafficCounts
from inferway.upstream.pool import Pool

if TYPE_CHECKING:
    from inferway.prompts.media.fetch import MediaFetch

log = logging.getLogger("inferway")

_Parsed = TypeVar("_Parsed")

_NEW_OBJECTS = 5_000  # beyond those that went, until the collector looks, which takes a millisecond

# Threads that render or parse large bodies must not keep the GIL from the event loop for
# CPython's default 5 ms at a time (DESIGN.md, decision 4).
SWITCH_INTERVAL_SECONDS = 0.0005

# With more answers under way engines are not told of shapes in advance.
BUSY_WITH_ANSWERS = 1000


class Gateway:
    """`inferway serve` as an object: `start`, then `port`; `close` ends it. A `renderer` that
    is given stays the giver's, who closes it."""

    def __init__(
        self,
        settings: ServeSettings,
        renderer: Renderer | None = None,
        *,
        picks: bool = False,
        extensions: Sequence[Extension] = (),
        process: Process | None = None,
    ) -> None:
        """`picks`: it forwards nothing, but says to a proxy where requests go (`inferway epp`).
        `extensions` watch beside its own and those of installed packages. `process`: what it is of
        several that serve together; None: it is alone. Raises ConfigError."""
        self.settings = settings
        self._process = process
        keys = read_keys(settings)
        self.members: Members | None = None
        self._picks = picks
        self._stack = AsyncExitStack()
        self._parts_level = logging.INFO  # at which parts say that they have stopped
        self.scheduling = scheduling_of(settings, has_queue=not picks)
        self.indexer = Indexer(
            settings,
            renderer=renderer,
            on_batch=self._republish if settings.publish is not None else None,
            on_counted=self._counted if process is None and has_peers(settings) else None,
            parts=None if process is None else process.parts,
        )
        self.index, self.fleet = self.indexer.index, self.indexer.fleet
        # an engine may have been given the same seed as we
        seeds = [*SEEDS, *filter(None, [os.environ.get("PYTHONHASHSEED")])]
        self.orphans = OrphanResolver(
            self.fleet.engines, seeds=seeds, on_moved=self.fleet.look_soon
        )
        self._auth = build_auth(
            *(settings, keys, self.fleet, self.scheduling),
            others=None if process is None else process.places(self.fleet),
            on_outcome=None if process is None else process.on_outcome,
            on_suspect=None if process is None else process.on_suspect,
        )
        self._started = asyncio.Event()
        self._publisher: ZmqPublisher | None = None
        self.replicas: Replicas | None = None  # among which this gateway is one
        self._servers: Servers | None = None  # once it starts
        self._requests = RequestCounts(time.monotonic)
        self._traffic = TrafficCounts()
        self._warm = WarmPrefixes()
        self.worth = CacheWorth(time.monotonic)
        self._slo = SloCounts(settings.slo)
        self._extensions: list[Extension] = [self._requests, self._traffic]
        self.tap = Tap(self._extensions)
        core = Core(
            *(settings, self.fleet, time.monotonic, self.index, self.standing, self.scheduling),
            picks=picks,
            drain=self.tap.drain,
            process="alone" if process is None else "hub" if process.is_hub else "worker",
        )
        self._attached = [*extensions, *installed(core)]
        self._extensions += self._attached
        if settings.slo.is_any:
            self._extensions.append(self._slo)
        if settings.access_log is not None:
            log_format, probes = settings.log_format, settings.access_log_probes
            self._extensions.append(AccessLog(log_format, probes=probes))

    @property
    def _is_worker(self) -> bool:
        return self._process is not None and not self._process.is_hub

    @property
    def publisher(self) -> ZmqPublisher | None:
        """The publisher of decisions and KV events; None if nothing is published here."""
        return self._publisher

    @property
    def _publishes(self) -> Publisher | None:
        own = self._publisher
        return own if self._process is None else self._process.publisher or own

    @property
    def _offers(self) -> WantsPrompts:
        return self.orphans if self._process is None else self._process.orphans or self.orphans

    @property
    def needs_snapshots(self) -> bool:
        """True if an extension needs what other processes know each second."""
        return any(each.needs_snapshots() for each in self._attached)

    def snapshots(self, since: Mapping[str, int]) -> dict[str, Snapshot]:
        """Return what its extensions know, for those of another process."""
        self.tap.drain()
        return snapshots(self._extensions, since)

    @property
    def learning_plugins(self) -> Sequence[ExpectedTtft]:
        """The plugins of its scheduling that learn from answers."""
        return [each for each in self.scheduling.producers if isinstance(each, ExpectedTtft)]

    @property
    def extensions(self) -> Sequence[Extension]:
        """The gateway's extensions, in no order."""
        return self._extensions

    @property
    def traffic(self) -> TrafficCounts:
        return self._traffic

    @property
    def auth(self) -> Auth:
        """The checks of who is let in, and of how many requests at a time."""
        return self._auth

    @property
    def standing(self) -> OutlierDetection:
        """The outlier detection, which says which engines get new requests."""
        return self._auth.failover.standing

    @property
    def port(self) -> int:
        """The port that the gateway listens on; if the settings say 0, the port that the system has
        chosen."""
        assert self._servers is not None and self._servers.public is not None  # noqa: PT018
        return self._servers.public.port

    @property
    def admin_port(self) -> int | None:
        """The port of admin paths and metrics if they have their own, else None."""
        admin = None if self._servers is None else self._servers.admin
        return None if admin is None else admin.port

    @property
    def publish_endpoint(self) -> str | None:
        """The endpoint that subscribers connect to, or None if nothing is published."""
        return self._publisher.endpoint if self._publisher else None

    async def start(self) -> None:
        """Open all parts, in order. Raises ConfigError, with all that was opened closed again."""
        try:
            await self._start()
        except BaseException as e:
            await self.close(quietly=not isinstance(e, asyncio.CancelledError))
            raise

    async def close(self, *, quietly: bool = False) -> None:
        """Close everything in reverse, and log each part that has stopped, or `quietly` none."""
        self._parts_level = logging.DEBUG if quietly else logging.INFO
        await self._stack.aclose()

    def told_of(self, url: str, workers: int = 0) -> str:
        """Return the last line that a start logs."""
        assert self._servers is not None
        return self._servers.told(url, self.fleet.engines, not self._picks, workers)

    async def reload(self, read: Callable[[], ServeSettings]) -> None:
        """Go on with the settings that `read` returns, or raise ConfigError, once the gateway has
        started. If they cannot hold, all is as it was, and the log says why."""
        await self._started.wait()
        await self.reloading.reload(read)

    def stop_accepting(self) -> None:
        """Take no more connections; what runs goes on until `close`."""
        if self._servers is not None:
            self._servers.stop_accepting()

    def cut_connections(self) -> None:
        """Take no more connections, and cut off the answers that a running `close` waits for."""
        if self._servers is not None:
            self._servers.cut()

    async def stop_extensions(self) -> None:
        """End the answers of extensions, of which some never end by themselves."""
        for extension in self._attached:
            await extension.stop()

    async def _start(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        give_back_large()
        settings = self.settings
        # What can refuse the settings comes first: nothing has to be stopped then.
        tracing = self._open_tracing()
        self._servers = servers = Servers(settings, self._process, self.tap)
        if settings.publish is not None:
            self._publisher = ZmqPublisher(settings.publish)
            self._closes("publisher", self._publisher.close)
        self._fetch = self._open_media_fetch()
        self._pool = pool = Pool(settings.timeouts, tls=settings.engine_tls())
        self._closes("engine connections", pool.close)
        self.director = director = self._open_director()
        self.draining = draining = Draining(
            *(settings, director, self.fleet.client, self._auth.failover.standing),
            *(self._warm, self.worth.of),
            on_change=None if self._process is None else self._process.on_drained,
            others=None if self._process is None else self._process.hands_over,
        )
        self.speeds = EngineSpeeds(self.fleet.engines, self.learning_plugins, director.clock)
        self.fleet.expected_seconds = self.speeds.expected_seconds
        self.metrics = self._metrics_page(pool)
        self._stack.callback(self._auth.control.close)
        self._closes("engine watch, event streams and index", self.indexer.close)
        parts = self._extension_parts(director, tracing)
        for extension in self._attached:
            await extension.start(parts)
            if extension.has("close"):
                self._closes(f"extension {extension.name!r}", extension.close)
        self.routes = routes = self._open_routes(director, pool, parts)
        server = servers.for_clients(routes, tracing, pool)
        # The ports first: an occupied one is known before anything else takes time.
        if settings.admin_port is not None:
            # until after the other port: how the last answers end is worth a scrape
            admin = await servers.open_admin_port(routes, settings.admin_port)
            self._closes("admin port", admin.stop)
        if self._process is None and has_peers(settings):  # until the last answers have ended
            plugins = self.learning_plugins
            await self.meet(own_replicas(settings, self.fleet, plugins))
        if not self._is_worker:
            await self._listen(server)
        self._stack.push_async_callback(draining.close)
        self._stack.callback(self.fleet.prober.stop)  # engines have enough to do with the rest
        await self.indexer.start()
        if self._is_worker:  # others take the requests until it knows where they go
            await self._listen(server)
        self.orphans.start()
        self._closes("search for parents of blocks", self.orphans.close)
        self._find_engines()
        self._stack.push_async_callback(self.stop_extensions)
        for extension in self._attached:
            await extension.listen()
        # Tokenizers and templates live as long as we do: the collector need not look at them.
        gc.collect()
        gc.freeze()
        # Nothing on a request's way makes cycles: what waits to be logged is no garbage.
        gc.set_threshold(_NEW_OBJECTS, 10, 10)
        self._started.set()
        if self._process is None:
            log.info("%s", self.told_of(server.url))

    def _extension_parts(self, director: Director, tracing: Tracing | None) -> ExtensionParts:
        auth = self._auth
        wall = time.time() - time.monotonic()  # event streams are noted by the monotonic clock
        rows = EngineRows(
            *(self.fleet, self.index, auth.failover, self.draining, self.speeds, wall)
        )
        return ExtensionParts(
            *(auth, director, build_ingress(self.settings, director)),
            *(AlarmPages(rows, self._alarms), auth.control.num_waiting, self._is_ready),
            has_tls=self._servers is not None and self._servers.certificate is not None,
            requests=self._requests,
            tap=self.tap,
            tracing=tracing,
        )

    def _open_routes(self, director: Director, pool: Pool, parts: ExtensionParts) -> Routes:
        settings, auth = self.settings, self._auth
        held = HeldRequests(auth.control, lambda: director.priorities)
        self._stack.push_async_callback(held.close)
        routes: dict[str, Route] = {}
        for extension in self._attached:
            routes |= extension.routes()
        return Routes(
            *(self.indexer, director, pool, self.metrics, auth, parts.ingress),
            *(self._requests, self._traffic, self.draining, parts.alarms, held),
            peers=lambda: None if self.replicas is None else self.replicas.report(),
            extensions=routes,
            forwards=not self._picks,
            admin_apart=settings.admin_port is not None,
            continuer=open_continuer(director, auth, self._stack),
            gather=None if self._process is None else self._process.gather,
            drain=self.tap.drain,
        )

    def _alarms(self) -> Sequence[Alarm]:
        """Return what should not be so beside the engines."""
        found = [*traffic_alarms(self._traffic)]
        for extension in self._attached:
            found += extension.alarms()
        return found

    async def _listen(self, server: HttpServer) -> None:
        self.draining.moves = partial(move_streams, server.sources)
        silent = SilentEngines(self.standing, server.sources, self._pool, self.fleet.has_others)
        self.fleet.on_outage = silent.hear
        self._stack.callback(silent.close)
        await server.start()
        self._closes("HTTP server", server.stop)
        assert self._servers is not None
        self._servers.public = server

    async def meet(self, replicas: Replicas) -> None:
        """Begin to share with other gateways what each sends and learns. Raises ConfigError."""
        await replicas.open()
        self.replicas = replicas
        self._closes("exchange with peers", replicas.close)

    def _counted(self) -> None:
        """Own requests in flight have changed."""
        if self.replicas is not None:
            self.replicas.counted()

    def _metrics_page(self, pool: Pool) -> MetricsPage:
        assert self._servers is not None
        self.autoscaling = Autoscaling(
            *(self.settings.slo, self.fleet, self.learning_plugins, self.worth),
            *(self.standing.drained, self.director.clock),
        )
        parts = (self.draining, self._slo, self.speeds)
        return MetricsPage(
            *(self.director, self.fleet, pool, self.indexer.renderer, self._publishes),
            *(self.indexer.request_templates, self._auth, self._requests),
            parts=[
                *(part.families for part in parts),
                *methods([self.autoscaling, *self._attached], "families"),
                self._servers.families,
                self.indexer.state_dir.families,
                lambda: () if self.replicas is None else self.replicas.families(),
                lambda: () if self._fetch is None else self._fetch.families(),
            ],
            with_others=None if self._process is None else self._process.with_others,
            drain=self.tap.drain,
        )

    def _open_media_fetch(self) -> MediaFetch | None:
        if not self.settings.media.is_any or not self.settings.scoring:
            return None
        # It brings aiohttp, which nothing else of a gateway needs.
        from inferway.prompts.media.fetch import MediaFetch

        fetch = MediaFetch(self.settings.media)
        self._stack.push_async_callback(fetch.close)
        return fetch

    def _open_tracing(self) -> Tracing | None:
        if self.settings.otlp is None:
            return None
        tracing = Tracing(otlp(self.settings.otlp))
        self._closes("tracing", tracing.close)
        self._extensions.append(tracing)
        return tracing

    def _find_engines(self) -> None:
        """Begin to look for engines that the settings do not list."""
        settings = self.settings
        self.members = members = build_members(
            settings.discovery, settings.engines, self._set_engines, self.follow_rules
        )
        members.start()
        self._closes("search for engines", members.close)
        servers = [] if self._servers is None else self._servers.open
        self.reloading = Reloading(
            *(settings, self._auth, self._pool, servers, members.relist),
            others=None if self._process is None else self._process.prepare_others,
        )

    async def _set_engines(self, engines: Sequence[EngineSettings]) -> None:
        await self.fleet.set_engines(engines)
        there = [engine.name for engine in self.fleet.engines]
        self._auth.failover.standing.forget_others(there)
        self.director.stats.forget_others(there)
        self.worth.own.forget_others(there)

    def follow_rules(self, objectives: dict[str, int], rewrites: list[ModelRewrite]) -> None:
        """Let what Kubernetes says go before what the settings do."""
        if self._process is not None and self._process.on_rules is not None:
            self._process.on_rules(objectives, rewrites)
        rewriting = Rewrites([*rewrites, *self.settings.model_rewrites])
        self.director.follow_rules({**self.settings.objectives, **objectives}, rewriting)

    def _is_ready(self) -> bool:
        return self.members is not None and self.members.synced and self.fleet.loading is None

    def _open_director(self) -> Director:
        """Raises ConfigError for a gate that cannot be had."""
        settings = self.settings
        on_judged = None if self._process is None else self._process.on_judged
        gate = fleet_gate(settings, self.fleet, self._is_busy, on_judged)
        if gate is not None:
            self._closes("checks of structured output", gate.close)
        for note in self.scheduling.notes:
            log.info("%s", note)
        # One at a time: parsers keep the GIL, and several would starve the event loop.
        large_bodies = ThreadPoolExecutor(1, "bodies", partial(AFTER_TEXT.set, give_way))
        self._stack.callback(large_bodies.shutdown, wait=True, cancel_futures=True)
        once = build_tokens_once(settings, self.fleet, picks=self._picks)
        return Director(
            *(self.fleet, self.indexer.matcher, self.scheduling, time.monotonic),
            rewrites=Rewrites(settings.model_rewrites),
            priorities=settings.objectives,
            scoring=settings.scoring,
            behind_proxy=self._picks,
            off_loop=partial(_run_in, large_bodies),
            later=Later(EVENT_SECONDS),
            gate=gate,
            standing=self._auth.failover.standing,
            on_request=self._on_request(),
            tokens_once=once,
            legs=build_legs(settings.kv_transfer, picks=self._picks),
            continuing=build_continuing(settings, self.fleet, once, picks=self._picks),
            quarantine=self._auth.failover.quarantine,
            fetch=self._fetch,
        )

    def _on_request(self) -> Sequence[OnRequest]:
        watching = [self._traffic.conversations, self.worth]
        looking = looking_at_requests(
            *(self.settings, self._publishes, self.fleet, self._offers, watching)
        )
        found = methods([*looking, *self._extensions], "on_request")
        is_warm = self.settings.scoring and self.settings.kv_transfer.hand_over_seconds
        return [*found, self._warm.on_request] if is_warm else found

    def _is_busy(self) -> bool:
        server = self._servers.public if self._servers is not None else None
        return server is not None and server.stats.answering > BUSY_WITH_ANSWERS

    def _closes(self, what: str, close: Callable[[], Awaitable[None]]) -> None:
        async def closing() -> None:
            await close()
            log.log(self._parts_level, "%s stopped", what)

        self._stack.push_async_callback(closing)

    def _republish(self, engine: Engine, _: HolderId, batch: Batch) -> None:
        assert self._publisher is not None
        publish_events(self._publisher.publish, engine, batch)


async def _run_in(
    threads: ThreadPoolExecutor, parse: Callable[[bytes], _Parsed], body: bytes
) -> _Parsed:
    """Return the result of `parse`, worked out by one of these threads."""
    return await asyncio.get_running_loop().run_in_executor(threads, parse, body)
