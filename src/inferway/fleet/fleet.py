"""The engines: who is there, what they serve, how busy they are. Owns and closes the rest.

Each engine is asked for what it is (discovery), then for its load, again and again (scraper).
An engine that is not there yet, or goes away, is a warning and a metric, never a crash.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp

from inferway.config import EngineSettings, ServeSettings
from inferway.errors import (
    InvalidRequestError,
    NoEndpointError,
    UnknownModelError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.events.stream import StreamState
from inferway.fleet.columns import STATES, EndpointColumns, ModelRows, Rows
from inferway.fleet.connector import EngineConnector
from inferway.fleet.discovery import EventSource, discover, fetch_metrics
from inferway.fleet.engine import SILENT_SCRAPES, Engine
from inferway.fleet.heal import Healer
from inferway.fleet.load import parse_load
from inferway.fleet.numbers import HolderNumbers
from inferway.fleet.prober import Prober
from inferway.fleet.remote_prompts import RemoteRenderers
from inferway.fleet.scraper import Scraper
from inferway.fleet.served_models import LoadPrompts, ServedModels
from inferway.fleet.silent_zero import StreamEvidence
from inferway.fleet.subscriber import EventSubscriber
from inferway.fleet.unbegun import Unbegun
from inferway.index.protocol import Clear, Index
from inferway.model import Candidates, Endpoint, HolderId, Reason
from inferway.prompts.served import ModelSource, NoPrompts, PromptSource, ServedModel
from inferway.tasks import Tasks

log = logging.getLogger("inferway.fleet")

REDISCOVER_SECONDS = 10.0  # how often an engine is asked for its models again
SCRAPE_TIMEOUT_SECONDS = 5.0
RECENT_SECONDS = 30.0  # time constant with which sent tokens stop being recent
TOKENIZER_SECONDS = 15.0  # how long the start waits for tokenizers
# What was scraped longer ago than so many intervals loses its influence, half of it in as many.
STALE_INTERVALS = 3
STALE_SHARE = 1 - 0.5 ** (1 / STALE_INTERVALS)  # an interval

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
        self._settings = settings
        self._index = index
        self._subscribe = subscribe
        self._numbers = HolderNumbers()
        self._left: dict[HolderId, Engine] = {}  # whose number rests
        self._block_sizes: list[int | None] = []  # by holder
        self._columns = EndpointColumns()
        self._unbegun: dict[HolderId, Unbegun] = {}
        self._rows: dict[str, ModelRows] = {}  # of models with a live endpoint
        self._tasks = Tasks(log, "a task of the fleet ended")
        self._peers: list[Rows] = []  # of the columns: endpoints of the same model
        self._session: aiohttp.ClientSession | None = None
        self._by_name = {engine.name: engine for engine in self.engines}
        self._served = ServedModels(
            settings.models, load_prompts, self._around, self._tasks.spawn, self._prompts_came
        )
        self.models = self._served.by_name
        self.prober = Prober(settings.probe, self._by_name, self._served.subject, self._refresh)
        budget = settings.remote_render_ms / 1000
        self.remote = RemoteRenderers(self.engines, self._served.subjects, budget)
        self.healer = Healer(settings.heal)
        self.scraper = Scraper(self.engines, self._ask, self._after_round, settings.scrape_seconds)
        self._changing = asyncio.Lock()
        self._faded = 0.0  # recent tokens: as of when
        self._everyone: ModelRows | None = None  # the live endpoints of all models

    async def start(self) -> None:
        """Asks every engine once, side by side, then goes on watching them."""
        timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_SECONDS)
        connector = EngineConnector(self._settings.engine_tls())
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        if self._settings.scoring:
            self.prober.open(self._session)
            self.remote.open(self._session)
        await asyncio.gather(*(self._look(engine) for engine in self.engines))
        with suppress(TimeoutError):  # what comes before tokenizers would go by load only
            async with asyncio.timeout(TOKENIZER_SECONDS):
                while (tasks := self._tasks.running) and self._served.is_loading:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._spread_looks()
        self.scraper.start()

    async def close(self) -> None:
        """Stops watching, closes every subscriber."""
        await self.prober.close()
        await self.remote.close()
        await self.scraper.close()
        await self._tasks.close()
        for engine in self.engines:
            for subscriber in engine.subscribers:
                await subscriber.close()
        if self._session is not None:
            await self._session.close()

    # who is in it

    async def set_engines(self, wanted: Sequence[EngineSettings]) -> None:
        """These are the engines from now on. One whose settings are the same stays as it is; one
        that goes gets no new request, and those on their way there end as they would have."""
        async with self._changing:
            kept = [engine for engine in self.engines if engine.settings in wanted]
            going = [engine for engine in self.engines if engine.settings not in wanted]
            known = [engine.settings for engine in kept]
            coming = [Engine(e, e.authorization()) for e in wanted if e not in known]
            self.engines[:] = [*kept, *coming]  # the list that others have been given
            for engine in going:
                await self._dismiss(engine)
            if going:
                self._refresh()
            for engine in coming:
                log.info("engine %s: has come, at %s", engine.name, engine.url)
                self._by_name[engine.name] = engine
            await asyncio.gather(*(self._look(engine) for engine in coming))
            for engine in coming:
                self.scraper.add(engine)

    async def _dismiss(self, engine: Engine) -> None:
        log.info("engine %s: is no longer in the list of engines", engine.name)
        engine.healthy = False
        self.scraper.remove(engine)
        for model in list(engine.proofs):
            self.prober.leave(engine, model)
        await self._hear_no_more(engine)
        self._retire(engine)

    def _retire(self, engine: Engine) -> None:
        """Its endpoints are none any more."""
        now = asyncio.get_running_loop().time()
        for endpoint in engine.endpoints:
            self._index.retire(endpoint.holder)
            self._numbers.give_back(endpoint.holder, now)
            self._left[endpoint.holder] = engine

    def _forget_those_who_left(self, now: float) -> None:
        for holder in self._numbers.rested(now, lambda row: not self._columns.in_flight[row]):
            engine = self._left.pop(holder)
            is_there = any(each is engine for each in self.engines)  # as other endpoints now
            if self._by_name.get(engine.name) is engine and not is_there:
                del self._by_name[engine.name]

    def engine(self, name: str) -> Engine | None:
        """Of that name; for a while also one that has left, whose requests may still run."""
        return self._by_name.get(name)

    def everyone(self) -> Candidates:
        """The live endpoints, whatever they serve. Raises NoEndpointError if there is none."""
        if self._everyone is None:
            raise NoEndpointError("no pods available in datastore")
        return self._everyone.candidates(self._columns)

    def sole_model(self) -> str:
        """One that all live endpoints serve: for requests that name none. Raises
        InvalidRequestError if there is no such model, NoEndpointError."""
        everyone = len(self.everyone().endpoints)
        for name, rows in self._rows.items():
            if rows.num_endpoints == everyone:
                return name
        raise InvalidRequestError(
            "model: the request names none, and engines serve different ones:"
            f" {', '.join(sorted(self._rows))}",
            param="model",
        )

    def find(self, address: str) -> Endpoint | None:
        """Who is at `host:port`; of ranks that share it, the first."""
        return next(
            (e for engine in self.engines for e in engine.endpoints if e.address == address), None
        )

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
            names = ", ".join(gone) or "none is left in the list of engines"
            raise NoEndpointError(f"model {model!r}: its engines are gone: {names}")
        return rows.candidates(self._columns)

    def engines_of(self, model: str) -> frozenset[str]:
        """The names of the live engines of `model`; none if there is none."""
        rows = self._rows.get(model)
        return frozenset() if rows is None else rows.engines

    def block_size(self, holder: HolderId) -> int | None:
        return self._block_sizes[holder]

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        self._columns.in_flight[endpoint.holder] += 1
        self._columns.recent_tokens[endpoint.holder] += new_tokens

    def release(self, endpoint: Endpoint) -> None:
        self._columns.in_flight[endpoint.holder] -= 1

    def heal(self, endpoint: Endpoint) -> bool:
        """Whether a request that goes there now shall ask for a report of all that it reuses;
        `healed` when it has ended."""
        return self.healer.ask(self._by_name[endpoint.engine], endpoint)

    def healed(self, endpoint: Endpoint) -> None:
        self.healer.asked(endpoint)

    def reports(self, endpoint: Endpoint) -> None:
        """A request is about to go there that asks by itself for a report of what it reuses."""
        for subscriber in self._by_name[endpoint.engine].subscribers:
            subscriber.count_no_copies()

    def suspect(self, endpoint: Endpoint) -> None:
        """A request just failed there: ask at once how it is."""
        self.scraper.suspect(endpoint.engine)

    def in_flight(self, engine: Engine) -> int:
        return int(sum(self._columns.in_flight[e.holder] for e in engine.endpoints))

    def evidence(self, model: str) -> list[StreamEvidence]:
        """What the event streams of a model's engines have brought: for the silent-zero alarm."""
        return [
            evidence
            for engine in self.engines
            if model in engine.model_names
            for evidence in engine.evidence()
        ]

    def state(self, endpoint: Endpoint) -> StreamState:
        """How true what scheduling believes of its cache is, as of the last change or scrape."""
        return STATES[int(self._columns.states[endpoint.holder])]

    def report(self) -> dict[str, Any]:
        """Engines and models as /ready shows them, with what is wrong in words."""
        return {
            "engines": [engine.report() for engine in self.engines],
            "models": self._served.report(self._why_none_is_matched()),
        }

    def _why_none_is_matched(self) -> Reason | None:
        if not self._settings.scoring:
            return Reason.LOAD_ONLY
        return Reason.INDEX_AWAY if self._index.away else None

    # how the engines are watched

    def _spread_looks(self) -> None:
        """Over the time in which each has one, as if some had been looked at earlier."""
        now = asyncio.get_running_loop().time()
        for number, engine in enumerate(self.engines):
            engine.looked = now - REDISCOVER_SECONDS * number / len(self.engines)

    async def _ask(self, engine: Engine, suspected: bool) -> bool:
        # what was away may have been started anew, as something else
        away = not engine.healthy or engine.is_cut_off
        now = asyncio.get_running_loop().time()
        if suspected or away or now - engine.looked > REDISCOVER_SECONDS:
            engine.looked = now
            return await self._look(engine)
        return await self._scrape(engine)

    async def _look(self, engine: Engine) -> bool:
        """Asks what the engine is; what changed is applied and logged once. Whether it answered."""
        assert self._session is not None
        try:
            facts, metrics = await discover(self._session, engine.url, engine.http_headers)
        except UpstreamError as e:
            self._missed(engine, e)
            return False
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
        return True

    async def _scrape(self, engine: Engine) -> bool:
        assert self._session is not None
        try:
            metrics = await fetch_metrics(self._session, engine.url, engine.http_headers)
        except UpstreamError as e:
            self._missed(engine, e)
            return False
        if not engine.healthy:
            self._found(engine)
        self._loaded(engine, metrics)
        return True

    def _loaded(self, engine: Engine, metrics: str) -> None:
        """Its load, as its metrics tell."""
        adapters = engine.load.adapters
        engine.load = load = parse_load(metrics)
        engine.failures = 0
        self._note_states(engine)
        if any(self._block_sizes[e.holder] != engine.block_size for e in engine.endpoints):
            self._resized(engine)
        elif load.adapters != adapters:
            self._tell_adapters(engine)
        now, table = asyncio.get_running_loop().time(), self._columns
        for endpoint in engine.endpoints:
            row, told = endpoint.holder, load.of(endpoint.rank, len(engine.endpoints))
            table.others[row] = max(0.0, told.running + told.waiting - table.in_flight[row])
            table.running[row] = told.running
            table.waiting[row] = told.waiting
            table.kv_usage[row] = told.kv_usage
            unbegun = self._unbegun[row].told(told.running, told.waiting, told.answering)
            table.unbegun[row] = unbegun
            table.scraped[row] = now

    def _tell_adapters(self, engine: Engine) -> None:
        for rows in self._rows.values():
            for endpoint in engine.endpoints:
                rows.tell_adapters(endpoint.holder, engine.load.adapters)

    def _after_round(self, now: float) -> None:
        """What time does to the columns."""
        self._forget_those_who_left(now)
        table = self._columns
        table.recent_tokens *= math.exp((self._faded - now) / RECENT_SECONDS)
        self._faded = now
        before = now - STALE_INTERVALS * self.scraper.interval
        for rows in self._peers:
            table.toward_the_mean(rows, before, STALE_SHARE)

    def _note_states(self, engine: Engine) -> None:
        """What `match` answers may be another gateway's picture: then its state counts."""
        for endpoint in engine.endpoints:
            stream = engine.stream(endpoint)
            own = StreamState.BLIND if stream is None else stream.state
            state = self._index.shared_state(endpoint.holder) or own
            self._columns.states[endpoint.holder] = STATES.index(StreamState(state))

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
        if [endpoint.rank for endpoint in engine.endpoints] != engine.ranks:
            await self._hear_no_more(engine)
            self._retire(engine)
            sources = engine.sources if len(engine.sources) > 1 else [None]
            engine.endpoints = [self._endpoint(engine, source) for source in sources]
        if [subscriber.source for subscriber in engine.subscribers] != list(engine.sources):
            await self._listen(engine)
        for card in engine.facts.models if engine.facts else ():
            self._served.learn(engine, card)
        self._refresh()

    async def _listen(self, engine: Engine) -> None:
        """To the sockets that the engine names now; what others told is forgotten."""
        await self._hear_no_more(engine)
        for source, endpoint in zip(engine.sources, engine.endpoints, strict=False):
            subscriber = self._subscribe(engine, source, endpoint)
            subscriber.on_state = partial(self._note_states, engine)
            self.healer.attend(subscriber.blocks)
            engine.subscribers.append(subscriber)
            subscriber.start()
        self._note_states(engine)

    async def _hear_no_more(self, engine: Engine) -> None:
        for subscriber in engine.subscribers:
            await subscriber.close()
            self._index.apply([Clear(subscriber.holder)])
        engine.subscribers = []

    def _endpoint(self, engine: Engine, source: EventSource | None) -> Endpoint:
        """A new one, of the rank that `source` is of. Its number is given again only when nothing
        is on its way to the old one any more.

        vLLM 0.32 takes the header's number as a place among the ranks that this very API server
        manages (core_client.py, DPLBAsyncMPClient): all with the internal load balancer, those of
        its node with the hybrid one. With the external one it manages one, and we send none.
        """
        headers, rank = list(engine.headers), None
        if source is not None:
            rank = source.rank
            headers.append((b"x-data-parallel-rank", b"%d" % source.place))
        holder = self._numbers.take()
        endpoint = Endpoint(
            *(engine.name, engine.url, holder, rank, tuple(headers)),
            labels=engine.settings.labels,
        )
        if holder == len(self._block_sizes):
            self._block_sizes.append(None)
            self._columns.grow(self._numbers.given)
        else:
            self._columns.clear(holder)
        self._block_sizes[holder] = engine.block_size
        self._unbegun[holder] = Unbegun()
        self._index.introduce(endpoint.holder, endpoint.name)
        return endpoint

    # whether they render as we do

    def _around(self, source: ModelSource, own: PromptSource) -> PromptSource:
        return self.remote.around(source, own) if self._settings.scoring else own

    def _prompts_came(self, key: str) -> None:
        for engine in self.engines:
            if engine.healthy:
                self._probe(engine, key)

    def _probe(self, engine: Engine, source: str | None = None) -> None:
        """Has the engine asked, for each model once, whatever its names."""
        subjects = self._served.subjects(engine)
        self.prober.forget_others(engine, subjects.values())
        for key, model in subjects.items():
            prompts = self._served.prompts(key)
            if source in (None, key) and not isinstance(prompts, NoPrompts):
                self.prober.join(engine, model, prompts)

    def _refresh(self) -> None:
        """Who serves what, and in blocks of what size, as of now."""
        for engine in self.engines:
            for endpoint in engine.endpoints:
                self._block_sizes[endpoint.holder] = engine.block_size
        peers: dict[tuple[HolderId, ...], Rows] = {}
        for name in list(self.models):
            engines = [e for e in self.engines if e.healthy and name in e.model_names]
            live = [endpoint for engine in engines for endpoint in engine.endpoints]
            self._rows.pop(name, None)
            if live:
                self._rows[name] = rows = self._model_rows(engines)
                peers[tuple([endpoint.holder for endpoint in live])] = rows.rows
            self._served.refresh(name, engines)
        self._peers = list(peers.values())
        live_engines = [e for e in self.engines if e.healthy and e.endpoints]
        self._everyone = self._model_rows(live_engines) if live_engines else None

    def _model_rows(self, engines: Sequence[Engine]) -> ModelRows:
        live = [(endpoint, engine) for engine in engines for endpoint in engine.endpoints]
        return ModelRows(
            [endpoint for endpoint, _ in live],
            [self._block_sizes[endpoint.holder] for endpoint, _ in live],
            [engine.load.adapters for _, engine in live],
        )
