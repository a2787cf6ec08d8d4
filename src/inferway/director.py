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
from inferway.gate.shape import Shape
from inferway.model import Candidates, Decision, Endpoint, Headers, Reason, RequestHead, Target
from inferway.openai_api.edits import with_model
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.model_name import ModelNames
from inferway.openai_api.paths import PARSERS, Parse
from inferway.openai_api.requests import Body, asks_for_report, tells_its_reuse
from inferway.openai_api.usage import Usage, UsageReader
from inferway.prompts.context import context_needed
from inferway.prompts.served import ServedModel
from inferway.scheduling.plugin import Ending, Follower
from inferway.scheduling.scheduling import Scheduling
from inferway.steps.attempt import Attempt, Later, Places
from inferway.steps.counts import DirectorStats
from inferway.steps.eligible import Eligible, Standing, Within
from inferway.steps.entry import Entry
from inferway.steps.match import MatchedPrompts, Matcher, with_prompts
from inferway.steps.objectives import objectives
from inferway.steps.record import Record
from inferway.steps.rewrite import Rewrites, looked_up
from inferway.steps.shape import shape_of

# A proxy in front of us says here which model the request is for (field notes 3.5).
MODEL_HEADER = b"x-gateway-model-name-rewrite"

_Parsed = TypeVar("_Parsed")


class OffLoop(Protocol):
    """Parses in a thread."""

    def __call__(self, parse: Callable[[bytes], _Parsed], body: bytes, /) -> Awaitable[_Parsed]: ...


class FleetView(Places, Protocol):
    """What the director needs of the fleet (fleet.Fleet)."""

    def model(self, name: str) -> ServedModel:
        """Raises UnknownModelError, or NoEndpointError when its engines are all gone."""

    def sole_model(self) -> str:
        """The one that all live endpoints serve. Raises InvalidRequestError, NoEndpointError."""

    def candidates(self, model: str) -> Candidates:
        """The live endpoints that serve `model`; raises NoEndpointError if there is none."""

    def reports(self, endpoint: Endpoint) -> None:
        """A request is about to go there that asks by itself for a report of what it reuses."""

    def suspect(self, endpoint: Endpoint) -> None:
        """A request has just failed there."""


class Routed(msgspec.Struct, frozen=True):
    """All that was found out about a request: what the alarm and the publisher get."""

    request: LLMRequest
    model: ServedModel
    prompts: MatchedPrompts  # empty when not rendered
    decision: Decision
    candidates: Candidates


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
        return Journey(self, head, body, parse, request_id, within, priority, edits, tenant)

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


