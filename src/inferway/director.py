"""The request path, once, on one screen. Both frontends drive it; no engine I/O, no clock.

journey = director.open(head, body)     bytes       -> a typed request     openai_api
decision = await journey.decide()       request     -> token ids           prompts
                                        token ids   -> block keys          blocks
                                        block keys  -> blocks held         index
                                        + load      -> ranked targets      scheduling
journey.attempt(target)                 books the slot, speculates on the prompt
journey.on_head / on_chunk              what the engine answers passes by
journey.close(outcome)                  frees the slot and the speculation, exactly once
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from inferway.blocks.extra_keys import BlockExtras, request_extras
from inferway.blocks.keys import BlockHasher
from inferway.errors import (
    IndexAwayError,
    InferwayError,
    RenderError,
    UnknownPathError,
    crash_report,
)
from inferway.index.protocol import Found, Index
from inferway.index.speculative import Speculation, SpeculativeOverlay
from inferway.model import (
    BlockKey,
    Candidates,
    Decision,
    Endpoint,
    Headers,
    HolderId,
    Prompt,
    Reason,
    RequestHead,
    Target,
    TokenIds,
    Tokenized,
)
from inferway.openai_api.edits import with_vllm_xarg
from inferway.openai_api.requests import Body, ParsedRequest, parse_chat, parse_completion
from inferway.openai_api.usage import UsageReader
from inferway.prompts.served import ServedModel
from inferway.scheduling.plugin import Chooser

Parse = Callable[[bytes], ParsedRequest[Any]]
_Parsed = TypeVar("_Parsed")


class OffLoop(Protocol):
    """Parses in a thread."""

    def __call__(self, parse: Callable[[bytes], _Parsed], body: bytes, /) -> Awaitable[_Parsed]: ...


log = logging.getLogger("inferway.director")

LONG_BLOCKS = 4_096  # a prompt of more is not derived, matched and weighed in one go

PARSERS: Mapping[str, Parse] = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
}


class FleetView(Protocol):
    """What the director needs of the fleet (fleet.Fleet)."""

    def model(self, name: str) -> ServedModel:
        """Raises UnknownModelError, or NoEndpointError when its engines are all gone."""

    def candidates(self, model: str) -> Candidates:
        """The live endpoints that serve `model`; raises NoEndpointError if there is none."""

    def block_size(self, holder: HolderId) -> int | None:
        """In tokens; None when the engine has not told."""

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        """A request is on its way there; so many of its tokens must be computed."""

    def release(self, endpoint: Endpoint) -> None:
        """It has ended."""

    def heal(self, endpoint: Endpoint) -> bool:
        """Whether the engine is to be asked, by a request that goes there now and finds more
        than we know of, to report all that it reuses; `healed` when that has ended."""

    def healed(self, endpoint: Endpoint) -> None:
        """It has ended."""

    def suspect(self, endpoint: Endpoint) -> None:
        """A request has just failed there."""


@dataclass(slots=True)
class EngineTokens:
    """Prompt tokens sent to one engine: all, those we believed cached, those that were."""

    prompt: int = 0
    matched: int = 0
    delivered: int = 0


@dataclass(slots=True)
class DirectorStats:
    """Plain integers; one collector reads them when it is scraped."""

    decisions: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, EngineTokens] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)

    def decided(self, reason: str) -> None:
        self.decisions[reason] = self.decisions.get(reason, 0) + 1

    def ended(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def tokens_of(self, engine: str) -> EngineTokens:
        found = self.tokens.get(engine)
        if found is None:
            found = self.tokens[engine] = EngineTokens()
        return found


class Matched(msgspec.Struct, frozen=True):
    """A prompt, and what each holder has of its blocks: as the index knows it."""

    prompt: Prompt
    found: Found

    @property
    def held(self) -> Mapping[HolderId, int]:
        return self.found.blocks


class Lookup(msgspec.Struct, frozen=True):
    """A request's prompts and who holds them, for each block size of the model's engines."""

    prompts: Mapping[int, Sequence[Matched]]
    reason: Reason  # whether the prompts are known to their end


class Routed(msgspec.Struct, frozen=True):
    """All that was found out about a request: what the alarm and the publisher get."""

    request: ParsedRequest[Any]
    model: ServedModel
    prompts: Mapping[int, Sequence[Matched]]  # by block size; empty when not rendered
    decision: Decision
    candidates: Candidates


@dataclass(slots=True)
class Director:
    """Opens journeys. `off_loop` runs a function in a thread, for bodies too big to parse here.
    `later`: an answer's first token may be here before the engine's events are; until they must
    have come, its prompt counts as held."""

    fleet: FleetView
    index: Index
    overlay: SpeculativeOverlay
    profile: Chooser
    scoring: bool = True
    key_seed: int = 0
    off_loop: OffLoop | None = None
    off_loop_bytes: int = 256 * 1024
    later: Callable[[Callable[[], None]], object] | None = None  # calls in a moment
    breathe: Callable[[], Awaitable[None]] | None = None  # lets others have a turn
    stats: DirectorStats = field(default_factory=DirectorStats)
    _hashers: dict[int, BlockHasher] = field(default_factory=dict)

    def open(self, head: RequestHead, body: bytes) -> Journey:
        """Raises UnknownPathError for a path that carries no prompt."""
        parse = PARSERS.get(head.path)
        if parse is None:
            raise UnknownPathError(f"{head.path}: no such path; known: {', '.join(PARSERS)}")
        return Journey(self, body, parse)

    async def parse(self, parse: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
        """bytes -> typed request, in a thread when that would hold up everybody else."""
        if self.off_loop is None or len(body) <= self.off_loop_bytes:
            return parse(body)
        return await self.off_loop(parse, body)

    async def match(self, model: ServedModel, body: Body) -> Lookup:
        """Raises RequestError, or RenderError for reasons of our own."""
        if model.unfaithful is not None:
            raise RenderError(model.unfaithful, reason=Reason.UNFAITHFUL)
        return await self.look_up(model, await model.prompts.tokenize(body), body.cache_salt)

    async def look_up(
        self, model: ServedModel, tokenized: Tokenized, cache_salt: str | None
    ) -> Lookup:
        """Who holds prompts that are tokens already."""
        extras = request_extras(lora=model.lora, cache_salt=cache_salt)
        matched: dict[int, list[Matched]] = {}
        for block_size in model.block_sizes:
            items = matched[block_size] = []
            for ids in tokenized.token_ids:
                keys = self._keys(block_size, ids, extras)
                await self._breathe(keys)
                items.append(Matched(Prompt(ids, keys), await self.index.match(keys)))
                await self._breathe(keys)
        return Lookup(matched, tokenized.reason)

    def candidates(
        self,
        model: ServedModel,
        matched: Mapping[int, Sequence[Matched]],
        *,
        speculate: bool = True,
    ) -> Candidates:
        """The model's live endpoints with what each holds of the prompts. With `speculate`,
        prompts on their way to an endpoint count as held by it."""
        candidates = self.fleet.candidates(model.name)
        if not matched:
            return candidates
        candidates.matched_blocks = held_blocks = np.zeros(len(candidates.endpoints))
        less = np.zeros(len(candidates.endpoints))
        candidates.prompt_blocks = np.zeros(len(candidates.endpoints))
        for block_size, items in matched.items():
            of_size = candidates.block_sizes == block_size
            candidates.prompt_blocks[of_size] = sum([len(m.prompt.block_keys) for m in items])
            for item in items:
                held = item.held
                if speculate:
                    held = self.overlay.extend(item.prompt.block_keys, held)
                for holder, blocks in held.items():
                    row = candidates.rows.get(holder)
                    if row is not None and of_size[row]:
                        held_blocks[row] += blocks
                        less[row] += item.found.discount.get(holder, 0.0)
        candidates.matched_value = held_blocks - less
        return candidates

    async def _breathe(self, keys: Sequence[BlockKey]) -> None:
        """Between two steps that each take a millisecond or more."""
        if self.breathe is not None and len(keys) > LONG_BLOCKS:
            await self.breathe()

    def _keys(self, block_size: int, ids: TokenIds, extras: BlockExtras | None) -> list[int]:
        hasher = self._hashers.get(block_size)
        if hasher is None:
            hasher = self._hashers[block_size] = BlockHasher(block_size, self.key_seed)
        return hasher.keys(ids, extras)


class Journey:
    """One request from its first byte to its last. `close` is idempotent and must be called."""

    __slots__ = (
        "_body",
        "_director",
        "_edited",
        "_goes_on",
        "_matched",
        "_parse",
        "_prompt_tokens",
        "_reused_tokens",
        "_speculations",
        "_target",
        "_usage",
        "closed",
        "routed",
    )

    def __init__(
        self,
        director: Director,
        body: bytes,
        parse: Parse,
    ) -> None:
        self.routed: Routed | None = None
        self.closed = False
        self._director = director
        self._body = body
        self._parse = parse
        self._matched: Mapping[int, Sequence[Matched]] = {}
        self._goes_on = False  # the engine's prompts are longer than what we know of them
        self._edited: bytes | None = None  # the body that asks for a report, of this attempt
        self._target: Target | None = None
        self._speculations: list[Speculation] = []
        self._usage = UsageReader()

    @property
    def body(self) -> bytes:
        """What the attempt sends: the client's bytes, and perhaps what we added to them."""
        return self._body if self._edited is None else self._edited

    async def decide(self) -> Decision:
        """Where to send it. Raises RequestError (answer it) or NoEndpointError."""
        director = self._director
        request = await director.parse(self._parse, self._body)
        body = request.body
        model = director.fleet.model(body.model)
        reason = Reason.LOAD_ONLY
        if director.scoring:
            reason = await self._match(model, body)
        candidates = director.candidates(model, self._matched)
        decision = Decision(director.profile.choose(candidates), reason)
        director.stats.decided(reason)
        self.routed = Routed(request, model, self._matched, decision, candidates)
        return decision

    async def _match(self, model: ServedModel, body: Body) -> Reason:
        """Routing must never make an answer impossible: what we cannot render goes by load."""
        if not model.block_sizes:
            return Reason.NO_BLOCK_SIZE
        try:
            lookup = await self._director.match(model, body)
        except RenderError as e:
            return Reason(e.reason)
        except IndexAwayError:
            return Reason.INDEX_AWAY
        except InferwayError:
            raise
        except Exception as e:
            log.error(
                "model %r: deriving a prompt failed; it goes by load only: %s",
                model.name,
                crash_report(e),
            )
            return Reason.OUR_FAULT
        self._matched = lookup.prompts
        self._goes_on = not lookup.reason.is_whole
        return lookup.reason

    def attempt(self, target: Target) -> Headers:
        """Books a slot on `target`, and counts the prompt as held there until its first token.
        A second attempt takes back the first. Returns headers the engine needs."""
        if self._target is not None:
            self._director.fleet.suspect(self._target.endpoint)
        self._release()
        director, endpoint = self._director, target.endpoint
        items: Sequence[Matched] = ()
        self._prompt_tokens = self._reused_tokens = 0
        block_size = director.fleet.block_size(endpoint.holder)
        if self._matched and block_size is not None:
            items = self._matched.get(block_size, ())
            lengths = [len(item.prompt.token_ids) for item in items]
            self._prompt_tokens = sum(lengths)
            # vLLM computes a prompt's last token always, and so never reuses its block
            reusable = sum([(length - (not self._goes_on)) // block_size for length in lengths])
            self._reused_tokens = min(target.matched_blocks, reusable) * block_size
            known = sum([item.held.get(endpoint.holder, 0) for item in items])
            if known < reusable and director.fleet.heal(endpoint):
                self._edited = with_vllm_xarg(self._body, "kv_cache_report_mode", "full")
                if self._edited is None:
                    director.fleet.healed(endpoint)
        director.fleet.book(endpoint, self._prompt_tokens - self._reused_tokens)
        self._target = target
        self._speculations = [
            director.overlay.add(
                endpoint.holder, item.prompt.block_keys, skip=item.held.get(endpoint.holder, 0)
            )
            for item in items
        ]
        return endpoint.headers

    def on_head(self, status: int) -> Headers:
        """The engine has answered; returns what the client's head gets on top."""
        target = self._target
        if target is None:
            raise RuntimeError("on_head before attempt")
        if status < 400:
            tokens = self._director.stats.tokens_of(target.endpoint.engine)
            tokens.prompt += self._prompt_tokens
            tokens.matched += self._reused_tokens
        elif status >= 500:
            self._director.fleet.suspect(target.endpoint)
        told = (
            (b"x-inferway-engine", target.endpoint.engine.encode()),
            (b"x-inferway-matched-blocks", b"%d" % target.matched_blocks),
            (b"x-inferway-prompt-blocks", b"%d" % target.prompt_blocks),
        )
        return told if self._edited is None else (*told, (b"x-inferway-edited", b"vllm_xargs"))

    def on_chunk(self, chunk: bytes) -> bytes:
        """A piece of the answer passes. With the first one the speculation ends: from here on
        the engine's own events tell what it holds."""
        if self._speculations:
            self._confirmed()
        self._usage.feed(chunk)
        return chunk

    def close(self, outcome: str) -> None:
        """The journey has ended; frees what `attempt` took. Only the first call counts."""
        if self.closed:
            return
        self.closed = True
        if self._target is not None:
            endpoint = self._target.endpoint
            tokens = self._director.stats.tokens_of(endpoint.engine)
            tokens.delivered += self._usage.cached_tokens or 0
            if outcome == "upstream_error":
                self._director.fleet.suspect(endpoint)
        self._release()
        self._director.stats.ended(outcome)

    def _confirmed(self) -> None:
        """The engine holds the prompt now."""
        director, speculations = self._director, self._speculations
        if director.later is None:
            self._end_speculation()
            return
        self._speculations = []
        director.later(partial(director.overlay.remove_all, speculations))

    def _end_speculation(self) -> None:
        self._director.overlay.remove_all(self._speculations)
        self._speculations = []

    def _release(self) -> None:
        if self._speculations:
            self._end_speculation()
        if self._target is not None:
            self._director.fleet.release(self._target.endpoint)
            if self._edited is not None:
                self._director.fleet.healed(self._target.endpoint)
                self._edited = None
            self._target = None
