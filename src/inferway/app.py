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
from random import Random
from typing import Any

import zmq
import zmq.asyncio

from inferway.config import ServeSettings
from inferway.director import Director
from inferway.errors import ConfigError, HelperError, InferwayError, RenderError
from inferway.events.wire import Batch, normalise
from inferway.fleet.discovery import EventSource
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.subscriber import EventSubscriber
from inferway.frontends.http.metrics import MetricsPage
from inferway.frontends.http.routes import Routes
from inferway.frontends.http.server import HttpServer
from inferway.frontends.observers import AlarmObserver, DecisionPublisher, LiveProbe, Observer
from inferway.frontends.publisher import Publisher, topic_name
from inferway.index.memory import MemoryIndex
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import Endpoint, HolderId, Reason
from inferway.openai_api.requests import ParsedRequest
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.renderer import GetOrCreateTokenizerKeyRequest, Renderer
from inferway.prompts.request_templates import RequestTemplates
from inferway.prompts.served import ModelSource, NoPrompts, PromptSource
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
        self._request_templates: RequestTemplates | None = None
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
        if settings.trust_request_chat_template:
            await self._start_request_templates()
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
        metrics = MetricsPage(
            director,
            self.fleet,
            pool,
            self._renderer,
            self._publisher,
            self._request_templates,
        )
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
        self._stack.callback(self.fleet.prober.stop)  # engines have enough to do with the rest
        await self.fleet.start()
        # Tokenizers and templates live as long as we do: the collector need not look at them.
        gc.collect()
        gc.freeze()
        log.info("listening on http://%s:%d", settings.host, server.port)

    async def _start_request_templates(self) -> None:
        self._request_templates = RequestTemplates()
        self._closes("helper for request templates", _soon(self._request_templates.close))
        try:
            await self._request_templates.start()
        except HelperError as e:
            raise ConfigError(f"trust_request_chat_template: {e}") from e

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

    async def _load_prompts(self, source: ModelSource) -> PromptSource:
        """A model's tokenizer and template. Without them its requests go by load only."""
        name, root = source.model, source.root
        request = GetOrCreateTokenizerKeyRequest(root, token=os.environ.get("HF_TOKEN") or None)
        try:
            key = await self._renderer.get_or_create_tokenizer_key_async(request)
            prompts = ModelPrompts(
                self._renderer,
                key,
                source.max_model_len,
                flags=source.flags,
                request_templates=self._request_templates,
            )
        except InferwayError as e:
            reason = Reason(e.reason) if isinstance(e, RenderError) else Reason.NO_TOKENIZER
            if reason is Reason.BAD_TEMPLATE:
                return NoPrompts(reason, f"model {name!r}: {e}")
            cure = f"give --tokenizer {name}=PATH"
            return NoPrompts(reason, f"model {name!r}: no tokenizer from {root!r}: {e}; {cure}")
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


async def _in_thread(
    parse: Callable[[bytes], ParsedRequest[Any]], body: bytes
) -> ParsedRequest[Any]:
    return await asyncio.to_thread(parse, body)
