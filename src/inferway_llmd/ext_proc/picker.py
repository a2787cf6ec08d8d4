"""Envoy's request -> where it goes. The Director decides what it can read; the rest goes by load:
bodies that carry no prompt, to who serves their model, and requests without a body to anybody."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from inferway.errors import (
    FleetError,
    InvalidRequestError,
    UnknownModelError,
)
from inferway.extension import outcome_of
from inferway.http.content_coding import BodyDecoder
from inferway.http.message import CONTENT_ENCODING
from inferway.model import Candidates, Decision, Reason
from inferway.openai_api.kinds import GENERATING, parser_by_suffix
from inferway.openai_api.trust import NO_TRUST, Trust
from inferway.openai_api.unread import UnreadBody, begins_an_object, read_query, read_unread
from inferway.routing.director import Director, by_load
from inferway.routing.eligible import Within
from inferway.routing.journey import Journey, Routed
from inferway.routing.limits.slot import Slot
from inferway.routing.objectives import named_tenant
from inferway.routing.record import Record
from inferway.telemetry.request_counts import RequestCounts
from inferway_llmd.ext_proc.counts import ModelCounts, PickerCounts
from inferway_llmd.ext_proc.questions import Ask, Pick, is_allowed

_GENERATING = tuple(path.removeprefix("/v1") for path in GENERATING)


@dataclass(slots=True)
class EndpointPicker:
    """Finds out where a request goes that an exchange asks about."""

    director: Director
    everyone: Callable[[], Candidates]  # live endpoints, whatever they serve, or NoEndpointError
    counts: PickerCounts = field(default_factory=PickerCounts)
    requests: RequestCounts = field(default_factory=lambda: RequestCounts(time.monotonic))
    trust: Trust = NO_TRUST
    max_body_bytes: int = 32 << 20  # decoded
    decoder: BodyDecoder = field(default_factory=BodyDecoder)

    async def pick(self, ask: Ask) -> Pick:
        """Return where the request goes. Raises InferwayError, with the journey closed; a pick that
        is cancelled leaves nothing behind."""
        coding = ask.noted.fields.get(CONTENT_ENCODING)
        if coding and ask.body and ask.is_read:
            ask = ask._replace(
                body=await self.decoder.decoded(ask.body, coding, self.max_body_bytes)
            )
        parse = (
            parser_by_suffix(ask.noted.head.path) if ask.is_read and ask.body is not None else None
        )
        within = None if ask.subset is None else partial(is_allowed, subset=ask.subset)
        if parse is None or ask.body is None:
            return await self._unread(ask, within)
        parse = self.trust.checked(parse)
        tenant = named_tenant(ask.noted.head.headers)
        journey = self.director.open(
            *(ask.noted.head, ask.body, ask.noted.request_id),
            parse=parse,
            within=within,
            tenant=tenant,
        )
        try:
            decision = await self._decide(ask, journey)
        except FleetError:
            self.counts.attempts["failure", "", ""] += 1
            raise
        assert journey.routed is not None
        ask.noted.counts = self._counted(journey.routed, journey.record.decided_in)
        return Pick(
            *(journey, decision.targets),
            usage=lambda: journey.usage,
            passed=self._passed(ask.noted.head.path, journey.record),
            shape=journey.shape,
        )

    async def _decide(self, ask: Ask, journey: Journey) -> Decision:
        """Return where the request goes. Raises InferwayError, or CancelledError if the client has
        gone, with the journey closed."""
        ask.noted.record = journey.record
        try:
            decision = await journey.decide()
            if ask.noted.span is not None:
                ask.noted.span.follow(journey)
        except BaseException as e:
            journey.close(outcome_of(e))
            raise
        return decision

    def _passed(self, path: str, record: Record) -> Callable[[bytes], None]:
        """Return what hears of the pieces of the request's answer, if it is a stream."""
        generates = path.partition("?")[0].rstrip("/").endswith(_GENERATING)
        return partial(self.requests.follow(record), record) if generates else lambda _: None

    def _counted(self, routed: Routed, seconds: float) -> ModelCounts:
        """Count the pick, and return the counts of its model. A client may name any model where a
        rule rewrites all: that name is no label."""
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
        candidates = self.everyone()
        if within is not None:
            candidates = self.director.eligible.allowed(candidates, within)
        journey = Journey(
            self.director, ask.body or b"", _Anywhere(candidates, self.director.random)
        )
        return Pick(journey, (await self._decide(ask, journey)).targets)

    async def _read(self, ask: Ask) -> UnreadBody | None:
        """Return the body, or None if it names no model that somebody serves, or is no object: what
        is wrong with it, an engine says. Raises InvalidRequestError for an object that cannot be
        read: an engine that reads it all the same would take what clients may not say."""
        if not ask.is_read:
            return None
        if not ask.body:
            return self._named_by_query(ask.noted.head.query)
        types = [value for name, value in ask.noted.head.headers if name == b"content-type"]
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
            self.director.fleet.model(self.director.rewrites.target(found.model))
        except UnknownModelError:
            return None
        return found

    def _named_by_query(self, query: str) -> UnreadBody | None:
        """Return what a request without a body asks: `/v1/realtime` names its model in the query.
        None if it names none, or none that somebody serves under that name."""
        model = read_query(query).model or ""
        try:
            self.director.fleet.model(model)
        except UnknownModelError:
            return None
        return UnreadBody(b"", model) if self.director.rewrites.target(model) == model else None

    async def _unread_of_model(self, ask: Ask, found: UnreadBody, within: Within | None) -> Pick:
        async def read() -> UnreadBody:
            return found

        tenant = named_tenant(ask.noted.head.headers)
        journey = self.director.open_unread(
            ask.noted.head, found.raw, read, within=within, tenant=tenant
        )
        decision = await self._decide(ask, journey)
        return Pick(
            *(journey, decision.targets),
            passed=self._passed(ask.noted.head.path, journey.record),
            shape=journey.shape,
        )


@dataclass(frozen=True, slots=True)
class _Anywhere:
    """Decides where a request goes that nobody here reads: by load as it was last heard of; of
    equals, any."""

    candidates: Candidates
    random: Random

    async def decide(self, journey: Journey, slot: Slot | None) -> Decision:
        del journey, slot
        return Decision(by_load(self.candidates, self.random), Reason.UNREAD)
