"""The composition root: builds the parts, passes them down, closes them in reverse."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random

import zmq
import zmq.asyncio

from inferway.config import ServeSettings
from inferway.events.dialect import SEEDS
from inferway.events.wire import Batch, normalise
from inferway.fleet.adoption import Adopter
from inferway.fleet.engine import Engine
from inferway.frontends.http.admin_key import AdminKey
from inferway.frontends.http.metrics import MetricsPage
from inferway.frontends.http.routes import Routes
from inferway.frontends.http.server import HttpServer
from inferway.frontends.observers import (
    AlarmObserver,
    DecisionPublisher,
    LiveProbe,
    Observer,
    PromptsForOrphans,
)
from inferway.frontends.publisher import Publisher, topic_name
from inferway.indexer import Indexer
from inferway.model import HolderId
from inferway.prompts.renderer import Renderer
from inferway.upstream.pool import Pool

log = logging.getLogger("inferway")

# Threads that render or parse large bodies must not keep the GIL from the event loop for
# CPython's default 5 ms at a time (DESIGN.md, decision 4).
SWITCH_INTERVAL_SECONDS = 0.0005


class Gateway:
    """`inferway serve` as an object: `start`, then `port`; `close` ends it. A `renderer` that
    is given stays the giver's, who closes it."""

    def __init__(self, settings: ServeSettings, renderer: Renderer | None = None) -> None:
        """Raises ConfigError."""
        self.settings = settings
        key = settings.admin_key()
        self._admin_key = None if key is None else AdminKey(key)
        self._stack = AsyncExitStack()
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self.indexer = Indexer(
            settings,
            renderer=renderer,
            context=self._context,
            on_batch=self._republish if settings.publish is not None else None,
        )
        self.index, self.fleet = self.indexer.index, self.indexer.fleet
        # an engine may have been given the same seed as we
        seeds = [*SEEDS, *filter(None, [os.environ.get("PYTHONHASHSEED")])]
        self._adopter = Adopter(self.fleet.engines, seeds=seeds)
        self._publisher: Publisher | None = None
        self._server: HttpServer | None = None

    @property
    def port(self) -> int:
        """Where it listens; with port 0 in the settings, the one that was free."""
        assert self._server is not None
        return self._server.port

    @property
    def publish_endpoint(self) -> str | None:
        """Where a subscriber connects, if anything is published."""
        return self._publisher.endpoint if self._publisher else None

    async def start(self) -> None:
        """Opens everything. Raises ConfigError, with all that was opened closed again."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def close(self) -> None:
        """Closes everything in reverse and says so."""
        await self._stack.aclose()

    def hurry(self) -> None:
        """A `close` that waits for running answers cuts them off instead."""
        if self._server is not None:
            self._server.cut()

    async def _start(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        settings = self.settings
        self._stack.callback(self._context.destroy, linger=200)
        if settings.publish is not None:
            self._publisher = Publisher(settings.publish, zmq.Context(self._context))
            self._closes("publisher", _soon(self._publisher.close))
        pool = Pool(settings.timeouts)
        self._closes("engine connections", pool.close)
        metrics = MetricsPage(
            self.indexer.director,
            self.fleet,
            pool,
            self.indexer.renderer,
            self._publisher,
            self.indexer.request_templates,
        )
        routes = Routes(self.indexer, pool, metrics, self._observers(), self._admin_key)
        server = HttpServer(
            routes,
            host=settings.host,
            port=settings.port,
            limits=settings.limits,
            timeouts=settings.timeouts,
            access_log=settings.access_log is not None,
        )
        metrics.serve_with(server)
        self._closes("engine watch, event streams and index", self.indexer.close)
        # The port first: an occupied one is known before anything else takes time.
        await server.start()
        self._closes("HTTP server", server.stop)
        self._server = server
        self._stack.callback(self.fleet.prober.stop)  # engines have enough to do with the rest
        await self.indexer.start()
        self._adopter.start()
        self._closes("adoption of orphans", self._adopter.close)
        # Tokenizers and templates live as long as we do: the collector need not look at them.
        gc.collect()
        gc.freeze()
        log.info("listening on http://%s:%d", settings.host, server.port)

    def _closes(self, what: str, close: Callable[[], Awaitable[None]]) -> None:
        async def closing() -> None:
            await close()
            log.info("%s stopped", what)

        self._stack.push_async_callback(closing)

    def _observers(self) -> list[Observer]:
        observers: list[Observer] = [AlarmObserver(self.fleet.evidence)]
        if self._publisher is not None:
            observers.append(
                DecisionPublisher(self._publisher, with_text=self.settings.publish_text)
            )
        observers.append(LiveProbe(self.fleet.prober, Random()))
        observers.append(PromptsForOrphans(self._adopter))
        return observers

    def _republish(self, engine: Engine, _: HolderId, batch: Batch) -> None:
        """The engine's events in one form, whatever form the engine speaks."""
        assert self._publisher is not None
        if not engine.model_names:
            return
        topic = f"kv.events.{topic_name(engine.model_names[0])}"
        for event in batch.events:
            self._publisher.publish(topic, {"engine": engine.name, **normalise(event)})


async def serve(settings: ServeSettings) -> None:
    """Runs a gateway until SIGINT or SIGTERM. Raises ConfigError at start only."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    gateway = Gateway(settings)
    if not await _start_unless(stop, gateway):
        return
    await stop.wait()
    drain = settings.timeouts.drain
    log.info("shutting down; running answers have %g s, another Ctrl-C cuts them off", drain)
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, gateway.hurry)
    await gateway.close()
    log.info("all components stopped")


async def _start_unless(stop: asyncio.Event, gateway: Gateway) -> bool:
    """False if it was stopped first: then what had been opened is closed again."""
    starting = asyncio.ensure_future(gateway.start())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        await starting
        return True
    log.info("stopped before everything had started")
    starting.cancel()
    await asyncio.wait({starting})
    return False


def _soon(close: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def closing() -> None:
        close()

    return closing
