"""Which engine is asked to render a model's prompts, and how.

The engines that serve it take turns, by what each can do:

render     POST …/render (vLLM with --enable-scale-out): the code that renders its own requests
tokenize   POST /tokenize, once its ids were those of the engine's own prompts for the chats of
           prompts/fidelity/probe.py; and only for requests of which it looks at every field
nothing    else; looked at again after `RECHECK_SECONDS`, like `tokenize`: engines are started
           anew with other flags

All engines of a model are taken to render alike, as everywhere; the probe tells if they do not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any

import msgspec

from inferway.errors import UpstreamError, crash_report
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_token_ids import NoSuchServiceError, RenderClient, ask, known_to_tokenize
from inferway.model import TokenIds
from inferway.openai_api.requests import CHAT, parse_chat, parse_completion
from inferway.prompts.fidelity.probe import PROBES, NotRendered, compare
from inferway.prompts.remote_render_cache import RenderKey, asked_for

log = logging.getLogger("inferway.remote")

RECHECK_SECONDS = 300.0
MIN_AGREEING = 3  # probes, for /tokenize to be believed
MISSES = 5
MAX_ASKING = 4
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0

# What an engine calls each model, by the key of the model's source.
Names = Callable[[Engine], Mapping[str, str]]


class Way(StrEnum):
    """The way in which an engine renders one model."""

    UNKNOWN = "unknown"  # it is asked to render, and then we know
    RENDER = "render"
    PROVING = "proving"
    TOKENIZE = "tokenize"
    NOTHING = "nothing"


@dataclass(slots=True)
class RenderBreaker:
    """Whether one engine is asked to render, and whether anybody waits for it.

    closed                       up to `MAX_ASKING` questions at once, each is waited for
    `MISSES` misses in a row     open: a question only when no other is on its way, and nobody waits
    an answer in time            closed

    A miss is an answer that is late or fails. After a failure the next question has to wait, twice
    as long each time. What is late has cost its caller the budget; so a service that is slow, or
    that takes questions and never answers, costs a few requests that much, and nobody after them.
    """

    asking: int = 0  # questions on their way
    misses: int = 0  # in a row
    _pause: float = 0.0
    _retry_at: float = 0.0

    @property
    def closed(self) -> bool:
        return self.misses < MISSES

    def may_ask(self, now: float) -> bool:
        if self.closed:
            return self.asking < MAX_ASKING
        return self.asking == 0 and now >= self._retry_at

    def in_time(self) -> None:
        self.misses, self._pause, self._retry_at = 0, 0.0, 0.0

    def late(self) -> None:
        self.misses += 1

    def failed(self, now: float) -> None:
        self.misses += 1
        self._pause = min(max(2 * self._pause, PAUSE_SECONDS), MAX_PAUSE_SECONDS)
        self._retry_at = now + self._pause


@dataclass(slots=True)
class Site:
    """An engine, and how it renders one model."""

    engine: Engine
    model: str  # as this engine calls it
    breaker: RenderBreaker
    way: Way = Way.UNKNOWN
    until: float = 0.0  # when the way is looked at again


class RenderingEngines:
    """The connections, breakers and tasks that the models share; then `close` it."""

    def __init__(self, engines: Sequence[Engine], client: EngineClient, names: Names) -> None:
        self.engines = engines
        self.client = client
        self.names = names
        self._breakers: dict[str, RenderBreaker] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def breaker(self, engine: Engine) -> RenderBreaker:
        return self._breakers.setdefault(engine.name, RenderBreaker())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class RenderSites:
    """The engines that render one model's prompts; `key` is that of its source, `model` what it is
    called in the log."""

    def __init__(self, engines: RenderingEngines, key: str, model: str) -> None:
        self._engines = engines
        self._key = key
        self._model = model
        self._sites: dict[str, Site] = {}
        self._turn = count()

    def forget(self, engine: Engine) -> None:
        """Forget how an engine renders; it is found out anew."""
        self._sites.pop(engine.name, None)

    @property
    def ways(self) -> Mapping[str, Way]:
        """The ways by engine; those that have not been asked are not among them."""
        return {name: site.way for name, site in sorted(self._sites.items())}

    def next(self, asked: RenderKey) -> Site | None:
        """Return the next engine in turn that may be asked for this; None if none may."""
        now = asyncio.get_running_loop().time()
        sites = self._live(now)
        first = next(self._turn)
        for i in range(len(sites)):
            site = sites[(first + i) % len(sites)]
            able = site.way in (Way.UNKNOWN, Way.RENDER) or (
                site.way is Way.TOKENIZE and known_to_tokenize(asked)
            )
            if able and site.breaker.may_ask(now):
                return site
        return None

    def _live(self, now: float) -> list[Site]:
        live = []
        for engine in self._engines.engines:
            model = self._engines.names(engine).get(self._key) if engine.healthy else None
            if model is None:
                continue
            site = self._sites.get(engine.name)
            if site is None or site.model != model:
                site = self._sites[engine.name] = Site(engine, model, self._engines.breaker(engine))
            if site.way in (Way.TOKENIZE, Way.NOTHING) and now >= site.until:
                site.way = Way.UNKNOWN
            live.append(site)
        return live

    async def call(self, site: Site, asked: RenderKey) -> Sequence[TokenIds]:
        """Ask an engine for the token ids. Raises UpstreamError; after NoSuchServiceError the
        engine's /tokenize is put to the proof."""
        caller = RenderClient(self._engines.client, site.engine.url, site.engine.headers)
        if site.way is Way.TOKENIZE:
            return await caller.tokenize(asked, site.model)
        try:
            prompts = await caller.render(asked, site.model)
        except NoSuchServiceError as e:
            if site.way is not Way.PROVING:
                site.way = Way.PROVING
                self._engines.spawn(self._prove(site, str(e)))
            raise
        if site.way is not Way.RENDER:
            site.way = Way.RENDER
            log.info(
                "the prompts of model %r are rendered by engine %s", self._model, site.engine.name
            )
        return prompts

    async def _prove(self, site: Site, why: str) -> None:
        try:
            fault = await self._tokenize_fault(site)
        except UpstreamError as e:
            fault = str(e)
        except Exception as e:
            log.error(
                "the gateway could not prove /tokenize of engine %s: %s",
                site.engine.name,
                crash_report(e),
            )
            fault = "a fault of ours"
        site.way = Way.TOKENIZE if fault is None else Way.NOTHING
        site.until = asyncio.get_running_loop().time() + RECHECK_SECONDS
        log.info(
            "model %r: engine %s does not render (%s), and its /tokenize %s",
            self._model,
            site.engine.name,
            why,
            "gives the ids of its prompts" if fault is None else f"is of no use: {fault}",
        )

    async def _tokenize_fault(self, site: Site) -> str | None:
        """What is wrong with the engine's /tokenize; None if nothing is. Raises UpstreamError."""
        client, engine, agreeing = self._engines.client, site.engine, 0
        caller = RenderClient(client, engine.url, engine.headers)
        for probe in PROBES:
            # /tokenize does not know of choices; no choice is "auto", which changes nothing
            body = {k: v for k, v in probe.body(site.model).items() if k != "tool_choice"}
            theirs = await ask(client, engine.url, engine.headers, probe.path, body)
            if isinstance(theirs, NotRendered):
                continue
            raw = msgspec.json.encode(body)
            parsed = parse_chat(raw) if probe.path == CHAT else parse_completion(raw)
            ids = await caller.tokenize(asked_for(parsed, 0.0), site.model)
            if compare(ids, theirs) is not None:
                return f"it differs for the probe {probe.name!r}"
            agreeing += 1
        return None if agreeing >= MIN_AGREEING else f"only {agreeing} probes are answered there"
