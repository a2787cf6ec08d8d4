"""The engines: who is there, what they serve, how busy they are. Owns and closes the rest.

One task per engine asks it for what it is (discovery), then for its load, again and again.
An engine that is not there yet, or goes away, is a warning and a metric, never a crash.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from inferway.config import ModelSettings, ServeSettings
from inferway.errors import NoEndpointError, UnknownModelError, UpstreamError, UpstreamTimeoutError
from inferway.fleet.columns import LoadColumns, Rows, rows_of
from inferway.fleet.discovery import EventSource, ModelCard, discover, fetch_metrics
from inferway.fleet.engine import SILENT_SCRAPES, Engine
from inferway.fleet.load import parse_load
from inferway.fleet.prober import Prober
from inferway.fleet.remote_prompts import RemotePrompts, RemoteRenderers
from inferway.fleet.silent_zero import StreamEvidence
from inferway.fleet.subscriber import EventSubscriber
from inferway.index.protocol import Clear, Index
from inferway.model import Candidates, Column, Endpoint, HolderId, Reason
from inferway.prompts.served import ModelSource, NoPrompts, PromptSource, ServedModel

log = logging.getLogger("inferway.fleet")

REDISCOVER_SECONDS = 10.0  # how often an engine is asked for its models again
SCRAPE_TIMEOUT_SECONDS = 5.0
RECENT_SECONDS = 30.0  # time constant with which sent tokens stop being recent
TOKENIZER_SECONDS = 15.0  # how long the start waits for tokenizers
TOKENIZER_RETRY_SECONDS = 30.0  # a hub that was away may be back

LoadPrompts = Callable[[ModelSource], Awaitable[PromptSource]]
Subscribe = Callable[[Engine, EventSource, Endpoint], EventSubscriber]


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
        self._table = LoadColumns()
        self._rows: dict[str, Rows] = {}  # model -> rows of its live endpoints, if any
        self._live: dict[str, list[Endpoint]] = {}
        self._row_of: dict[str, dict[HolderId, int]] = {}
        self._sizes: dict[str, NDArray[np.int64]] = {}
        self._nothing: dict[str, Column] = {}  # shared: a request that matches makes its own
        self._prompts: dict[str, PromptSource] = {}  # by a source's key
        self._sources: dict[str, str] = {}  # model -> its source's key
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = {engine.name: asyncio.Event() for engine in self.engines}
        self._session: aiohttp.ClientSession | None = None
        engines = {engine.name: engine for engine in self.engines}
        self.prober = Prober(settings.probe, engines, self._subject, self._refresh)
        budget = settings.remote_render_ms / 1000
        self.remote = RemoteRenderers(self.engines, self._subjects, budget)
        self._fade = math.exp(-settings.scrape_seconds / RECENT_SECONDS)

    async def start(self) -> None:
        """Asks every engine once, side by side, then goes on watching them."""
        timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout)
        if self._settings.scoring:
            self.prober.open(self._session)
            self.remote.open(self._session)
        await asyncio.gather(*(self._look(engine) for engine in self.engines))
        if self._tasks:  # tokenizers: what comes before them would go by load only
            await asyncio.wait(self._tasks, timeout=TOKENIZER_SECONDS)
        for engine in self.engines:
            self._spawn(self._watch(engine))

    async def close(self) -> None:
        """Stops watching, closes every subscriber."""
        await self.prober.close()
        await self.remote.close()
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
            "models": {name: _routed_by(served) for name, served in sorted(self.models.items())},
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
            facts, metrics = await discover(self._session, engine.url, engine.http_headers)
        except UpstreamError as e:
            self._missed(engine, e)
            return
        first = engine.facts is None or not engine.healthy
        changed, others = engine.facts != facts, engine.base_models
        engine.facts = facts
        if changed:
            for finding in facts.findings:
                if engine.settings.events is None:
                    log.warning("engine %s: %s", engine.name, finding)
            await self._admit(engine)
        if first:
            self._found(engine)
        elif engine.base_models != others:
            self._probe(engine)
        self._loaded(engine, metrics)

    async def _scrape(self, engine: Engine) -> None:
        assert self._session is not None
        try:
            metrics = await fetch_metrics(self._session, engine.url, engine.http_headers)
        except UpstreamError as e:
            self._missed(engine, e)
            return
        if not engine.healthy:
            self._found(engine)
        self._loaded(engine, metrics)

    def _loaded(self, engine: Engine, metrics: str) -> None:
        """Its load, as its metrics tell."""
        engine.load = load = parse_load(metrics)
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
            for model in engine.proofs:
                self.prober.leave(engine, model)
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
        self._probe(engine)

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
        source = self._source(engine, card)
        self._sources[card.name] = source.key
        lora = card.name if card.parent else None
        answers_as = card.name if lora else engine.model_names[0]  # as vLLM does
        if source.key not in self._prompts:
            why = f"model {card.name!r}: its tokenizer is being loaded"
            self._prompts[source.key] = NoPrompts(Reason.TOKENIZER_LOADING, why)
            self._spawn(self._load(source))
        self.models[card.name] = ServedModel(
            card.name, self._prompts[source.key], lora=lora, answers_as=answers_as
        )

    def _source(self, engine: Engine, card: ModelCard) -> ModelSource:
        """An adapter's is its base model's, as in vLLM. Settings under any of the names that the
        engine gives its model hold for all of them."""
        bases = engine.base_models
        base = next((b for b in bases if b.name == card.parent), card)
        names = [base.name, *(other.name for other in bases)]
        given = self._settings.models
        flags = next((given[name] for name in names if name in given), ModelSettings())
        root = flags.tokenizer or base.root or base.name
        return ModelSource(card.name, root, base.max_model_len, flags)

    async def _load(self, source: ModelSource, before: NoPrompts | None = None) -> None:
        own = await self._load_prompts(source)
        self._install(source.key, self.remote.around(source, own), own)
        if isinstance(own, NoPrompts):
            if before is None or before.why != own.why:
                log.warning("%s; its requests go by load only where no engine renders", own.why)
            self._spawn(self._load_again(source, own))

    def _install(self, key: str, prompts: PromptSource, own: PromptSource) -> None:
        """`own` is what `prompts` are made of."""
        before, self._prompts[key] = self._prompts[key], prompts
        if before is prompts and isinstance(own, NoPrompts):
            return
        for served in list(self.models.values()):
            if served.prompts is before:
                self.models[served.name] = replace(served, prompts=prompts)
        for engine in self.engines:
            if engine.healthy:
                self._probe(engine, key)

    async def _load_again(self, source: ModelSource, before: NoPrompts) -> None:
        await asyncio.sleep(TOKENIZER_RETRY_SECONDS)
        await self._load(source, before)

    # whether they render as we do

    def _probe(self, engine: Engine, source: str | None = None) -> None:
        """Has the engine asked, for each model once, whatever its names."""
        subjects = self._subjects(engine)
        self.prober.forget_others(engine, subjects.values())
        for key, model in subjects.items():
            prompts = self._prompts[key]
            if source in (None, key) and not isinstance(prompts, NoPrompts):
                self.prober.join(engine, model, prompts)

    def _subjects(self, engine: Engine) -> dict[str, str]:
        """A source's key -> the name under which the engine is asked for it."""
        subjects: dict[str, str] = {}
        for card in engine.base_models:
            if card.name in self._sources:  # else it has only just been told
                subjects.setdefault(self._sources[card.name], card.name)
        return subjects

    def _subject(self, engine: Engine, model: str) -> str:
        return self._subjects(engine).get(self._sources[model], model)

    def _unfaithful(self, engines: Sequence[Engine], model: str) -> str | None:
        for engine in engines:
            if any(proof.fault for proof in engine.proofs.values()):
                proof = engine.proofs.get(self._subject(engine, model))
                if proof is not None and proof.fault is not None:
                    return f"engine {engine.name} renders otherwise than we do: {proof.fault}"
        return None

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
                self._rows[name] = rows_of([endpoint.holder for endpoint in live])
            unfaithful = self._unfaithful(engines, name)
            if list(served.block_sizes) != sizes or served.unfaithful != unfaithful:
                self.models[name] = replace(served, block_sizes=sizes, unfaithful=unfaithful)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the fleet ended", exc_info=error)


def _routed_by(served: ServedModel) -> dict[str, Any]:
    """For /ready: the reason that its requests are counted under, and why."""
    if isinstance(served.prompts, RemotePrompts) and served.unfaithful is None:
        return served.prompts.report()
    if isinstance(served.prompts, NoPrompts):
        return {"reason": served.prompts.reason, "why": served.prompts.why}
    if served.unfaithful is not None:
        return {"reason": Reason.UNFAITHFUL, "why": served.unfaithful}
    return {"reason": Reason.KV_AWARE}


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
