"""The request path, once, on one screen. Both frontends drive it; no engine I/O, no clock.

journey = director.open(head, body)     bytes       -> a typed request     openai_api
decision = await journey.decide()       model       -> its target          steps/rewrite
                                        headers     -> objectives          steps/objectives
                                        engines     -> those it may go to  steps/eligible
                                        load        -> may it go in?       scheduling/admitters
                                        its shape   -> can it be kept?     steps/shape
                                        limits      -> is it its turn?     steps/entry
                                        request     -> token ids           prompts
                                        token ids   -> block keys          blocks
                                        block keys  -> blocks held         index
                                        + load      -> ranked targets      scheduling
journey.attempt(target)                 books the slot, speculates on the prompt: steps/attempt
journey.on_head / on_chunk              what the engine answers passes by
journey.close(outcome)                  frees the slot and the speculation, exactly once

Plugins join in between (scheduling.plugin): producers, admitters, and followers of a request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from inferway.errors import InvalidRequestError, UnknownPathError
from inferway.gate.gate import Gate
from inferway.model import Candidates, Decision, Reason, RequestHead
from inferway.openai_api.edits import with_model
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.paths import PARSERS, Parse
from inferway.openai_api.requests import Body, tells_its_reuse
from inferway.prompts.context import context_needed
from inferway.prompts.served import ServedModel
from inferway.scheduling.scheduling import Scheduling
from inferway.steps.attempt import Later
from inferway.steps.counts import DirectorStats
from inferway.steps.eligible import Eligible, Standing, Within
from inferway.steps.entry import Entry
from inferway.steps.journey import Fleet, Journey, Routed
from inferway.steps.match import Matcher, with_prompts
from inferway.steps.objectives import objectives
from inferway.steps.rewrite import Rewrites, looked_up
from inferway.steps.shape import shape_of

# A proxy in front of us says here which model the request is for (field notes 3.5).
MODEL_HEADER = b"x-gateway-model-name-rewrite"

_Parsed = TypeVar("_Parsed")


class OffLoop(Protocol):
    """Parses in a thread."""

    def __call__(self, parse: Callable[[bytes], _Parsed], body: bytes, /) -> Awaitable[_Parsed]: ...


class FleetView(Fleet, Protocol):
    """What the director needs of the fleet (fleet.Fleet)."""

    def model(self, name: str) -> ServedModel:
        """Raises UnknownModelError, or NoEndpointError when its engines are all gone."""

    def sole_model(self) -> str:
        """The one that all live endpoints serve. Raises InvalidRequestError, NoEndpointError."""

    def candidates(self, model: str) -> Candidates:
        """The live endpoints that serve `model`; raises NoEndpointError if there is none."""


@dataclass(slots=True)
class Director:
    """Opens journeys. `clock` counts seconds. `off_loop` runs a function in a thread, for bodies
    too big to parse here. `later`: an answer's first token may be here before the engine's events
    are; until they must have come, its prompt counts as held."""

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
    standing: Standing | None = None
    stats: DirectorStats = field(default_factory=DirectorStats)
    eligible: Eligible = field(default_factory=Eligible)

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
    ) -> Journey:
        """`parse`: what the body is, if the path does not say; `within`: endpoints a proxy allows;
        `priority`: its own, whatever headers say; `edits`: what of the client's bytes has been
        changed; `tenant`: whose share it takes. Raises UnknownPathError."""
        parse = parse or PARSERS.get(head.path)
        if parse is None:
            raise UnknownPathError(f"{head.path}: no such path; known: {', '.join(PARSERS)}")
        way = ByPrompt(self, head, parse, request_id, within, priority, tenant)
        return Journey(self, body, way, edits)

    def follow_rules(self, priorities: Mapping[str, int], rewrites: Rewrites) -> None:
        """Journeys that begin from now on have these: objective -> priority, and models' names."""
        self.priorities, self.rewrites = priorities, rewrites

    def parses_here(self, body: bytes) -> bool:
        """Whether parsing it would not hold up everybody else."""
        return self.off_loop is None or len(body) <= self.off_loop_bytes

    async def parse(self, parse: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
        """bytes -> typed request, in a thread if need be."""
        if self.off_loop is None or self.parses_here(body):
            return parse(body)
        return await self.off_loop(parse, body)

    def candidates(self, model: str, within: Within | None = None) -> Candidates:
        """The endpoints of `model` that get requests now. Raises NoEndpointError."""
        candidates = self.fleet.candidates(model)
        if within is not None:
            candidates = self.eligible.allowed(candidates, within)
        if self.standing is None or self.standing.is_plain:
            return candidates
        return self.eligible.standing(candidates, model, self.standing, self.clock())


class ByPrompt:
    """Decides where a request goes whose body we read: to the engines that hold the most of its
    prompt, as the scheduling has it."""

    __slots__ = ("_director", "_head", "_parse", "_priority", "_request_id", "_tenant", "_within")

    def __init__(
        self,
        director: Director,
        head: RequestHead,
        parse: Parse,
        request_id: str,
        within: Within | None,
        priority: int | None,
        tenant: str,
    ) -> None:
        self._director = director
        self._head = head
        self._parse = parse
        self._request_id = request_id
        self._within = within
        self._priority = priority
        self._tenant = tenant

    async def decide(self, journey: Journey, entry: Entry | None) -> Decision:
        """As `Journey.decide`."""
        director = self._director
        journey.reads_prompt = True
        raw = journey.known_body
        if director.parses_here(raw):
            body = self._parse(raw)
        else:
            body = await director.parse(self._parse, raw)
        if not body.model:
            body = self._of_sole_model(body)
        request = self._rewritten(journey, self._request(body, raw))
        model = self._model(journey, request)
        candidates = self._candidates(model)
        director.scheduling.admit(request, candidates)
        journey.shape = shape = await shape_of(director.gate, self._head.path, request, candidates)
        waited = entry is not None and await entry.enter(
            model.name, self._head.headers, request.objectives.priority
        )
        reason = Reason.LOAD_ONLY
        if director.scoring:
            reason = await self._match(journey, model, request)
            request = with_prompts(request, journey.matched)
        if director.scoring or waited:
            candidates = self._candidates(model)
        candidates = self._that_fit(journey, candidates, model, request)
        if entry is not None and entry.limits_engines:
            candidates = director.eligible.with_room(candidates, entry)
        candidates.now = director.clock()
        director.matcher.fill(candidates, journey.matched)
        if shape is not None:
            shape.produce(request, candidates)
        for producer in director.scheduling.producers:
            producer.produce(request, candidates)
        choice = director.scheduling.chooser.choose(request, candidates)
        targets = choice.targets if shape is None else choice.targets[: shape.may_try]
        decision = Decision(targets, reason, choice.headers)
        journey.routed = Routed(request, model, journey.matched, decision, candidates)
        journey.streamed = bool(request.body.stream)
        journey.tells_its_reuse = tells_its_reuse(request.body)
        for plugin in director.scheduling.following:
            follower = plugin.follow(request, candidates, choice)
            if follower is not None:
                journey.listen(follower)
        if shape is not None:
            journey.listen(shape)
        return decision

    def _candidates(self, model: ServedModel) -> Candidates:
        """As they are by now."""
        return self._director.candidates(model.name, self._within)

    def _that_fit(
        self, journey: Journey, candidates: Candidates, model: ServedModel, request: LLMRequest
    ) -> Candidates:
        director = self._director
        if not model.contexts.by_engine or not director.scoring:
            return candidates
        ids = [item.prompt.token_ids for items in journey.matched.values() for item in items]
        return director.eligible.fitting(candidates, model, context_needed(request.body, ids))

    def _of_sole_model(self, body: Body) -> Body:
        """It names no model: vLLM answers with its own, llm-d refuses it."""
        if self._director.behind_proxy:
            raise InvalidRequestError("model not found in request body", param="model")
        return msgspec.structs.replace(body, model=self._director.fleet.sole_model())

    def _request(self, body: Body, raw: bytes) -> LLMRequest:
        headers = self._head.headers
        asked = objectives(headers, self._director.priorities, self._priority)
        return LLMRequest(
            request_id=self._request_id,
            target_model=body.model,
            body=body,
            headers=headers,
            objectives=asked,
            tenant=self._tenant,
            raw=raw,
        )

    def _rewritten(self, journey: Journey, request: LLMRequest) -> LLMRequest:
        journey.record.model = asked = request.body.model
        named = request.header(MODEL_HEADER) if self._director.behind_proxy else None
        target = self._director.rewrites.target(named.decode("latin-1") if named else asked)
        journey.record.target_model = target
        if target == asked:
            return request
        journey.rename(asked, with_model(journey.known_body, target))
        return msgspec.structs.replace(request, target_model=target)

    def _model(self, journey: Journey, request: LLMRequest) -> ServedModel:
        director, asked, target = self._director, request.body.model, request.target_model
        model = looked_up(director.fleet.model, asked, target)
        journey.record.known_model = director.rewrites.known(asked, target)
        return model

    async def _match(self, journey: Journey, model: ServedModel, request: LLMRequest) -> Reason:
        lookup = await self._director.matcher.match_if_possible(model, request.body)
        journey.matched = lookup.prompts
        journey.goes_on = not lookup.reason.is_whole
        return lookup.reason
