"""Prompts that we cannot derive: an engine renders them, or has rendered their earlier turns.

request -> our own prompts           what they can do stays with them
        -> known without rendering   token ids in the request
        -> Renderings                the same request again: whole, `remote`
        -> an engine, for a budget   whole, `remote`; what comes too late is kept all the same
        -> Renderings                its earlier turns: their start, `remote-prefix`
        -> RenderError               by load only: `remote-late`, `remote-failed`

The engines that serve the model take turns, by what each can do:

render     POST …/render (vLLM with --enable-scale-out): the code that renders its own requests
tokenize   POST /tokenize, once its ids were those of the engine's own prompts for the chats of
           prompts/fidelity.py; and only for requests of which it looks at every field
nothing    else; looked at again after `RECHECK_SECONDS`, like `tokenize`: engines are started
           anew with other flags

All engines of a model are taken to render alike, as everywhere; the probe tells if they do not.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any

import msgspec
import numpy as np

from inferway.errors import RenderError, UpstreamError, crash_report
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_token_ids import (
    NoSuchServiceError,
    RefusedError,
    RenderClient,
    ask,
    known_to_tokenize,
)
from inferway.fleet.media_learning import MediaLearning
from inferway.model import ContextLengths, Reason, TokenIds, Tokenized
from inferway.openai_api.requests import (
    CHAT,
    ChatRequest,
    CountTokensRequest,
    PromptBody,
    parse_chat,
    parse_completion,
)
from inferway.prompts.body_size import body_size
from inferway.prompts.chat.conversation import carries_media, forwarded_ids
from inferway.prompts.chat.messages_input import (
    as_chat,
    disables_thinking,
    has_inline_system,
    with_written_arguments,
)
from inferway.prompts.fidelity import PROBES, NotRendered, compare
from inferway.prompts.remote_render_cache import (
    RemoteRenderCache,
    RenderKey,
    as_ids,
    asked_for,
    may_be_kept,
)
from inferway.prompts.served import LocalPrompts, ModelSource, NoPrompts, PromptSource, made_here
from inferway.prompts.version_rules import VersionRules

log = logging.getLogger("inferway.remote")

CACHE_BYTES = 64 << 20  # per model; a chat of 128,000 tokens takes half a megabyte a turn
MAX_CHARS_ON_LOOP = 256 * 1024  # a larger body is taken apart in a thread
RECHECK_SECONDS = 300.0
MIN_AGREEING = 3  # probes, for /tokenize to be believed
MISSES = 5
MAX_ASKING = 4
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0

# What an engine calls each model, by the key of the model's source.
Names = Callable[[Engine], Mapping[str, str]]

# What an engine may be able to do although we are not.
REMOTE_REASONS = {
    Reason.OWN_RENDERER,
    Reason.NO_TOKENIZER,
    Reason.BAD_TOKENIZER,
    Reason.NO_TEMPLATE,
    Reason.BAD_TEMPLATE,
}


class Outcome(StrEnum):
    """The outcome of a prompt, or of a question to an engine."""

    RENDERED = "rendered"
    CACHED = "cached"
    PREFIX = "prefix"
    LATE = "late"
    FAILED = "failed"
    REFUSED = "refused"  # the request is at fault
    BUSY = "busy"  # nobody was waited for: no engine renders, or none may be asked now


@dataclass(slots=True)
class RemoteStats:
    """Counts of one model's prompts and questions."""

    prompts: Counter[Outcome] = field(default_factory=Counter)
    questions: Counter[tuple[str, Outcome]] = field(default_factory=Counter)  # by engine
    right_prefixes: int = 0
    wrong_prefixes: int = 0


class Way(StrEnum):
    """The way in which an engine renders one model."""

    UNKNOWN = "unknown"  # it is asked to render, and then we know
    RENDER = "render"
    PROVING = "proving"
    TOKENIZE = "tokenize"
    NOTHING = "nothing"


