"""What Envoy asks -> where it goes. The Director decides what it can read; the rest goes by load:
bodies that carry no prompt, to who serves their model, and requests without a body to anybody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from inferway.director import Director
from inferway.errors import (
    FleetError,
    InferwayError,
    InvalidRequestError,
    RequestError,
    UnknownModelError,
)
from inferway.frontends.ext_proc.answers import status_of_refusal
from inferway.frontends.ext_proc.counts import ModelCounts, PickerCounts
from inferway.frontends.ext_proc.exchange import Ask, Pick, is_allowed
from inferway.frontends.observers import Observer, observe
from inferway.frontends.request_counts import CLIENT_GONE, RequestCounts
from inferway.model import Candidates, Decision, Reason
from inferway.openai_api.paths import GENERATING, parser_by_suffix
from inferway.openai_api.trust import NO_TRUST, Trust
from inferway.openai_api.unread import UnreadBody, begins_an_object, read_unread
from inferway.steps import unread
from inferway.steps.eligible import Within
from inferway.steps.entry import Entry
from inferway.steps.journey import Journey, Routed
from inferway.steps.objectives import named_tenant, objectives
from inferway.steps.record import Record
from inferway.steps.shape import shape_of_unread
from inferway.steps.unread import ByLoad, by_load
from inferway_structured.turns import Asker

_GENERATING = tuple(path.removeprefix("/v1") for path in GENERATING)


class Endpoints(unread.Endpoints, Protocol):
    """What is there (fleet.Fleet)."""

    def everyone(self) -> Candidates:
        """The live endpoints, whatever they serve. Raises NoEndpointError if there is none."""


@dataclass(slots=True)
class Picker:
    """Finds out what an exchange asks."""

    director: Director
    endpoints: Endpoints
    observers: Sequence[Observer] = ()
    decided_in: Callable[[float], None] = lambda _: None  # seconds
    random: Random = field(default_factory=Random)
    counts: PickerCounts = field(default_factory=PickerCounts)
    requests: RequestCounts = field(default_factory=lambda: RequestCounts(time.monotonic))
    trust: Trust = NO_TRUST

    async def pick(self, ask: Ask) -> Pick:
        """Raises InferwayError, with the journey closed. Who is cancelled leaves nothing behind."""
        parse = parser_by_suffix(ask.head.path) if ask.is_read and ask.body is not None else None
        within = None if ask.subset is None else partial(is_allowed, subset=ask.subset)
        if parse is None or ask.body is None:
            return await self._unread(ask, within)
        parse = self.trust.checked(parse)
        started = time.perf_counter()
        tenant = named_tenant(ask.head.headers)
        journey = self.director.open(
            *(ask.head, ask.body, ask.request_id), parse=parse, within=within, tenant=tenant
        )
        ask.noted.record = journey.record
        try:
            decision = await journey.decide()
            seconds = time.perf_counter() - started
            self.decided_in(seconds)
            observe(self.observers, ask.request_id, journey, seconds)
        except BaseException as e:
            if isinstance(e, FleetError):
                self.counts.attempts["failure", "", ""] += 1
            self._close(journey, e)
            raise
        assert journey.routed is not None
        counts = self._counted(journey.routed, seconds)
        record = _Record(counts, journey, started, self.requests.ended)
        return Pick(
            *(journey, decision.targets),
            usage=lambda: journey.usage,
            began=record.began,
            passed=self._passed(ask.head.path, journey.record),
            ended=record.ended,
            shape=journey.shape,
        )

    def _close(self, journey: Journey, error: BaseException) -> None:
        """It has come to no decision. The stream of who has gone is cancelled."""
        if isinstance(error, asyncio.CancelledError):
            outcome, status = "client_gone", CLIENT_GONE
        else:
            outcome = "refused" if isinstance(error, RequestError) else "error"
            status = status_of_refusal(error) if isinstance(error, InferwayError) else 500
        journey.close(outcome)
        self.requests.ended(journey.record, status)

    def _passed(self, path: str, record: Record) -> Callable[[bytes], None]:
        """Who hears of a stream's pieces."""
        generates = path.partition("?")[0].rstrip("/").endswith(_GENERATING)
        return partial(self.requests.follow(record), record) if generates else lambda _: None

    def _counted(self, routed: Routed, seconds: float) -> ModelCounts:
        """A client may name any model where a rule rewrites all: that name is no label."""
        request, targets = routed.request, routed.decision.targets
        self.counts.decided.observe(seconds)
        if targets:
            best = targets[0]
            self.counts.attempts["success", request.target_model, best.endpoint.engine] += 1
            if best.prompt_blocks:
                self.counts.hits.observe(best.matched_blocks / best.prompt_blocks)
        asked, target = request.body.model, request.target_model
        if asked != target and not self.director.rewrites.names(asked):
            asked = ""
        counts = self.counts.of_model(asked, target)
        counts.requests += 1
        counts.running += 1
        counts.request_bytes.observe(len(request.raw))
        return counts

    async def _unread(self, ask: Ask, within: Within | None) -> Pick:
        self.counts.unread += 1
        found = await self._read(ask)
        if found is not None:
            return await self._unread_of_model(ask, found, within)
        candidates = self.endpoints.everyone()
        if within is not None:
            candidates = self.director.eligible.allowed(candidates, within)
        journey = Journey(self.director, ask.body or b"", _Anywhere(candidates, self.random))
        ask.noted.record = journey.record
        return Pick(journey, (await journey.decide()).targets)

    async def _read(self, ask: Ask) -> UnreadBody | None:
        """None: no model is named that somebody serves; or it is no object, and what is wrong with
        it, an engine says. Raises InvalidRequestError for an object that cannot be read: an engine
        that reads it all the same would take what clients may not say."""
        if not ask.body or not ask.is_read:
            return None
        types = [value for name, value in ask.head.headers if name == b"content-type"]
        if len(types) > 1:
            raise InvalidRequestError("content-type: given more than once")
        read = partial(read_unread, content_type=types[0] if types else b"")
        try:
            found = await self.director.parse(read, ask.body)
        except InvalidRequestError:
            if begins_an_object(ask.body):
                raise
            return None
        self.trust.check(found.members)
        try:
            if found.model is None:
                return None
            self.endpoints.model(self.director.rewrites.target(found.model))
        except UnknownModelError:
            return None
        return found

    async def _unread_of_model(self, ask: Ask, found: UnreadBody, within: Within | None) -> Pick:
        director = self.director

        async def read() -> UnreadBody:
            return found

        headers = ask.head.headers
        asked = objectives(headers, director.priorities, None)
        asker = Asker(named_tenant(headers), asked.priority)
        decides = ByLoad(
            headers=headers,
            objectives=asked,
            read=read,
            endpoints=self.endpoints,
            candidates_of=partial(director.candidates, within=within),
            rewrites=director.rewrites,
            random=self.random,
            shape_of=partial(shape_of_unread, director.gate, ask.head.path, asker),
        )
        journey = Journey(director, found.raw, decides)
        ask.noted.record = journey.record
        try:
            decision = await journey.decide()
        except BaseException as e:
            self._close(journey, e)
            raise
        return Pick(
            *(journey, decision.targets),
            passed=self._passed(ask.head.path, journey.record),
            ended=lambda _, status, __: self.requests.ended(journey.record, status),
            shape=journey.shape,
        )


@dataclass(slots=True)
class _Record:
    """How long a request takes, for its model's counts."""

    counts: ModelCounts
    journey: Journey
    started: float
    tell: Callable[[Record, int], None]  # who counts requests by model and status
    first_seconds: float | None = None

    def began(self) -> None:
        """The first piece of its answer is here."""
        self.first_seconds = time.perf_counter() - self.started

    def ended(self, outcome: str, status: int, answer_bytes: int) -> None:
        self.tell(self.journey.record, status)
        self.counts.ended(
            outcome,
            time.perf_counter() - self.started,
            self.first_seconds,
            answer_bytes,
            self.journey.usage,
            streamed=self.journey.streamed,
        )


@dataclass(frozen=True, slots=True)
class _Anywhere:
    """Decides where a request goes that nobody here reads: by load as it was last heard of; of
    equals, any."""

    candidates: Candidates
    random: Random

    async def decide(self, journey: Journey, entry: Entry | None) -> Decision:
        del journey, entry
        return Decision(by_load(self.candidates, self.random), Reason.UNREAD)
