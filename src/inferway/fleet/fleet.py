"""The engines: who is there, what they serve, how busy they are. Owns and closes the rest.

What the engines tell comes from `watch`, which asks them again and again. An engine that is not
there yet, or goes away, is a warning and a metric, never a crash.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from inferway.config import EngineSettings, ServeSettings
from inferway.errors import NoEndpointError, UnknownModelError
from inferway.fleet.columns import EndpointColumns
from inferway.fleet.engine import Engine, cache_tokens
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_facts import EngineFacts
from inferway.fleet.event_source import EventSource
from inferway.fleet.kv_transfer import kv_transfer_of, warn_of_legs
from inferway.fleet.load import parse_load
from inferway.fleet.outage import Outage, UpLog
from inferway.fleet.prober import Prober
from inferway.fleet.remote_prompts import RemoteRenderers
from inferway.fleet.served_models import LoadPrompts, ServedModels, version_rules
from inferway.fleet.stream_figures import StreamEvidence
from inferway.fleet.subscriber import EventSubscriber
from inferway.fleet.table import EndpointTable
from inferway.fleet.watch import EngineWatch, Watch, needs_events
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.index.protocol import Clear, Index
from inferway.model import ContextLengths, Endpoint, HolderId
from inferway.prompts.served import ModelSource, NoPrompts, PromptSource, ServedModel
from inferway.routing.limits.suspension import Suspension
from inferway.tasks import Tasks

log = logging.getLogger("inferway.fleet")

MAX_SHOWN = 200  # characters of a name that a client made up
TOKENIZER_SECONDS = 15.0  # how long the start waits for tokenizers
MAX_KEPT_PAGE = 16 * 1024  # characters: of the load alone. Others change with every look

Subscribe = Callable[[Engine, EventSource, Endpoint], EventSubscriber]


class Fleet:
    """Keeps `table` and `models`; everybody else reads them. `start`, then `close`."""

    def __init__(
        self,
        settings: ServeSettings,
        index: Index,
        load_prompts: LoadPrompts,
        subscribe: Subscribe,
        *,
        columns: EndpointColumns | None = None,
        watch: Callable[[Fleet, ServeSettings], Watch] = EngineWatch,
        prober: Callable[..., Prober] = Prober,
        on_change: Callable[[], None] | None = None,
        on_counted: Callable[[], None] | None = None,
    ) -> None:
        """`columns`: those that the table is kept in; None: its own. `watch`: who hears of the
        engines. `prober` makes one. `on_change`: what is known of an engine has changed.
        `on_counted`: as the table calls it."""
        self.on_change = on_change or _nothing
        self.on_outage: Callable[[Engine], None] = _nothing  # one has begun, or is over
        # the seconds that what the engine has to compute next should take; None: nobody knows
        self.expected_seconds: Callable[[Engine], float | None] = lambda _: None
        self.engines = [Engine(e, e.authorization()) for e in settings.engines]
        self.follows_events = needs_events(settings)
        self._settings = settings
        self._index = index
        self._subscribe = subscribe
        self.table = table = EndpointTable(self.engines, index, columns, on_counted)
        # What requests ask: the table's own methods, a call less for each of them.
        self.candidates, self.everyone = table.candidates, table.everyone
        self.sole_model, self.engines_of = table.sole_model, table.engines_of
        self.cut, self.book, self.release = table.cut, table.book, table.release
        self.in_flight, self.state = table.in_flight, table.state
        self._tasks = Tasks(log, "a task of the fleet ended")
        # what asks the engines all that is no request of a client's
        self.client = EngineClient(settings.engine_tls(), on_closed=self._cut_off)
        self._by_name = {engine.name: engine for engine in self.engines}
        self.suspended: dict[str, Suspension] = {}  # by engine; others read it
        self._served = ServedModels(
            settings.models, load_prompts, self._wrap, self._tasks.spawn, self._prompts_came
        )
        self.models = self._served.by_name
        self.prober = prober(
            *(settings.probe, self._by_name, self.client, self._served.subject, self._refresh),
            sends_ids=settings.tokens_once != "off",
        )
        budget = settings.remote_render_ms / 1000
        self.remote = RemoteRenderers(self.engines, self.client, self._served.subjects, budget)
        self.healer = FullReporter(settings.heal)
        self.watch = watch(self, settings)
        table.on_sent = self.watch.stir
        self._up_log = UpLog(table.num_blocks)
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Learn the state of every engine once, then follow them. Raises ConfigError."""
        await self.watch.start()
        with suppress(TimeoutError):  # what comes before tokenizers would go by load only
            async with asyncio.timeout(TOKENIZER_SECONDS):
                while (tasks := self._tasks.running) and self._served.is_loading:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        warn_of_legs(self._settings.kv_transfer.legs, self.engines)
        self.watch.go_on()

    async def close(self) -> None:
        """Stop watching, and close every subscriber."""
        self._up_log.close()
        await self.prober.close()
        await self.watch.close()
        await self.client.close()
        await self.remote.close()
        await self._tasks.close()
        for engine in self.engines:
            for subscriber in engine.subscribers:
                await subscriber.close()

    def cache_tokens(self, engines: Collection[str]) -> dict[str, float]:
        """Return the tokens that these engines' caches hold, as `engine.cache_tokens` does."""
        return cache_tokens([self._by_name[name] for name in engines if name in self._by_name])

    # who is in it

    async def set_engines(self, wanted: Sequence[EngineSettings]) -> None:
        """Take these as the engines from now on. One whose settings are the same stays as it is;
        one that goes gets no new request, and those on their way there end as they would have."""
        async with self._changing:
            kept = [engine for engine in self.engines if engine.settings in wanted]
            going = [engine for engine in self.engines if engine.settings not in wanted]
            known = [engine.settings for engine in kept]
            coming = [Engine(e, e.authorization()) for e in wanted if e not in known]
            self.engines[:] = [*kept, *coming]  # the list that others have been given
            await self._dismiss(going)
            for engine in coming:
                words = "engine %s has come to the list of engines, at %s"
                log.info(words, engine.name, engine.url)
                self._by_name[engine.name] = engine
            await self.watch.come(coming)

    async def _dismiss(self, engines: Sequence[Engine]) -> None:
        for engine in engines:
            log.info("engine %s is no longer in the list of engines", engine.name)
            engine.healthy = False
            self.watch.leave(engine)
        if engines:
            self._refresh()  # before anything is waited for: requests come meanwhile
        for engine in engines:
            for model in list(engine.proofs):
                self.prober.leave(engine, model)
            await self._unsubscribe(engine)
            self.table.retire(engine, asyncio.get_running_loop().time())

    def follow(self, engine: Engine) -> None:
        """Take over an engine as another process knows it: all that it tells is in it already."""
        if not any(each is engine for each in self.engines):
            self.engines.append(engine)
        self._by_name[engine.name] = engine
        self.table.make_room(engine.endpoints)
        self._served.learn(engine)
        self._refresh()
        self.table.note_adapters(engine)

    def follow_no_more(self, engine: Engine) -> None:
        """Forget an engine that has left, as another process says."""
        engine.healthy = False
        self.engines.remove(engine)
        self._refresh()

    def forget_those_who_left(self, now: float) -> None:
        """Forget engines that have left, once nothing of theirs runs any more. `now`: seconds, by
        the loop's clock."""
        for engine in self.table.rested(now):
            is_there = any(each is engine for each in self.engines)  # as other endpoints now
            if self._by_name.get(engine.name) is engine and not is_there:
                del self._by_name[engine.name]

    def engine(self, name: str) -> Engine | None:
        """Return the engine of that name; for a while also one that has left, whose requests may
        still run. None if there is none."""
        return self._by_name.get(name)

    def find(self, address: str) -> Endpoint | None:
        """Return the endpoint at `host:port`, of ranks that share it the first; None if nobody is
        there."""
        return next(
            (e for engine in self.engines for e in engine.endpoints if e.address == address), None
        )

    # what the director asks

    def model(self, name: str) -> ServedModel:
        """Return what is known of a model. Raises UnknownModelError naming the known ones, and
        NoEndpointError before any engine has answered."""
        served = self.models.get(name)
        if served is not None:
            return served
        if not self.models:
            why = self._settings.discovery.why_none_answers([e.url for e in self.engines])
            raise NoEndpointError(f"model {name[:MAX_SHOWN]!r}: {why}")
        raise UnknownModelError(
            f"model: no engine serves {name[:MAX_SHOWN]!r};"
            f" known: {', '.join(sorted(self.models))}",
            param="model",
        )

    def heal(self, endpoint: Endpoint) -> bool:
        """Return whether a request that goes there now shall ask for a report of all that it
        reuses. Call `healed` when it has ended."""
        return self.healer.ask(self._by_name[endpoint.engine], endpoint)

    def healed(self, endpoint: Endpoint) -> None:
        self.healer.asked(endpoint)

    def reports(self, endpoint: Endpoint) -> None:
        """Tell that a request is about to go there that asks by itself for a report of what it
        reuses."""
        for stream in self._by_name[endpoint.engine].streams:
            stream.count_no_copies()

    def suspect(self, endpoint: Endpoint) -> None:
        """Ask the engine at once how it is, because a request has just failed there."""
        self.watch.suspect(endpoint.engine)

    def has_others(self, engine: Engine) -> bool:
        """Return whether other engines that answer serve a model that this one serves."""
        names = {engine.name}
        return any(self.table.engines_of(model) - names for model in engine.model_names)

    def _cut_off(self, url: str) -> None:
        self.watch.cut_off(url)

    def look_soon(self, engine: Engine) -> None:
        """Ask the engine at once what it is, because it is something else than it has told."""
        self.watch.suspect(engine.name)

    def evidence(self, model: str) -> list[StreamEvidence]:
        """Return what the event streams of a model's engines have brought, for the silent-zero
        alarm."""
        return [
            evidence
            for engine in self.engines
            if model in engine.model_names
            for evidence in engine.evidence()
        ]

    def report(self) -> dict[str, Any]:
        """Return engines and models as /ready shows them, with what is wrong in words."""
        return {
            "engines": [engine.report() for engine in self.engines],
            "models": self._served.report(by_load=not self._settings.scoring),
        }

    def num_engines(self) -> dict[str, int]:
        """Return all that /ready shows to those who may not see their names."""
        healthy = sum([engine.healthy for engine in self.engines])
        return {"num_engines": len(self.engines), "num_healthy": healthy}

    def why_not_ready(self, *, with_names: bool = True) -> str | None:
        """Return why requests should not come yet; None if they may."""
        if not self.engines:
            why = self._settings.discovery.why_none_answers()
            return why if with_names else "no engine is known"
        if not any(engine.healthy for engine in self.engines):
            names = ", ".join(engine.name for engine in self.engines)
            return f"no engine answers: {names}" if with_names else "no engine answers"
        loading = self.loading
        return loading if with_names or loading is None else "a tokenizer is being loaded"

    @property
    def loading(self) -> str | None:
        """The tokenizer that is still being loaded since the start, if prompts are looked at."""
        return self._served.first_load if self._settings.scoring else None

    # what the watch has heard

    async def told(self, engine: Engine, facts: EngineFacts) -> None:
        """Take over what the engine has told of itself. What has changed is logged once."""
        first = engine.facts is None
        back = not (first or engine.healthy or engine.is_stalled)
        changed, others = engine.facts != facts, engine.base_models
        engine.facts = facts
        if changed:
            self._served.learn(engine)
            for finding in engine.findings:
                log.warning("engine %s: %s", engine.name, finding)
            await self._admit(engine)
            self._served.name_unserved(self.engines)
        if first or back:
            self.is_up(engine)
        elif engine.base_models != others:
            self._probe(engine)
        if back:
            self._served.look_again(engine)
            self.remote.look_again(engine)

    def is_down(self, engine: Engine, outage: Outage) -> None:
        """Give the engine no more requests."""
        engine.outage = outage if engine.outage is None else engine.outage.told(outage)
        if engine.healthy:
            engine.healthy = False
            for model in engine.proofs:
                self.prober.leave(engine, model)
            self._refresh()
        self.on_outage(engine)

    def suspend(self, engine: Engine, suspension: Suspension | None) -> None:
        """Give the engine no requests while it is suspended; None: it is so no more."""
        if suspension is not engine.suspension:
            engine.suspension = suspension
            engine.suspended_since = None if suspension is None else time.monotonic()
        if suspension is None:
            self.suspended.pop(engine.name, None)
        else:
            self.suspended[engine.name] = suspension
        self.on_change()

    def probe_again(self, engine: Engine) -> None:
        """Go on with the probes of an engine that was suspended, if they had not come to an end."""
        if engine.healthy and any(not proof.is_settled for proof in engine.proofs.values()):
            self._probe(engine)

    def loaded(self, engine: Engine, metrics: str) -> None:
        """Take over the engine's load, as its metrics tell."""
        adapters = engine.load.adapters
        if metrics != engine.load_page:  # which is the same again and again while it is idle
            engine.load = parse_load(metrics)
            engine.load_page = metrics if len(metrics) <= MAX_KEPT_PAGE else None
        load = engine.load
        engine.failures = 0
        self.table.note_states(engine)
        if self.table.is_resized(engine):
            self._resized(engine)
        elif load.adapters != adapters:
            self.table.note_adapters(engine)
            self.on_change()
        self.table.note_load(engine, asyncio.get_running_loop().time())

    def _resized(self, engine: Engine) -> None:
        """Its events show blocks of another size than it, or somebody, had told."""
        if engine.block_size_told not in (None, engine.block_size):
            log.warning(
                "engine %s caches blocks of %s tokens, not of %s as told; its events count",
                *(engine.name, engine.block_size, engine.block_size_told),
            )
        self._refresh()

    def is_up(self, engine: Engine) -> None:
        """Give the engine requests."""
        engine.compare_events()
        self._up_log.up(engine, follows_events=self.follows_events)
        engine.healthy, engine.warned, engine.failures = True, False, 0
        engine.outage, engine.up_since = None, time.monotonic()
        self._refresh()
        self._probe(engine)
        self.on_outage(engine)

    # what they serve

    async def _admit(self, engine: Engine) -> None:
        """Endpoints and subscribers for an engine that has just said what it is."""
        if [endpoint.rank for endpoint in engine.endpoints] != engine.ranks:
            await self._unsubscribe(engine)
            self.table.retire(engine, asyncio.get_running_loop().time())
            sources = engine.sources if len(engine.sources) > 1 else [None]
            engine.endpoints = [self.table.add(engine, source) for source in sources]
        followed = [subscriber.source for subscriber in engine.subscribers]
        if self.follows_events and followed != list(engine.sources):
            await self._resubscribe(engine)
        self._hand_over(engine)
        self._refresh()

    def _hand_over(self, engine: Engine) -> None:
        """Its endpoints know how it hands blocks to others, as it has just told."""
        if engine.facts is not None:
            lease = self._settings.kv_transfer.lease_seconds
            told = kv_transfer_of(engine.settings, engine.facts, lease)
            engine.endpoints = [replace(each, kv_transfer=told) for each in engine.endpoints]

    async def follow_events(self) -> None:
        """Follow the engines' KV events from now on, because somebody asks what they hold."""
        if not self.follows_events:
            self.follows_events = True
            log.info("the engines' KV events are followed from now on: scores are asked for")
            for engine in list(self.engines):
                await self._resubscribe(engine)
            self._refresh()

    async def _resubscribe(self, engine: Engine) -> None:
        """To the sockets that the engine names now; what others told is forgotten."""
        await self._unsubscribe(engine)
        for source, endpoint in zip(engine.sources, engine.endpoints, strict=False):
            subscriber = self._subscribe(engine, source, endpoint)
            self.healer.attend(subscriber)
            engine.subscribers.append(subscriber)
            subscriber.start(partial(self._state_changed, engine), self.watch.stir)
        self.table.note_states(engine)

    def _state_changed(self, engine: Engine) -> None:
        self.table.note_states(engine)
        self._up_log.state_changed(engine)
        self.watch.stir()
        self.on_change()

    async def _unsubscribe(self, engine: Engine) -> None:
        for subscriber in engine.subscribers:
            await subscriber.close()
            self._index.apply([Clear(subscriber.holder)])
        closed, engine.subscribers = engine.subscribers, []
        for subscriber in closed:
            await subscriber.give_back()

    # whether they render as we do

    def _wrap(self, source: ModelSource, own: PromptSource) -> PromptSource:
        return self.remote.around(source, own) if self._settings.scoring else own

    def _prompts_came(self, key: str) -> None:
        for engine in self.engines:
            if engine.healthy:
                self._probe(engine, key)

    def _probe(self, engine: Engine, source: str | None = None) -> None:
        """Has the engine asked, for each model once, whatever its names."""
        if engine.suspension is not None:
            return
        subjects = self._served.subjects(engine)
        self.prober.forget_others(engine, subjects.values())
        for key, model in subjects.items():
            prompts = self._served.prompts(key)
            if isinstance(prompts, NoPrompts):
                self.prober.leave(engine, model)
            elif source in (None, key):
                longest = engine.max_model_len
                lengths = ContextLengths(longest, longest)
                own = prompts.within(lengths, version_rules([engine]))
                self.prober.join(engine, model, own)

    def _refresh(self) -> None:
        """Who serves what, and in blocks of what size, as of now."""
        offering: dict[str, list[Engine]] = {name: [] for name in self.models}
        for engine in self.engines:
            for name in engine.offers:
                offering.setdefault(name, []).append(engine)
        self.table.set_serving(
            {name: [e for e in engines if e.healthy] for name, engines in offering.items()}
        )
        self._served.refresh(offering)
        self.remote.forget_others(self._served.keys)
        self.on_change()