@dataclass(slots=True)
class RenderBreaker:
    """The circuit breaker that says if one engine is asked to render, and if callers wait for it.

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


class RenderSites:
    """The engines that render one model's prompts."""

    def __init__(self, renderers: RemoteRenderers, source: ModelSource) -> None:
        self._renderers = renderers
        self._key = source.key
        self._model = source.model
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
        for engine in self._renderers.engines:
            model = self._renderers.names(engine).get(self._key) if engine.healthy else None
            if model is None:
                continue
            site = self._sites.get(engine.name)
            if site is None or site.model != model:
                site = self._sites[engine.name] = Site(
                    engine, model, self._renderers.breaker(engine)
                )
            if site.way in (Way.TOKENIZE, Way.NOTHING) and now >= site.until:
                site.way = Way.UNKNOWN
            live.append(site)
        return live

    async def call(self, site: Site, asked: RenderKey) -> Sequence[TokenIds]:
        """Ask an engine for the token ids. Raises UpstreamError; after NoSuchServiceError the
        engine's /tokenize is put to the proof."""
        caller = RenderClient(self._renderers.client, site.engine.url, site.engine.headers)
        if site.way is Way.TOKENIZE:
            return await caller.tokenize(asked, site.model)
        try:
            prompts = await caller.render(asked, site.model)
        except NoSuchServiceError as e:
            if site.way is not Way.PROVING:
                site.way = Way.PROVING
                self._renderers.spawn(self._prove(site, str(e)))
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
        client, engine, agreeing = self._renderers.client, site.engine, 0
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


@dataclass(slots=True)
class _Flight:
    """A question on its way. `starts`: what has been served meanwhile of its answer."""

    task: asyncio.Task[Sequence[TokenIds]]
    deadline: float
    patient: bool  # whether it is waited for
    starts: list[TokenIds] = field(default_factory=list)


