"""The HTTP servers of a gateway: that of clients, and that of admins where they have their own."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from inferway.config import ServeSettings
from inferway.extension import Tap
from inferway.fleet.discovery.sources import Rules
from inferway.fleet.draining import HandsOver
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.shared_places import SharedPlaces
from inferway.http.cors import Cors
from inferway.http.hub import asking_hub, awaiting_hub, from_workers
from inferway.http.listening import UNIX, certificate_of, limits_of
from inferway.http.message import Request
from inferway.http.reload import Apply
from inferway.http.routes import Routes
from inferway.http.server import Handler, HttpServer, traced
from inferway.indexer import FleetParts
from inferway.metrics import Family
from inferway.model import HolderId
from inferway.telemetry.observers import WantsPrompts
from inferway.telemetry.publisher import Publisher
from inferway.telemetry.tracing import Tracing
from inferway.upstream.pool import Pool

log = logging.getLogger("inferway")

LOOPBACK = "127.0.0.1"
_MOST_NAMES = 5  # of models, in a line of the log


@dataclass(frozen=True, slots=True)
class Process:
    """The part of a gateway in several processes that serve together: it is the hub, which follows
    the engines and answers admins, or a worker, which answers requests and asks the hub for the
    rest at its Unix socket."""

    parts: FleetParts
    hub: str  # the socket's path
    is_hub: bool
    # of the hub: fetches what an admin path shows of all workers; adds their numbers to these;
    # prepares them for new settings; tells them what Kubernetes says
    gather: Callable[[str], Awaitable[None]] | None = None
    with_others: Callable[[Iterable[Family]], Iterator[Family]] | None = None
    prepare_others: Callable[[ServeSettings], Awaitable[Apply]] | None = None
    on_rules: Rules | None = None
    # of the hub: hears that other engines are drained; has workers hand over warm prefixes
    on_drained: Callable[[], None] | None = None
    hands_over: HandsOver | None = None
    # of a worker: what the hub does with its requests
    publisher: Publisher | None = None
    orphans: WantsPrompts | None = None
    # of a worker: tells the others what has come from an engine, which requests and which shapes
    # engines were lost with
    on_outcome: Callable[[str, bool], None] | None = None
    on_suspect: Callable[[str, str, bool], None] | None = None
    on_judged: Callable[[str, bool], None] | None = None

    @property
    def is_worker(self) -> bool:
        return not self.is_hub

    def places(self, fleet: Fleet) -> SharedPlaces:
        """Return the places that all processes have together, as this one sees them."""

        def row_of(name: str) -> HolderId | None:
            engine = fleet.engine(name)
            return engine.endpoints[0].holder if engine is not None and engine.endpoints else None

        return SharedPlaces(self.parts.columns, row_of, time.monotonic)


class Servers:
    """`public` and `admin` are None until they are open."""

    def __init__(self, settings: ServeSettings, process: Process | None, tap: Tap) -> None:
        """Answers that have ended go to `tap`. Raises ConfigError for a certificate that cannot be
        used."""
        self._of_clients: HttpServer | None = None
        self.public: HttpServer | None = None
        self.admin: HttpServer | None = None
        self.certificate = certificate_of(settings)
        self._limits = limits_of(settings)
        self._settings = settings
        self._process = process
        self._tap = tap

    @property
    def open(self) -> list[HttpServer]:
        """The servers that are open."""
        return [each for each in (self.public, self.admin) if each is not None]

    def families(self) -> Iterable[Family]:
        """Return the metric families of the server of clients, once there is one."""
        return () if self._of_clients is None else self._of_clients.families()

    def for_clients(self, routes: Routes, tracing: Tracing | None, pool: Pool) -> HttpServer:
        """Return the server of clients, which is not open yet; of a hub, that of its workers. Call
        it once."""
        self._of_clients = server = self._for_clients(routes, tracing, pool)
        return server

    def _for_clients(self, routes: Routes, tracing: Tracing | None, pool: Pool) -> HttpServer:
        settings, process = self._settings, self._process
        if process is not None and process.is_hub:
            return HttpServer(
                from_workers(routes),
                host=f"{UNIX}{process.hub}",
                limits=settings.limits,
                timeouts=settings.timeouts,
            )
        handler = self._wrapped(routes, tracing)
        if process is None:
            return self._server(handler, routes.awaits_body, settings.host, settings.port)
        handler = asking_hub(handler, pool, process.hub)
        awaits_body = awaiting_hub(routes.awaits_body)
        return self._server(handler, awaits_body, settings.host, settings.port)

    async def open_admin_port(self, routes: Routes, port: int) -> HttpServer:
        """Listen for admins. Raises ConfigError."""
        host = self._settings.host
        self.admin = server = self._server(
            routes.admin,
            routes.admin_awaits_body,
            LOOPBACK if host.startswith(UNIX) else host,
            port,
        )
        await server.start()
        log.info("the gateway answers admin paths and metrics at %s", server.url)
        return server

    def told(self, url: str, engines: Sequence[Engine], forwards: bool, workers: int) -> str:
        """Return where clients and browsers find the gateway, which listens at `url`, and what is
        behind it. The URL is followed by a space: programs look for it."""
        at = url if self.admin is None else self.admin.url
        answer = [engine for engine in engines if engine.healthy]
        models = sorted({name for engine in answer for name in engine.model_names})
        more = f" and {len(models) - _MOST_NAMES} more" if len(models) > _MOST_NAMES else ""
        parts = [
            f"for clients {url}/v1" if forwards and url.startswith("http") else "",
            f"page {at}/" if self._settings.ui and at.startswith("http") else "",
            f"{workers} workers" if workers else "",
            f"{len(answer)} of {len(engines)} engines answer" if engines else "no engine yet",
            f"models {', '.join(models[:_MOST_NAMES])}{more}" if models else "",
        ]
        return f"the gateway is listening on {url} ({'; '.join(filter(None, parts))})"

    def stop_accepting(self) -> None:
        """Take no more connections; what runs goes on."""
        for server in self.open:
            server.stop_accepting()

    def cut(self) -> None:
        """Take no more connections, and cut off the answers that run."""
        self.stop_accepting()
        for server in self.open:
            server.cut()

    def _wrapped(self, routes: Routes, tracing: Tracing | None) -> Handler:
        """Return the routes' handler within those that stand before it: spans, then CORS."""
        handler: Handler = routes
        if tracing is not None:
            handler = traced(handler, tracing, routes.paths)
        if self._settings.cors_origins:
            handler = Cors(handler, self._settings.cors_origins)
        return handler

    def _server(
        self, handler: Handler, awaits_body: Callable[[Request], bool], host: str, port: int
    ) -> HttpServer:
        return HttpServer(
            handler,
            host=host,
            port=port,
            limits=self._limits,
            timeouts=self._settings.timeouts,
            tap=self._tap,
            awaits_body=awaits_body,
            certificate=self.certificate,
            reuse_port=self._process is not None and self._process.is_worker,
        )
