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
from functools import partial
from typing import Any

import zmq
import zmq.asyncio

from inferway.config import ServeSettings
from inferway.director import Director
from inferway.errors import InferwayError, RenderError
from inferway.events.wire import Batch, normalise
from inferway.fleet.discovery import EventSource
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.subscriber import EventSubscriber
from inferway.frontends.http.metrics import MetricsPage
from inferway.frontends.http.routes import Observer, Routes
from inferway.frontends.http.server import HttpServer
from inferway.frontends.observers import AlarmObserver, DecisionPublisher
from inferway.frontends.publisher import Publisher, topic_name
from inferway.index.memory import MemoryIndex
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import Endpoint, HolderId, Reason
from inferway.openai_api.requests import ParsedRequest
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.renderer import GetOrCreateTokenizerKeyRequest, Renderer
from inferway.prompts.served import NoPrompts, PromptSource
from inferway.scheduling.least_loaded import LeastLoaded
from inferway.scheduling.profile import kv_aware
from inferway.upstream.pool import Pool

log = logging.getLogger("inferway")

# An engine whose block size nobody has told yet is listened to all the same: its first event
# tells. Until then this is what is expected.
ASSUMED_BLOCK_SIZE = 16

# Threads that render or parse large bodies must not keep the GIL from the event loop for
# CPython's default 5 ms at a time (DESIGN.md, decision 4).
SWITCH_INTERVAL_SECONDS = 0.0005


class Gateway:
    """`inferway serve` as an object: `start`, then `port`; `close` ends it. A `renderer` that
    is given stays the giver's, who closes it."""

    def __init__(self, settings: ServeSettings, renderer: Renderer | None = None) -> None:
        self.settings = settings
        self.index = MemoryIndex()
        self._stack = AsyncExitStack()
        self._own_renderer = renderer is None
        self._renderer = renderer or Renderer()
        self._publisher: Publisher | None = None
        self._server: HttpServer | None = None
        self.fleet = Fleet(settings, self.index, self._load_prompts, self._subscribe)

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
        if self._own_renderer:
            self._closes("tokenizers", _soon(self._renderer.close))
        self._zmq: zmq.asyncio.Context = zmq.asyncio.Context()
        self._stack.callback(self._zmq.destroy, linger=200)
        if settings.publish is not None:
            self._publisher = Publisher(settings.publish, zmq.Context(self._zmq))
            self._closes("publisher", _soon(self._publisher.close))
        pool = Pool(settings.timeouts)
        self._closes("engine connections", pool.close)
        director = Director(
            self.fleet,
            self.index,
            SpeculativeOverlay(),
            kv_aware() if settings.scoring else LeastLoaded(),
            scoring=settings.scoring,
            off_loop=_in_thread,
        )
        metrics = MetricsPage(director, self.fleet, pool, self._renderer, self._publisher)
        routes = Routes(director, self.fleet, pool, metrics, self._observers())
        server = HttpServer(
            routes,
            host=settings.host,
            port=settings.port,
            limits=settings.limits,
            timeouts=settings.timeouts,
            access_log=settings.access_log is not None,
        )
        metrics.serve_with(server)
        self._closes("engine watch and event streams", self.fleet.close)
        # The port first: an occupied one is known before anything else takes time.
        await server.start()
        self._closes("HTTP server", server.stop)
        self._server = server
        await self.fleet.start()
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
        return observers

    def _subscribe(
        self, engine: Engine, source: EventSource, endpoint: Endpoint
    ) -> EventSubscriber:
        return EventSubscriber(
            source,
            holder=endpoint.holder,
            block_size=engine.block_size_told or ASSUMED_BLOCK_SIZE,
            index=self.index,
            name=engine.name,
            on_batch=partial(self._republish, engine) if self._publisher else None,
            context=self._zmq,
        )

    def _republish(self, engine: Engine, _: HolderId, batch: Batch) -> None:
        """The engine's events in one form, whatever form the engine speaks."""
        assert self._publisher is not None
        if not engine.model_names:
            return
        topic = f"kv.events.{topic_name(engine.model_names[0])}"
        for event in batch.events:
            self._publisher.publish(topic, {"engine": engine.name, **normalise(event)})

    async def _load_prompts(self, name: str, root: str, max_model_len: int | None) -> PromptSource:
        """A model's tokenizer and template. Without them its requests go by load only."""
        request = GetOrCreateTokenizerKeyRequest(root, token=os.environ.get("HF_TOKEN") or None)
        try:
            key = await self._renderer.get_or_create_tokenizer_key_async(request)
        except InferwayError as e:
            cure = f"give --tokenizer {name}=PATH"
            return NoPrompts(
                Reason(e.reason) if isinstance(e, RenderError) else Reason.NO_TOKENIZER,
                f"model {name!r}: no tokenizer from {root!r}: {e}; {cure}",
            )
        prompts = ModelPrompts(self._renderer, key, max_model_len)
        log.info(
            "model %s: tokenizer from %s, encoder %s (%s)", name, root, prompts.encoder, prompts.why
        )
        return prompts


async def serve(settings: ServeSettings) -> None:
    """Runs a gateway until SIGINT or SIGTERM. Raises ConfigError at start only."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    gateway = Gateway(settings)
    await gateway.start()
    await stop.wait()
    drain = settings.timeouts.drain
    log.info("shutting down; running answers have %g s, another Ctrl-C cuts them off", drain)
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, gateway.hurry)
    await gateway.close()
    log.info("all components stopped")


def _soon(close: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def closing() -> None:
        close()

    return closing


async def _in_thread(
    parse: Callable[[bytes], ParsedRequest[Any]], body: bytes
) -> ParsedRequest[Any]:
    return await asyncio.to_thread(parse, body)