class RemoteRenderers:
    """The remote prompts of all models, and the breakers and tasks that they share; `close` it at
    the end. A request waits for `budget_seconds`; at 0 nobody is asked at all."""

    def __init__(
        self,
        engines: Sequence[Engine],
        client: EngineClient,
        names: Names,
        budget_seconds: float,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.models: dict[str, RemotePrompts] = {}
        self.engines = engines
        self.client = client
        self.names = names
        self.budget_seconds = budget_seconds
        self.wall_clock = wall_clock
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

    def forget_others(self, keys: Collection[str]) -> None:
        """Forget the models of other sources than these, which engines serve now."""
        for key in self.models.keys() - keys:
            del self.models[key]

    def look_again(self, engine: Engine) -> None:
        """Forget how an engine renders that has been away, and may render otherwise now."""
        for key in self.names(engine):
            if key in self.models:
                self.models[key].forget(engine)

    def around(self, source: ModelSource, own: PromptSource) -> PromptSource:
        """Return `own`, helped out by engines. The same object for the same source, so that what it
        has learned stays."""
        if self.budget_seconds <= 0:
            return own
        found = self.models.get(source.key)
        if found is None:
            found = self.models[source.key] = RemotePrompts(self, source, own)
        found.own = own
        return found


class RemotePrompts:
    """A PromptSource: one model's. `own` is what we can do ourselves."""

    def __init__(self, renderers: RemoteRenderers, source: ModelSource, own: PromptSource) -> None:
        self.model = source.model
        self.own = own
        self.stats = RemoteStats()
        self.renderings = RemoteRenderCache(CACHE_BYTES)
        self.renderers = renderers
        self._sites = RenderSites(renderers, source)
        self.budget_seconds = renderers.budget_seconds
        self._wall_clock = renderers.wall_clock
        self._flights: dict[bytes, _Flight] = {}
        self._media = MediaLearning(renderers, source)

    def forget(self, engine: Engine) -> None:
        """Forget how the engine renders, and what any engine has rendered."""
        self._sites.forget(engine)
        self.renderings.clear()

    @property
    def local(self) -> LocalPrompts | None:
        return self.own.local

    def within(self, contexts: ContextLengths, rules: VersionRules) -> RemotePrompts:
        """Return the same for other context lengths and rules. What one learns, both know."""
        other = copy.copy(self)
        other.own = self.own.within(contexts, rules)
        return other

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        """Return the chat that engines make of messages, as they take it. Raises RenderError."""
        local = self.own.local
        if local is not None:
            chat = await local.chat_of(body)
            return chat if local.chat_fault is None else with_written_arguments(chat)
        if has_inline_system(body) or disables_thinking(body):
            raise RenderError(
                f"model {self.model!r}: its template decides, which is not known here",
                reason=Reason.MESSAGE_BLOCKS,
            )
        chat = as_chat(body, merge_inline_system=False, no_thinking_effort="none")
        return with_written_arguments(chat)

    async def tokenize(self, body: PromptBody) -> Tokenized:
        """Return a request's token ids. Raises RequestError, or RenderError for reasons of ours."""
        try:
            found = await self.own.tokenize(body)
        except RenderError as e:
            if e.reason not in REMOTE_REASONS:
                raise
        else:
            if found.reason is Reason.MEDIA_PREFIX and self.own.local is not None:
                self._media.learn(self.own.local)
            return found
        known = _known_ids(body)
        if known is not None:
            return Tokenized(known)
        for place, message in enumerate(body.turns or ()):
            if carries_media(message):
                return await self._before_media(body, place)
        return await self._rendered(body)

    async def _rendered(self, body: PromptBody) -> Tokenized:
        asked = await self._asked(body)
        prompts, outcome, flight = await self._obtained(asked)
        if prompts is not None:
            self.stats.prompts[outcome] += 1
            return Tokenized(list(prompts), Reason.REMOTE)
        start = self.renderings.start_of(asked)
        if start is None:
            self.stats.prompts[outcome] += 1
            raise self._nothing(outcome)
        self.stats.prompts[Outcome.PREFIX] += 1
        if flight is not None:
            flight.starts.append(start)
        return Tokenized([start], Reason.REMOTE_PREFIX)

    async def _before_media(self, body: PromptBody, place: int) -> Tokenized:
        """No engine is made to load and process media twice: the turns before them are asked for,
        and what is the start of a longer chat by all that was seen is used."""
        nothing = RenderError("nothing is known before the first media part", reason=Reason.MEDIA)
        turns = body.turns or ()
        roles = [str(message.get("role")) for message in turns]
        while place and roles[place - 1] == "assistant":  # no client asks to go on from there
            place -= 1
        if place == 0 or body.truncate_prompt_tokens is not None:
            raise nothing
        asked = await self._asked(msgspec.structs.replace(body, messages=turns[:place]))
        _, outcome, _ = await self._obtained(asked)
        start = self.renderings.start_of(asked, roles)
        self.stats.prompts[outcome if start is None else Outcome.PREFIX] += 1
        if start is None:
            raise nothing
        return Tokenized([start], Reason.MEDIA_PREFIX)

    async def _asked(self, body: PromptBody) -> RenderKey:
        now = self._wall_clock()
        size = body_size(getattr(body, name) for name in body.__struct_fields__)
        if size.to_render <= MAX_CHARS_ON_LOOP:
            return asked_for(body, now)
        return await asyncio.to_thread(asked_for, body, now)

    def _nothing(self, outcome: Outcome) -> RenderError:
        late = outcome is Outcome.LATE or Way.PROVING in self._sites.ways.values()
        if late:
            why = f"no engine has rendered it within {self.budget_seconds * 1000:g} ms"
        else:
            why = f"no engine has rendered it: {outcome}"
        reason = Reason.REMOTE_LATE if late else Reason.REMOTE_FAILED
        return RenderError(f"model {self.model!r}: {why}", reason=reason)

    # questions

    async def _obtained(
        self, asked: RenderKey
    ) -> tuple[Sequence[TokenIds] | None, Outcome, _Flight | None]:
        """The prompts if they are known or come in time, else why not, and what will bring them."""
        prompts = self.renderings.get(asked)
        if prompts is not None:
            return prompts, Outcome.CACHED, None
        flight = self._flights.get(asked.key) or self._new_flight(asked)
        if flight is None:
            return None, Outcome.BUSY, None
        task = flight.task
        if not task.done():
            if not flight.patient:
                return None, Outcome.BUSY, flight
            left = flight.deadline - asyncio.get_running_loop().time()
            await asyncio.wait({task}, timeout=max(0.0, left))
        if not task.done() or task.cancelled():
            return None, Outcome.LATE, flight
        error = task.exception()
        if error is None:
            return task.result(), Outcome.RENDERED, flight
        refused = isinstance(error, RefusedError)
        return None, Outcome.REFUSED if refused else Outcome.FAILED, flight

    def _new_flight(self, asked: RenderKey) -> _Flight | None:
        """None if nobody may be asked."""
        site = self._sites.next(asked)
        if site is None:
            return None
        deadline = asyncio.get_running_loop().time() + self.budget_seconds
        patient = site.breaker.closed
        task = self.renderers.spawn(self._ask(site, asked, deadline))
        flight = self._flights[asked.key] = _Flight(task, deadline, patient)
        site.breaker.asking += 1
        task.add_done_callback(lambda _: self._landed(site, asked.key, flight))
        return flight

    def _landed(self, site: Site, key: bytes, flight: _Flight) -> None:
        """The prompt that starts were served of is known at last: do they start it?"""
        site.breaker.asking -= 1
        self._flights.pop(key, None)
        task = flight.task
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, UpstreamError):
                log.error(
                    "no engine of model %r could be asked to render, by a fault of the gateway: %s",
                    self.model,
                    crash_report(error),
                )
            return
        ids = task.result()[0]
        for start in flight.starts:
            if np.array_equal(ids[: len(start)], start):
                self.stats.right_prefixes += 1
            else:
                self.stats.wrong_prefixes += 1

    async def _ask(self, site: Site, asked: RenderKey, deadline: float) -> Sequence[TokenIds]:
        """Raises UpstreamError. Whatever comes of it is counted."""
        loop = asyncio.get_running_loop()
        breaker, engine, asked_at = site.breaker, site.engine.name, self._wall_clock()
        late = loop.call_at(deadline, breaker.late)
        try:
            prompts = await self._sites.call(site, asked)
        except UpstreamError as e:
            self.stats.questions[engine, _outcome(e)] += 1
            if loop.time() < deadline:
                _tell(breaker, e, loop.time())
            raise
        finally:
            late.cancel()
        in_time = loop.time() < deadline
        if in_time:
            breaker.in_time()
        self.stats.questions[engine, Outcome.RENDERED if in_time else Outcome.LATE] += 1
        self.renderings.put(asked, prompts, keep=may_be_kept(asked_at))
        return prompts

    def report(self) -> dict[str, Any]:
        """Return what /ready shows: the reason that requests are counted under, and why."""
        own = self.own
        if isinstance(own, NoPrompts):
            reason, why = own.reason, own.why
        else:
            assert own.local is not None
            fault = own.local.chat_fault
            if fault is None:
                return made_here(own)
            reason, why = Reason(fault.reason), str(fault)
        ways = self._sites.ways
        none_can = ways and all(way is Way.NOTHING for way in ways.values())
        by_engines = "no engine renders them" if none_can else "rendered by engines"
        return {"reason": reason, "why": f"{why}; {by_engines}", "rendered_by": ways}


def _outcome(error: UpstreamError) -> Outcome:
    return Outcome.REFUSED if isinstance(error, RefusedError) else Outcome.FAILED


def _tell(breaker: RenderBreaker, error: UpstreamError, now: float) -> None:
    """A refused request is the client's affair, and a service that is not there is not slow."""
    if isinstance(error, RefusedError):
        breaker.in_time()
    elif not isinstance(error, NoSuchServiceError):
        breaker.failed(now)


def _known_ids(body: PromptBody) -> list[TokenIds] | None:
    """Of a request that brings the ids of its prompts. RenderError if it brings embeddings."""
    forwarded = forwarded_ids(body)
    if forwarded is not None:
        lists = [forwarded]
    elif body.prompt_embeds is not None:
        raise RenderError("prompt_embeds: they have no token ids", reason=Reason.MEDIA)
    elif body.suffix is not None or body.truncate_prompt_tokens is not None:
        return None
    else:
        lists = [prompt for prompt in body.prompts if isinstance(prompt, list)]
        if len(lists) != len(body.prompts):
            return None
    try:
        return [as_ids(ids) for ids in lists] or None
    except (OverflowError, TypeError, ValueError):
        return None  # no token ids: the engine will say so
