"""The request path, once, on one screen. Both frontends drive it; no engine I/O, no clock.

journey = director.open(head, body)     bytes       -> a typed request     openai_api
decision = await journey.decide()       model       -> its target          routing/rewrite
                                        headers     -> objectives          routing/objectives
                                        engines     -> those it may go to  routing/eligible
                                        load        -> may it go in?       scheduling/admitters
                                        its shape   -> can it be kept?     routing/structured_gate
                                        limits      -> is it its turn?     routing/limits
                                        request     -> token ids           prompts
                                        token ids   -> block keys          kv/blocks
                                        block keys  -> blocks held         kv/index
                                        + load      -> ranked targets      scheduling
journey.attempt(target)                 books the slot, speculates on the prompt: routing/attempt
journey.on_head / on_chunk              what the engine answers passes by
journey.close(outcome)                  frees the slot and the speculation, exactly once

A request whose prompt nobody here makes goes by load alone (`open_unread`). Plugins join in between
(scheduling.plugin): producers, admitters, and listeners of a request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol, TypeVar

import msgspec

from inferway.errors import InvalidRequestError, SaturatedError, UnknownPathError
from inferway.model import (
    Candidates,
    Decision,
    Endpoint,
    Reason,
    RequestHead,
    SchedulingResult,
    Target,
)
from inferway.openai_api.edits import with_media_names, with_model
from inferway.openai_api.kinds import PARSERS, Parse
from inferway.openai_api.llm_request import LLMRequest, Objectives
from inferway.openai_api.requests import Body, tells_its_reuse
from inferway.openai_api.shapes import shape_fields
from inferway.openai_api.unread import UnreadBody
from inferway.prompts.body_size import context_needed
from inferway.prompts.served import ServedModel
from inferway.routing.attempt import EndpointBook, Later
from inferway.routing.continuing import Continuing
from inferway.routing.counts import DirectorStats
from inferway.routing.eligible import Eligible, Within
from inferway.routing.journey import Journey, OnRequest, Routed
from inferway.routing.kv_legs import KvLegs
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.limits.request_quarantine import RequestQuarantine
from inferway.routing.limits.slot import Slot
from inferway.routing.match import Lookup, MatchedPrompts, Matcher, with_prompts
from inferway.routing.media_fetch import Fetch, UntilAnswered, fetched_media
from inferway.routing.media_proof import MediaProof
from inferway.routing.objectives import objectives
from inferway.routing.rewrite import Rewrites, looked_up
from inferway.routing.structured_gate.gate import Gate
from inferway.routing.structured_gate.shape import Shape
from inferway.routing.tokens_once import TokensOnce
from inferway.scheduling.scheduling import Scheduling
from inferway.tasks import Tasks
from inferway_structured.turns import Asker

log = logging.getLogger("inferway")

# A proxy in front of us says here which model the request is for (field notes 3.5).
MODEL_HEADER = b"x-gateway-model-name-rewrite"

_Parsed = TypeVar("_Parsed")

# Reads a body of whose prompt nothing is known, which may take a while.
ReadUnread = Callable[[], Awaitable[UnreadBody]]

# By when an engine's events have come that its first token tells of: 0.06 to 0.17 s were seen with
# engines that computed on the CPU, next to nothing otherwise.
EVENT_SECONDS = 0.25


class OffLoop(Protocol):
    """Runs a parser in a thread, and returns what it returns."""

    def __call__(self, parse: Callable[[bytes], _Parsed], body: bytes, /) -> Awaitable[_Parsed]: ...


class FleetView(EndpointBook, Protocol):
    """The part of the fleet that the director needs (fleet.Fleet)."""

    def model(self, name: str) -> ServedModel:
        """Return the model that is served under this name. Raises UnknownModelError, or
        NoEndpointError when its engines are all gone."""

    def sole_model(self) -> str:
        """Return the name of the model that all live endpoints serve. Raises InvalidRequestError if
        there are several, or NoEndpointError."""

    def candidates(self, model: str) -> Candidates:
        """Return the live endpoints that serve `model`. Raises NoEndpointError if there is none."""


@dataclass(slots=True)
class Director:
    """Opens the journeys of requests. `clock` counts seconds. `off_loop` runs a function in a
    thread, for bodies too big to parse here. `later`: an answer's first token may be here before
    the engine's events are; until they must have come, its prompt counts as held. `observers` are
    told of each request that was decided by its prompt."""

    fleet: FleetView
    matcher: Matcher
    scheduling: Scheduling
    clock: Callable[[], float]
    rewrites: Rewrites = field(default_factory=Rewrites)
    priorities: Mapping[str, int] = field(default_factory=dict)  # objective -> priority
    scoring: bool = True
    behind_proxy: bool = False  # its headers count: MODEL_HEADER
    off_loop: OffLoop | None = None
    off_loop_bytes: int = 256 * 1024
    later: Later | None = None
    gate: Gate | None = None  # None: shapes of answers are the engines' matter
    standing: OutlierDetection | None = None
    on_request: Sequence[OnRequest] = ()
    tokens_once: TokensOnce | None = None  # None: engines tokenize all prompts themselves
    legs: KvLegs = field(default_factory=KvLegs)
    continuing: Continuing | None = None  # None: a stream ends with its engine
    quarantine: RequestQuarantine | None = None  # None: no request is refused for lost engines
    fetch: Fetch | None = None  # None: pictures behind URLs are the engines' matter
    random: Random = field(default_factory=Random)  # which of equally loaded endpoints is first
    stats: DirectorStats = field(default_factory=DirectorStats)
    eligible: Eligible = field(default_factory=Eligible)
    checks: Tasks = field(
        default_factory=lambda: Tasks(log, "a prompt with pictures could not be checked")
    )

    def open(
        self,
        head: RequestHead,
        body: bytes,
        request_id: str = "",
        *,
        parse: Parse | None = None,
        within: Within | None = None,
        priority: int | None = None,
        edits: Sequence[bytes] = (),
        tenant: str = "",
        target_model: str | None = None,
    ) -> Journey:
        """Return the journey of a request that goes where most of its prompt is held. `parse`: what
        the body is, if the path does not say; `within`: endpoints it may go to; `priority`: its
        own, whatever headers say; `edits`: what of the client's bytes has been changed; `tenant`:
        whose share it takes; `target_model`: that it goes to, whatever rules say. Raises
        UnknownPathError."""
        parse = parse or PARSERS.get(head.path)
        if parse is None:
            raise UnknownPathError(f"{head.path}: no such path; known: {', '.join(PARSERS)}")
        by_prompt = ByPrompt(
            self, head, parse, request_id, within, priority, tenant, target_model=target_model
        )
        return Journey(self, body, by_prompt, edits)

    def open_unread(
        self,
        head: RequestHead,
        body: bytes,
        read: ReadUnread,
        *,
        within: Within | None = None,
        priority: int | None = None,
        tenant: str = "",
    ) -> Journey:
        """Return the journey of a request whose prompt is not made here; `read` reads its body, the
        rest is as `open` has it. Raises InvalidRequestError."""
        asked = objectives(head.headers, self.priorities, priority)
        return Journey(self, body, ByLoad(self, head, read, within, asked, tenant))

    async def weigh(
        self,
        head: RequestHead,
        body: bytes,
        slot: Slot | None,
        *,
        parse: Parse,
        request_id: str = "",
        priority: int | None = None,
        tenant: str = "",
    ) -> Weighed:
        """Return what would be decided of a request that is sent nowhere, once it had its turn at
        `slot`. No engine is asked, nothing is booked, and nobody learns of it. Raises as
        `Journey.decide` does."""
        by_prompt = ByPrompt(
            self, head, parse, request_id, None, priority, tenant, is_hypothetical=True
        )
        return await by_prompt.weigh(Journey(self, body, by_prompt), slot)

    def follow_rules(self, priorities: Mapping[str, int], rewrites: Rewrites) -> None:
        """Give new journeys these rules: objective -> priority, and models' names."""
        self.priorities, self.rewrites = priorities, rewrites

    def parses_here(self, body: bytes) -> bool:
        """Return whether parsing this body in the event loop would not hold up other requests."""
        return self.off_loop is None or len(body) <= self.off_loop_bytes

    async def parse(self, parse: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
        """Return `parse(body)`, worked out in a thread if the body is big."""
        if self.off_loop is None or self.parses_here(body):
            return parse(body)
        return await self.off_loop(parse, body)

    def media_proof(self, model: ServedModel, lookup: Lookup) -> MediaProof | None:
        """Return what compares a prompt with pictures with what its engine says of it; None if the
        prompt is not known to its end, or nobody calls it later."""
        local, later = model.prompts.local, self.later
        if local is None or later is None or lookup.reason is not Reason.KV_AWARE:
            return None
        prompts = {cut: items[0].prompt for cut, items in lookup.prompts.items()}

        def checked_later(check: Callable[[], Awaitable[None]]) -> None:
            later(lambda: self.checks.spawn(check()))

        return MediaProof(local.media, prompts, self.matcher.num_held, checked_later)

    def candidates(self, model: str, within: Within | None = None) -> Candidates:
        """Return the endpoints of `model` that get requests now. Raises NoEndpointError."""
        candidates = self.fleet.candidates(model)
        if within is not None:
            candidates = self.eligible.allowed(candidates, within)
        if self.standing is None or self.standing.is_plain:
            return candidates
        return self.eligible.standing(candidates, model, self.standing, self.clock())


class Weighed(msgspec.Struct, frozen=True):
    """A request's prompts, candidates and shape, and where it is to go."""

    request: LLMRequest
    model: ServedModel
    prompts: MatchedPrompts
    candidates: Candidates
    choice: SchedulingResult
    reason: Reason
    shape: Shape | None


class ByPrompt(msgspec.Struct):
    """Decides where a request goes whose body we read: to the engines that hold the most of its
    prompt, as the scheduling has it. `is_hypothetical`: it is weighed, and not sent."""

    director: Director
    head: RequestHead
    parse: Parse
    request_id: str
    within: Within | None
    priority: int | None
    tenant: str
    is_hypothetical: bool = False
    target_model: str | None = None  # None: rules and proxies say

    async def decide(self, journey: Journey, slot: Slot | None) -> Decision:
        """Return where the request goes; raises as `Journey.decide` does."""
        weighed = await self.weigh(journey, slot)
        director, choice, shape = self.director, weighed.choice, weighed.shape
        request, candidates = weighed.request, weighed.candidates
        targets = choice.targets if shape is None else choice.targets[: shape.may_try]
        headers, prefill = choice.headers, choice.prefill
        if prefill:
            headers, prefill = director.legs.split(choice, request.body)
        decision = Decision(targets, weighed.reason, headers, prefill, choice.profile)
        journey.tells_its_reuse = tells_its_reuse(request.body)
        journey.routed = Routed(
            request,
            weighed.model,
            journey.matched,
            decision,
            candidates,
            journey.record,
            journey.tells_its_reuse,
        )
        for plugin in director.scheduling.following:
            follower = plugin.follow(request, candidates, choice)
            if follower is not None:
                journey.listen(follower)
        if shape is not None:
            journey.listen(shape)
        return decision

    async def weigh(self, journey: Journey, slot: Slot | None) -> Weighed:
        """Return what the candidates are, and which of them are chosen; raises as `Journey.decide`
        does."""
        director, within = self.director, self.within
        journey.reads_prompt = True
        raw = journey.known_body
        if director.parses_here(raw):
            body = self.parse(raw)
        else:
            body = await director.parse(self.parse, raw)
        request = self._request(journey, body, raw)
        asked, target = request.body.model, request.target_model
        model = looked_up(director.fleet.model, asked, target)
        if self.is_hypothetical:
            model = model.without_engines()
        journey.record.known_model = director.rewrites.known(asked, target)
        candidates = director.candidates(model.name, within)
        director.scheduling.admit(request, candidates)
        shape = None
        if director.gate is not None and shape_fields(request.body):
            asker = Asker(self.tenant, request.objectives.priority)
            endpoints, path = candidates.endpoints, self.head.path
            shape = await shape_of(director.gate, path, request.body, len(raw), endpoints, asker)
            journey.shape = shape
        request = director.scheduling.named(request)
        waited = slot is not None and await slot.enter(
            model.name, request.headers, request.objectives.priority
        )
        reason = Reason.LOAD_ONLY
        if director.scoring:
            lookup = await director.matcher.match_if_possible(model, request.body)
            if lookup.names and body.chat is not None:
                lookup, request = await self._name_media(journey, request, model, lookup)
            journey.matched, reason = lookup.prompts, lookup.reason
            journey.goes_on = not reason.is_whole
            request = with_prompts(request, lookup.prompts, are_whole=reason.is_whole)
        if director.scoring or waited:
            candidates = director.candidates(model.name, within)
        candidates = self._filled(journey, candidates, model, request, slot)
        in_time = director.scheduling.in_time
        if (
            slot is not None
            and in_time is not None
            and await slot.wait_for_engine(in_time.spare_seconds(request, candidates))
        ):
            journey.matched = await director.matcher.renewed(model, journey.matched)
            candidates = director.candidates(model.name, within)
            candidates = self._filled(journey, candidates, model, request, slot)
        if director.scheduling.late_admitters:
            director.scheduling.admit_late(request, candidates)
        choice = director.scheduling.chooser.choose(request, candidates)
        return Weighed(request, model, journey.matched, candidates, choice, reason, shape)

    def _filled(
        self,
        journey: Journey,
        candidates: Candidates,
        model: ServedModel,
        request: LLMRequest,
        slot: Slot | None,
    ) -> Candidates:
        """Return the candidates that may take the request, with the columns of all producers."""
        director, shape = self.director, journey.shape
        candidates = self._that_fit(journey, candidates, model, request)
        if slot is not None and slot.limits_engines:
            candidates = director.eligible.with_room(candidates, slot)
        candidates.now = director.clock()
        if journey.matched:
            director.matcher.fill(candidates, journey.matched)
        if shape is not None:
            shape.produce(request, candidates)
        for producer in director.scheduling.producers:
            producer.produce(request, candidates)
        return candidates

    async def _name_media(
        self, journey: Journey, request: LLMRequest, model: ServedModel, lookup: Lookup
    ) -> tuple[Lookup, LLMRequest]:
        """Return what is known of the prompt once its media are fetched, and the request with the
        names in its body by which its media are known."""
        if not self.is_hypothetical:
            lookup, request = await self._written_media(journey, request, model, lookup)
        prompts = next(iter(lookup.prompts.values()), ())
        media = prompts[0].prompt.media if prompts else ()
        media_bytes = sum([name.num_bytes for name in lookup.names])
        return lookup, msgspec.structs.replace(request, media=media, media_bytes=media_bytes)

    async def _written_media(
        self, journey: Journey, request: LLMRequest, model: ServedModel, lookup: Lookup
    ) -> tuple[Lookup, LLMRequest]:
        director, chat = self.director, request.body.chat
        assert chat is not None
        fetched = None
        if director.fetch is not None:
            fetched = await fetched_media(director.fetch, chat, lookup.names)
        if fetched is not None:
            lookup = await director.matcher.match_if_possible(model, fetched.chat)
            lookup = msgspec.structs.replace(lookup, names=fetched.named(lookup.names))
            journey.listen(UntilAnswered(fetched.lease))
        names = [each for each in lookup.names if each.uuid is not None]
        if not names:
            return lookup, request
        name = partial(with_media_names, names=names)
        if fetched is not None and director.off_loop is not None:
            raw = await director.off_loop(name, journey.known_body)
        else:
            raw = await director.parse(name, journey.known_body)
        raw = journey.name_media(raw, is_fetched=fetched is not None)
        proof = director.media_proof(model, lookup)
        if proof is not None:
            journey.listen(proof)
        return lookup, msgspec.structs.replace(request, raw=raw)

    def _request(self, journey: Journey, body: Body, raw: bytes) -> LLMRequest:
        """Return the request as it goes on: to the model that rules or a proxy send it to."""
        director, headers = self.director, self.head.headers
        if not body.model:  # vLLM answers with its own, llm-d refuses it
            if director.behind_proxy:
                raise InvalidRequestError("model not found in request body", param="model")
            body = msgspec.structs.replace(body, model=director.fleet.sole_model())
        wanted = objectives(headers, director.priorities, self.priority)
        record = journey.record
        record.is_streamed = bool(body.stream)  # before it waits: its client is kept alive
        record.model = name = asked = body.model
        if director.behind_proxy:
            named = [value for header, value in headers if header == MODEL_HEADER]
            name = named[-1].decode("latin-1") if named else asked
        target = self.target_model or director.rewrites.target(name)
        record.target_model = target
        if target != asked:
            journey.rename(asked, with_model(raw, target))
        return LLMRequest(
            request_id=self.request_id,
            target_model=target,
            body=body,
            headers=headers,
            objectives=wanted,
            tenant=self.tenant,
            raw=raw,
            is_hypothetical=self.is_hypothetical,
        )

    def _that_fit(
        self, journey: Journey, candidates: Candidates, model: ServedModel, request: LLMRequest
    ) -> Candidates:
        """Return the candidates whose context is long enough for the request."""
        director = self.director
        if not model.contexts.by_engine or not director.scoring:
            return candidates
        ids = [item.prompt.token_ids for items in journey.matched.values() for item in items]
        return director.eligible.fitting(candidates, model, context_needed(request.body, ids))


class ByLoad(msgspec.Struct):
    """Decides where a request goes whose prompt is not made here: to the least loaded engine."""

    director: Director
    head: RequestHead
    read: ReadUnread
    within: Within | None
    objectives: Objectives
    tenant: str

    async def decide(self, journey: Journey, slot: Slot | None) -> Decision:
        """Return where the request goes; raises as `Journey.decide` does."""
        director, within, priority = self.director, self.within, self.objectives.priority
        read = await self.read()
        journey.body = journey.known_body = read.raw
        journey.edits += read.edits
        model = self._model(journey, read)
        shape = None
        if director.gate is not None:
            endpoints = director.candidates(model, within).endpoints
            asker = Asker(self.tenant, priority)
            shape = await shape_of(
                *(director.gate, self.head.path, read.members, len(read.raw), endpoints, asker)
            )
        journey.shape = shape
        if slot is not None:
            director.candidates(model, within)  # before it waits for nothing
            await slot.enter(model, self.head.headers, priority)
        targets = by_load(director.candidates(model, within), director.random)
        if slot is not None:
            targets = tuple([each for each in targets if slot.takes(each.endpoint.engine)])
            if not targets:  # where it had a place is gone
                raise SaturatedError("all engines are full; try again")
        if shape is not None:
            journey.listen(shape)
            targets = targets[: shape.may_try]
        return Decision(targets, Reason.UNREAD)

    def _model(self, journey: Journey, read: UnreadBody) -> str:
        director, record, asked = self.director, journey.record, read.model
        if asked is None:
            record.target_model = record.known_model = director.fleet.sole_model()
            return record.target_model
        record.model = asked
        record.target_model = target = director.rewrites.target(asked)
        if target != asked:
            journey.rename(asked, read.with_model(target))
        looked_up(director.fleet.model, asked, target)
        record.known_model = director.rewrites.known(asked, target)
        return target


def by_load(candidates: Candidates, random: Random) -> tuple[Target, ...]:
    """Return the endpoints as targets, the least loaded first as its load was last heard of; equal
    ones stand in an order that `random` draws."""
    load = candidates.in_flight + candidates.others
    order = sorted(range(len(load)), key=lambda row: (load[row], random.random()))
    return tuple([Target(candidates.endpoints[row], 0.0, 0, 0) for row in order])


async def shape_of(
    gate: Gate | None,
    path: str,
    body: msgspec.Struct,
    num_bytes: int,
    endpoints: Sequence[Endpoint],
    asker: Asker,
) -> Shape | None:
    """Return the shape that the body, or the members of one that is not read, asks of its answer;
    None for most requests, after a microsecond. Raises SpecError for a shape that cannot be kept,
    and ChecksBusyError or SaturatedError where too many wait to be checked."""
    fields = None if gate is None else shape_fields(body)
    if gate is None or not fields:
        return None
    is_echoed = bool(getattr(body, "echo", None))
    return await gate.check(path, fields, num_bytes, endpoints, is_echoed=is_echoed, asker=asker)