class Journey:
    """One request from its first byte to its last. `close` is idempotent and must be called."""

    __slots__ = (
        "_attempt",
        "_body",
        "_director",
        "_edits",
        "_first_chunk_came",
        "_followers",
        "_goes_on",
        "_head",
        "_matched",
        "_names",
        "_parse",
        "_priority",
        "_request_id",
        "_tells_its_reuse",
        "_tenant",
        "_usage",
        "_within",
        "body",
        "closed",
        "record",
        "routed",
        "shape",
        "streamed",
    )

    def __init__(
        self,
        director: Director,
        head: RequestHead,
        body: bytes,
        parse: Parse,
        request_id: str,
        within: Within | None = None,
        priority: int | None = None,
        edits: Sequence[bytes] = (),
        tenant: str = "",
    ) -> None:
        self.routed: Routed | None = None  # until the answer has begun
        self.streamed = False  # it is to be answered in pieces
        self.closed = False
        self.record = Record(director.clock())
        self.shape: Shape | None = None  # that is asked of the answer
        self.body = body  # what the attempt sends: the client's bytes, and what we changed of them
        self._director = director
        self._head = head
        self._body = body  # the same, without what one attempt adds
        self._parse = parse
        self._request_id = request_id
        self._within = within
        self._priority = priority
        self._tenant = tenant
        self._matched: MatchedPrompts = {}
        self._goes_on = False  # the engine's prompts are longer than what we know of them
        self._edits: list[bytes] = [*edits]
        self._names: ModelNames | None = None
        self._attempt: Attempt | None = None
        self._followers: list[Follower] = []
        self._first_chunk_came = False
        self._tells_its_reuse = True
        self._usage = UsageReader()

    @property
    def usage(self) -> Usage | None:
        """What the engine says it has taken and made, as far as it has said so."""
        return self._usage.usage()

    def finish_reasons(self) -> Sequence[str]:
        """Why the engine has ended its answers, as far as it has said so."""
        return self._usage.finish_reasons()

    @property
    def changes_length(self) -> bool:
        """Whether the answer's bytes are not as many as the engine's."""
        return self._names is not None

    async def decide(self, entry: Entry | None = None) -> Decision:
        """Where to send it, after it has had its turn at `entry`. Raises RequestError (answer it),
        NoEndpointError, or what `entry` raises."""
        director = self._director
        if director.parses_here(self._body):
            body = self._parse(self._body)
        else:
            body = await director.parse(self._parse, self._body)
        if not body.model:
            body = self._of_sole_model(body)
        request = self._rewritten(self._request(body))
        model = self._model(request)
        candidates = self._candidates(model)
        director.scheduling.admit(request, candidates)
        self.shape = shape = await shape_of(director.gate, self._head.path, request, candidates)
        waited = entry is not None and await entry.enter(
            model.name, self._head.headers, request.objectives.priority
        )
        reason = Reason.LOAD_ONLY
        if director.scoring:
            reason = await self._match(model, request)
            request = with_prompts(request, self._matched)
        if director.scoring or waited:
            candidates = self._candidates(model)
        candidates = self._that_fit(candidates, model, request)
        if entry is not None and entry.limits_engines:
            candidates = director.eligible.with_room(candidates, entry)
        candidates.now = director.clock()
        director.matcher.fill(candidates, self._matched)
        for producer in director.scheduling.producers:
            producer.produce(request, candidates)
        if shape is not None:
            shape.weigh(candidates)
        choice = director.scheduling.chooser.choose(request, candidates)
        targets = choice.targets if shape is None else choice.targets[: shape.may_try]
        decision = Decision(targets, reason, choice.headers)
        director.stats.decided(reason)
        self.record.reason = reason
        self.routed = Routed(request, model, self._matched, decision, candidates)
        self.streamed = bool(request.body.stream)
        self._tells_its_reuse = tells_its_reuse(request.body)
        for plugin in director.scheduling.following:
            follower = plugin.follow(request, candidates, choice)
            if follower is not None:
                self._followers.append(follower)
        if shape is not None:
            self._followers.append(shape)
        return decision

    def _candidates(self, model: ServedModel) -> Candidates:
        """As they are by now."""
        return self._director.candidates(model.name, self._within)

    def _that_fit(
        self, candidates: Candidates, model: ServedModel, request: LLMRequest
    ) -> Candidates:
        director = self._director
        if not model.contexts.by_engine or not director.scoring:
            return candidates
        ids = [item.prompt.token_ids for items in self._matched.values() for item in items]
        return director.eligible.fitting(candidates, model, context_needed(request.body, ids))

    def _of_sole_model(self, body: Body) -> Body:
        """It names no model: vLLM answers with its own, llm-d refuses it."""
        if self._director.behind_proxy:
            raise InvalidRequestError("model not found in request body", param="model")
        return msgspec.structs.replace(body, model=self._director.fleet.sole_model())

    def _request(self, body: Body) -> LLMRequest:
        headers = self._head.headers
        asked = objectives(headers, self._director.priorities, self._priority)
        return LLMRequest(
            request_id=self._request_id,
            target_model=body.model,
            body=body,
            headers=headers,
            objectives=asked,
            tenant=self._tenant,
            raw=self._body,
        )

    def _rewritten(self, request: LLMRequest) -> LLMRequest:
        self.record.model = asked = request.body.model
        named = request.header(MODEL_HEADER) if self._director.behind_proxy else None
        target = self._director.rewrites.target(named.decode("latin-1") if named else asked)
        self.record.target_model = target
        if target == asked:
            return request
        self.body = self._body = with_model(self._body, target)
        self._edits.append(b"model")
        self._names = ModelNames(asked)
        return msgspec.structs.replace(request, target_model=target)

    def _model(self, request: LLMRequest) -> ServedModel:
        director, asked, target = self._director, request.body.model, request.target_model
        model = looked_up(director.fleet.model, asked, target)
        self.record.known_model = director.rewrites.known(asked, target)
        return model

    async def _match(self, model: ServedModel, request: LLMRequest) -> Reason:
        lookup = await self._director.matcher.match_if_possible(model, request.body)
        self._matched = lookup.prompts
        self._goes_on = not lookup.reason.is_whole
        return lookup.reason

    def attempt(self, target: Target) -> Headers:
        """Books a slot on `target`, and counts the prompt as held there until its first token.
        A second attempt takes back the first. Returns headers the engine needs."""
        director = self._director
        self.record.target = target
        self.record.attempts += 1
        if self._attempt is not None:
            self._suspect(self._attempt.target.endpoint)
            self._attempt.end()
            self._attempt = None
        if self.routed is not None and asks_for_report(self.routed.request.body):
            director.fleet.reports(target.endpoint)
        overlay = director.matcher.overlay
        self._attempt = attempt = Attempt(
            target, self._body, self._matched, self._goes_on, director.fleet, overlay
        )
        self.body = attempt.body
        self.record.prompt_tokens = attempt.prompt_tokens
        return self._attempt_headers(target)

    def _attempt_headers(self, target: Target) -> Headers:
        headers = target.endpoint.headers
        if self.routed is not None and self.routed.decision.headers:
            headers = (*headers, *self.routed.decision.headers)
        for follower in self._followers:
            headers = (*headers, *follower.on_attempt(target, self._director.clock()))
        return headers

    def on_head(self, status: int) -> Headers:
        """The engine has answered; returns what the client's head gets on top."""
        attempt = self._attempt
        if attempt is None:
            raise RuntimeError("on_head before attempt")
        target = attempt.target
        if status < 400 and self._tells_its_reuse:
            tokens = self._director.stats.tokens_of(target.endpoint.engine)
            tokens.sent(attempt.prompt_tokens, attempt.reused_tokens)
        elif status >= 500:
            self._suspect(target.endpoint)
        told: Headers = (
            (b"x-inferway-engine", target.endpoint.engine.encode()),
            (b"x-inferway-matched-blocks", b"%d" % target.matched_blocks),
            (b"x-inferway-prompt-blocks", b"%d" % target.prompt_blocks),
        )
        edits = [*self._edits, b"vllm_xargs"] if attempt.asks_for_report else self._edits
        if edits:
            told = (*told, (b"x-inferway-edited", b", ".join(edits)))
        for follower in self._followers:
            told = (*told, *follower.on_head(status))
        return told

    def on_chunk(self, chunk: bytes) -> bytes:
        """A piece of the answer passes. With the first one the speculation ends: from here on
        the engine's own events tell what it holds."""
        if not self._first_chunk_came:
            self._first_chunk_came = True
            self._begun()
        self._usage.feed(chunk)
        return chunk if self._names is None else self._names.feed(chunk)

    def on_end(self) -> bytes:
        """The answer has come to its end; what of it was kept back."""
        return b"" if self._names is None else self._names.end()

    def _begun(self) -> None:
        self.record.begun_at = self._director.clock()
        if self._attempt is not None and self._matched:
            self._attempt.has_begun_to_answer(self._director.later)
        for follower in self._followers:
            follower.on_first_chunk(self._director.clock())
        self._forget_prompt()

    def _forget_prompt(self) -> None:
        """It is not sent again: an answer of minutes need not keep a prompt of megabytes."""
        self.body = self._body = b""
        self._matched = {}
        self.routed = None
        if self._attempt is not None:
            self._attempt.body = b""

    def close(self, outcome: str) -> None:
        """The journey has ended; frees what `attempt` took. Only the first call counts."""
        if self.closed:
            return
        self.closed = True
        attempt = self._attempt
        if attempt is not None:
            attempt.end()  # first: what it took is given back, whatever the answer holds
        record = self.record
        record.outcome = outcome
        record.usage = usage = self._usage.usage()
        if attempt is not None:
            endpoint = attempt.target.endpoint
            if usage is not None and usage.cached is not None and self._tells_its_reuse:
                tokens = self._director.stats.tokens_of(endpoint.engine)
                tokens.told(attempt.prompt_tokens, attempt.reused_tokens, usage.cached)
            if outcome == "upstream_error":
                self._suspect(endpoint)
        if self._followers:
            ending = Ending(outcome, self._director.clock(), usage, self.streamed)
            for follower in self._followers:
                follower.on_end(ending)

    def _suspect(self, endpoint: Endpoint) -> None:
        """It has failed this request."""
        director = self._director
        director.fleet.suspect(endpoint)
        if self.shape is None and director.gate is not None:
            director.gate.failed_beside(endpoint.engine)
