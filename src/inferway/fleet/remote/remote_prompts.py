"""Prompts that we cannot derive: an engine renders them, or has rendered their earlier turns.

request -> our own prompts           what they can do stays with them
        -> known without rendering   token ids in the request
        -> Renderings                the same request again: whole, `remote`
        -> an engine, for a budget   whole, `remote`; what comes too late is kept all the same
        -> Renderings                its earlier turns: their start, `remote-prefix`
        -> RenderError               by load only: `remote-late`, `remote-failed`

Which engine is asked, and how, is in render_sites.py; for how long and how often as well.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from inferway.errors import RenderError, UpstreamError, crash_report
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_token_ids import NoSuchServiceError, RefusedError
from inferway.fleet.remote.render_sites import (
    Names,
    RenderBreaker,
    RenderingEngines,
    RenderSites,
    Site,
    Way,
)
from inferway.model import ContextLengths, Reason, TokenIds, Tokenized
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.prompts.body_size import body_size
from inferway.prompts.chat.conversation import carries_media, forwarded_ids
from inferway.prompts.chat.messages_input import (
    as_chat,
    disables_thinking,
    has_inline_system,
    with_written_arguments,
)
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

    prompts: dict[Outcome, int] = field(default_factory=dict)
    questions: dict[tuple[str, Outcome], int] = field(default_factory=dict)  # by engine
    right_prefixes: int = 0
    wrong_prefixes: int = 0

    def prompt(self, outcome: Outcome) -> None:
        self.prompts[outcome] = self.prompts.get(outcome, 0) + 1

    def question(self, engine: str, outcome: Outcome) -> None:
        key = engine, outcome
        self.questions[key] = self.questions.get(key, 0) + 1


@dataclass(slots=True)
class _Flight:
    """A question on its way. `starts`: what has been served meanwhile of its answer."""

    task: asyncio.Task[Sequence[TokenIds]]
    deadline: float
    patient: bool  # whether it is waited for
    starts: list[TokenIds] = field(default_factory=list)


class RemoteRenderers:
    """The remote prompts of all models; `close` it at the end. A request waits for
    `budget_seconds`; at 0 nobody is asked at all."""

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
        self.engines = RenderingEngines(engines, client, names)
        self.budget_seconds = budget_seconds
        self._wall_clock = wall_clock

    async def close(self) -> None:
        await self.engines.close()

    def forget_others(self, keys: Collection[str]) -> None:
        """Forget the models of other sources than these, which engines serve now."""
        for key in self.models.keys() - keys:
            del self.models[key]

    def look_again(self, engine: Engine) -> None:
        """Forget how an engine renders that has been away, and may render otherwise now."""
        for key in self.engines.names(engine):
            if key in self.models:
                self.models[key].forget(engine)

    def around(self, source: ModelSource, own: PromptSource) -> PromptSource:
        """Return `own`, helped out by engines. The same object for the same source, so that what it
        has learned stays."""
        if self.budget_seconds <= 0:
            return own
        found = self.models.get(source.key)
        if found is None:
            found = self.models[source.key] = RemotePrompts(
                self.engines, source, own, self.budget_seconds, self._wall_clock
            )
        found.own = own
        return found


class RemotePrompts:
    """A PromptSource: one model's. `own` is what we can do ourselves."""

    def __init__(
        self,
        engines: RenderingEngines,
        source: ModelSource,
        own: PromptSource,
        budget_seconds: float,
        wall_clock: Callable[[], float],
    ) -> None:
        self.model = source.model
        self.own = own
        self.stats = RemoteStats()
        self.renderings = RemoteRenderCache(CACHE_BYTES)
        self.engines = engines
        self._sites = RenderSites(engines, source.key, source.model)
        self.budget_seconds = budget_seconds
        self._wall_clock = wall_clock
        self._flights: dict[bytes, _Flight] = {}

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

    def rendered_text(self, body: ChatRequest) -> str | None:
        return self.own.rendered_text(body)

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
            return await self.own.tokenize(body)
        except RenderError as e:
            if e.reason not in REMOTE_REASONS:
                raise
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
            self.stats.prompt(outcome)
            return Tokenized(list(prompts), Reason.REMOTE)
        start = self.renderings.start_of(asked)
        if start is None:
            self.stats.prompt(outcome)
            raise self._nothing(outcome)
        self.stats.prompt(Outcome.PREFIX)
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
        self.stats.prompt(outcome if start is None else Outcome.PREFIX)
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
        task = self.engines.spawn(self._ask(site, asked, deadline))
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
            self.stats.question(engine, _outcome(e))
            if loop.time() < deadline:
                _tell(breaker, e, loop.time())
            raise
        finally:
            late.cancel()
        in_time = loop.time() < deadline
        if in_time:
            breaker.in_time()
        self.stats.question(engine, Outcome.RENDERED if in_time else Outcome.LATE)
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