def _nothing(*_: Engine) -> None:
    """Nobody wants to know."""


FIRST_VERSION = (0, 26)  # of vLLM; its 0.25.0 does not know the mode (pull request 45261)


class FullReporter:
    """`--heal`: engines whose caches are known in part are asked to report what they reuse.

    A request with `vllm_xargs: {"kv_cache_report_mode": "full"}` makes vLLM publish, when it looks
    its prompt up, one more BlockStored for the blocks that it finds in its cache, from the prompt's
    start on (v1/core/kv_cache_manager.py, get_computed_blocks). Older versions than 0.26 ignore it.

    The report has the form of a store, so that copies of a block cannot be told from reports of it.
    So with `--heal` no copies are counted, of any engine, from before its first event on: any
    removal removes the block (`EngineBlocks.count_no_copies`). The first events may be a replay of
    what was reported to the gateway before us, or to another one beside us.

    Not asked: engines whose past we know from the start (what is missing there is not lost
    history), and those with sliding windows or other groups beside full attention: vLLM 0.32
    reports the window groups' blocks from the prompt's start on as well, though it has dropped most
    of them.

    `share` of the requests that could tell something new are edited, at most one at a time for each
    endpoint. `Fleet` asks; `num_asked` is everybody's to read."""

    def __init__(self, share: float) -> None:
        self.num_asked: dict[HolderId, int] = {}
        self._share = share
        self._credit: dict[HolderId, float] = {}
        self._asked: set[HolderId] = set()  # a request is on its way

    def attend(self, stream: EventSubscriber | EngineBlocks) -> None:
        """Prepare an engine's stream, before anything of it is applied."""
        if self._share:
            stream.count_no_copies()

    def ask(self, engine: Engine, endpoint: Endpoint) -> bool:
        """Return whether a request that goes there now is to be edited. Call `asked` when it has
        ended."""
        holder = endpoint.holder
        if not self._share or holder in self._asked:
            return False
        version = None if engine.facts is None else engine.facts.vllm_version
        stream = engine.stream(endpoint)
        if version is None or version < FIRST_VERSION:
            return False
        if stream is None or not stream.may_report:
            return False
        credit = self._credit.get(holder, 1 - self._share) + self._share
        is_due = credit > 1 - 1e-9
        self._credit[holder] = credit - 1 if is_due else credit
        if not is_due:
            return False
        self._asked.add(holder)
        self.num_asked[holder] = self.num_asked.get(holder, 0) + 1
        return True

    def asked(self, endpoint: Endpoint) -> None:
        self._asked.discard(endpoint.holder)
