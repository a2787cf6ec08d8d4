"""The engines: who is there, what they serve, how busy they are. Owns and closes the rest.

One task per engine asks it for what it is (discovery), then for its load, again and again.
An engine that is not there yet, or goes away, is a warning and a metric, never a crash.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from inferway.config import ServeSettings
from inferway.errors import NoEndpointError, UnknownModelError, UpstreamError, UpstreamTimeoutError
from inferway.fleet.discovery import EventSource, ModelCard, discover, fetch
from inferway.fleet.engine import SILENT_SCRAPES, Engine
from inferway.fleet.load import parse_load
from inferway.fleet.silent_zero import StreamEvidence
from inferway.fleet.subscriber import EventSubscriber
from inferway.index.protocol import Clear, Index
from inferway.model import Candidates, Column, Endpoint, HolderId, Reason
from inferway.prompts.served import NoPrompts, PromptSource, ServedModel

log = logging.getLogger("inferway.fleet")

REDISCOVER_SECONDS = 10.0  # how often an engine is asked for its models again
SCRAPE_TIMEOUT_SECONDS = 5.0
RECENT_SECONDS = 30.0  # time constant with which sent tokens stop being recent
TOKENIZER_SECONDS = 15.0  # how long the start waits for tokenizers
TOKENIZER_RETRY_SECONDS = 30.0  # a hub that was away may be back

# (model's name, its directory or hub id, max_model_len) -> how its requests become tokens
LoadPrompts = Callable[[str, str, int | None], Awaitable[PromptSource]]
Subscribe = Callable[[Engine, EventSource, Endpoint], EventSubscriber]


_COLUMNS = ("in_flight", "others", "waiting", "kv_usage", "recent_tokens")


@dataclass(slots=True)
class _Table:
    """The load columns; row i belongs to holder i."""

    in_flight: Column = field(default_factory=lambda: np.zeros(0))
    others: Column = field(default_factory=lambda: np.zeros(0))
    waiting: Column = field(default_factory=lambda: np.zeros(0))
    kv_usage: Column = field(default_factory=lambda: np.zeros(0))
    recent_tokens: Column = field(default_factory=lambda: np.zeros(0))

    def grow(self, rows: int) -> None:
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(rows - len(column))]))


# Rows of a table's columns. A slice, where it is one, gives views and costs a tenth.
Rows = slice | NDArray[np.intp]


def _rows(holders: Sequence[int]) -> Rows:
    first, last = holders[0], holders[-1]
    if list(holders) == list(range(first, last + 1)):
        return slice(first, last + 1)
    return np.array(holders, dtype=np.intp)


class Fleet:
    """Writes the load columns; everybody else reads. `start`, then `close`."""

    def __init__(
        self,
        settings: ServeSettings,
        index: Index,
        load_prompts: LoadPrompts,
        subscribe: Subscribe,
    ) -> None:
        self.engines = [Engine(e, e.authorization()) for e in settings.engines]
        self.models: dict[str, ServedModel] = {}
        self._settings = settings
        self._index = index
        self._load_prompts = load_prompts
        self._subscribe = subscribe
        self._endpoints: list[Endpoint] = []
        self._block_sizes: list[int | None] = []  # by holder
        self._table = _Table()
        self._rows: dict[str, Rows] = {}  # model -> rows of its live endpoints, if any
        self._live: dict[str, list[Endpoint]] = {}
        self._row_of: dict[str, dict[HolderId, int]] = {}
        self._sizes: dict[str, NDArray[np.int64]] = {}
        self._nothing: dict[str, Column] = {}  # shared: a request that matches makes its own
        self._prompts: dict[str, PromptSource] = {}  # by root: engines share a tokenizer
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = {engine.name: asyncio.Event() for engine in self.engines}
        self._session: aiohttp.ClientSession | None = None
        self._fade = math.exp(-settings.scrape_seconds / RECENT_SECONDS)

    async def start(self) -> None:
        """Asks every engine once, side by side, then goes on watching them."""
        timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout)
        await asyncio.gather(*(self._look(engine) for engine in self.engines))
        if self._tasks:  # tokenizers: what comes before them would go by load only
            await asyncio.wait(self._tasks, timeout=TOKENIZER_SECONDS)
        for engine in self.engines:
            self._spawn(self._watch(engine))

    async def close(self) -> None:
        """Stops watching, closes every subscriber."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self.engines:
            for subscriber in engine.subscribers:
                await subscriber.close()
        if self._session is not None:
            await self._session.close()

    # what the director asks

    def model(self, name: str) -> ServedModel:
        """Raises UnknownModelError naming the known ones."""
        served = self.models.get(name)
        if served is not None:
            return served
        if not self.models:
            raise NoEndpointError(
                f"model {name!r}: no engine has answered yet; tried "
                + ", ".join(engine.name for engine in self.engines)
            )
        raise UnknownModelError(
            f"model: no engine serves {name!r}; known: {', '.join(sorted(self.models))}",
            param="model",
        )

    def candidates(self, model: str) -> Candidates:
        """The live endpoints of `model`, matched columns empty."""
        rows = self._rows.get(model)
        if rows is None:
            gone = [e.name for e in self.engines if model in e.model_names]
            raise NoEndpointError(f"model {model!r}: its engines are gone: {', '.join(gone)}")
        table, live = self._table, self._live[model]
        return Candidates(
            endpoints=live,
            rows=self._row_of[model],
            block_sizes=self._sizes[model],
            in_flight=table.in_flight[rows],
            others=table.others[rows],
            waiting=table.waiting[rows],
            kv_usage=table.kv_usage[rows],
            recent_tokens=table.recent_tokens[rows],
            matched_blocks=self._nothing[model],
            prompt_blocks=self._nothing[model],
        )

    def block_size(self, holder: HolderId) -> int | None:
        return self._block_sizes[holder]

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        self._table.in_flight[endpoint.holder] += 1
        self._table.recent_tokens[endpoint.holder] += new_tokens

    def release(self, endpoint: Endpoint) -> None:
        self._table.in_flight[endpoint.holder] -= 1

    def suspect(self, endpoint: Endpoint) -> None:
        """A request just failed there: ask at once how it is."""
        self._wake[endpoint.engine].set()

    def in_flight(self, engine: Engine) -> int:
        return int(sum(self._table.in_flight[e.holder] for e in engine.endpoints))

    def evidence(self, model: str) -> list[StreamEvidence]:
        """What the event streams of a model's engines have brought: for the silent-zero alarm."""
        return [
            evidence
            for engine in self.engines
            if model in engine.model_names
            for evidence in engine.evidence()
        ]

    def report(self) -> dict[str, Any]:
        """Engines and models as /ready shows them, with what is wrong in words."""
        return {
            "engines": [engine.report() for engine in self.engines],
            "models": {
                name: {"reason": served.prompts.reason, "why": served.prompts.why}
                if isinstance(served.prompts, NoPrompts)
                else {"reason": "kv-aware"}
                for name, served in sorted(self.models.items())
            },
        }

    # how the engines are watched

    async def _watch(self, engine: Engine) -> None:
        wake = self._wake[engine.name]
        loop = asyncio.get_running_loop()
        asked = loop.time()
        while True:
            suspected = await _set_within(wake, self._settings.scrape_seconds)
            wake.clear()
            # what was away may have been started anew, as something else
            away = not engine.healthy or engine.is_cut_off
            if suspected or away or loop.time() - asked > REDISCOVER_SECONDS:
                asked = loop.time()
                await self._look(engine)
            else:
                await self._scrape(engine)

    async def _look(self, engine: Engine) -> None:
        """Asks what the engine is; what changed is applied and logged once."""
        assert self._session is not None
        try:
            facts = await discover(self._session, engine.url, engine.http_headers)
        except UpstreamError as e:
            self._missed(engine, e)
            return
        first = engine.facts is None or not engine.healthy
        changed = engine.facts != facts
        engine.facts = facts
        if changed:
            for finding in facts.findings:
                if engine.settings.events is None:
                    log.warning("engine %s: %s", engine.name, finding)
            await self._admit(engine)
        if first:
            self._found(engine)
        await self._scrape(engine)

    async def _scrape(self, engine: Engine) -> None:
        assert self._session is not None
        try:
            raw = await fetch(self._session, f"{engine.url}/metrics", engine.http_headers)
        except UpstreamError as e:
            self._missed(engine, e)
            return
        engine.load = load = parse_load(raw.decode(errors="replace"))
        if not engine.healthy:
            self._found(engine)
        engine.failures = 0
        if any(self._block_sizes[e.holder] != engine.block_size for e in engine.endpoints):
            self._resized(engine)
        share = max(1, len(engine.endpoints))
        for endpoint in engine.endpoints:
            row, table = endpoint.holder, self._table
            total = (load.running + load.waiting) / share
            table.others[row] = max(0.0, total - table.in_flight[row])
            table.waiting[row] = load.waiting / share
            table.kv_usage[row] = load.kv_usage
            table.recent_tokens[row] *= self._fade

    def _resized(self, engine: Engine) -> None:
        """Its events show blocks of another size than it, or somebody, had told."""
        if engine.block_size_told is not None:
            log.warning(
                "engine %s: caches blocks of %s tokens, not of %s as told; going by its events",
                engine.name,
                engine.block_size,
                engine.block_size_told,
            )
        self._refresh()

    def _missed(self, engine: Engine, error: UpstreamError) -> None:
        engine.failures += 1
        patient = isinstance(error, UpstreamTimeoutError) and engine.failures < SILENT_SCRAPES
        if engine.healthy and patient:
            return
        if engine.healthy or not engine.warned:
            engine.warned = True
            log.warning("engine %s is not there: %s; it is looked for again", engine.name, error)
        if engine.healthy:
            engine.healthy = False
            self._refresh()

    def _found(self, engine: Engine) -> None:
        engine.healthy, engine.warned, engine.failures = True, False, 0
        events = ", ".join(source.endpoint for source in engine.sources) or "none"
        log.info(
            "engine %s: serves %s, block size %s, KV events %s",
            engine.name,
            ", ".join(engine.model_names),
            engine.block_size or "unknown (give block_size=N)",
            events,
        )
        for subscriber in engine.subscribers:
            subscriber.resync()
        self._refresh()

    # what they serve

    async def _admit(self, engine: Engine) -> None:
        """Endpoints and subscribers for an engine that has just said what it is."""
        if not engine.endpoints:
            ranks: Sequence[int] = [source.rank for source in engine.sources]
            for rank in ranks if len(ranks) > 1 else [None]:
                engine.endpoints.append(self._endpoint(engine, rank))
        if [subscriber.source for subscriber in engine.subscribers] != list(engine.sources):
            await self._listen(engine)
        for card in engine.facts.models if engine.facts else ():
            self._learn(engine, card)
        self._refresh()

    async def _listen(self, engine: Engine) -> None:
        """To the sockets that the engine names now; what others told is forgotten."""
        for subscriber in engine.subscribers:
            await subscriber.close()
            self._index.apply([Clear(subscriber.holder)])
        engine.subscribers = []
        for source, endpoint in zip(engine.sources, engine.endpoints, strict=False):
            subscriber = self._subscribe(engine, source, endpoint)
            engine.subscribers.append(subscriber)
            subscriber.start()

    def _endpoint(self, engine: Engine, rank: int | None) -> Endpoint:
        headers = list(engine.headers)
        if rank is not None:
            headers.append((b"x-data-parallel-rank", b"%d" % rank))
        endpoint = Endpoint(engine.name, engine.url, len(self._endpoints), rank, tuple(headers))
        self._endpoints.append(endpoint)
        self._block_sizes.append(engine.block_size)
        self._table.grow(len(self._endpoints))
        return endpoint

    def _learn(self, engine: Engine, card: ModelCard) -> None:
        """A model's tokenizer is loaded once per root, beside the running requests."""
        if card.name in self.models:
            return
        base = self._base_of(engine, card)
        root = self._settings.tokenizers.get(card.name) or self._settings.tokenizers.get(base.name)
        root = root or base.root or base.name
        lora = card.name if card.parent else None
        answers_as = card.name if lora else engine.model_names[0]  # as vLLM does
        if root not in self._prompts:
            why = f"model {card.name!r}: its tokenizer is being loaded"
            self._prompts[root] = NoPrompts(Reason.TOKENIZER_LOADING, why)
            self._spawn(self._load(card.name, root, base.max_model_len))
        self.models[card.name] = ServedModel(
            card.name, self._prompts[root], lora=lora, answers_as=answers_as
        )

    def _base_of(self, engine: Engine, card: ModelCard) -> ModelCard:
        assert engine.facts is not None
        parents = [m for m in engine.facts.models if card.parent and m.name == card.parent]
        return parents[0] if parents else card

    async def _load(self, name: str, root: str, max_model_len: int | None) -> None:
        prompts = await self._load_prompts(name, root, max_model_len)
        before, self._prompts[root] = self._prompts[root], prompts
        for served in list(self.models.values()):
            if served.prompts is before:
                self.models[served.name] = replace(served, prompts=prompts)
        if isinstance(prompts, NoPrompts):
            if not isinstance(before, NoPrompts) or before.why != prompts.why:
                log.warning("%s; its requests go by load only", prompts.why)
            self._spawn(self._load_again(name, root, max_model_len))

    async def _load_again(self, name: str, root: str, max_model_len: int | None) -> None:
        await asyncio.sleep(TOKENIZER_RETRY_SECONDS)
        await self._load(name, root, max_model_len)

    def _refresh(self) -> None:
        """Who serves what, and in blocks of what size, as of now."""
        for engine in self.engines:
            for endpoint in engine.endpoints:
                self._block_sizes[endpoint.holder] = engine.block_size
        for name, served in self.models.items():
            engines = [e for e in self.engines if e.healthy and name in e.model_names]
            live = [endpoint for engine in engines for endpoint in engine.endpoints]
            sizes = sorted({e.block_size for e in engines if e.block_size is not None})
            self._live[name] = live
            self._rows.pop(name, None)
            self._row_of[name] = {endpoint.holder: row for row, endpoint in enumerate(live)}
            self._sizes[name] = np.array([self._block_sizes[e.holder] or 0 for e in live], np.int64)
            self._nothing[name] = np.zeros(len(live))
            self._nothing[name].setflags(write=False)
            if live:
                self._rows[name] = _rows([endpoint.holder for endpoint in live])
            if list(served.block_sizes) != sizes:
                self.models[name] = replace(served, block_sizes=sizes)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the fleet ended", exc_info=error)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
