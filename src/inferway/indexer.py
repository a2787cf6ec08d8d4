"""What the engines' caches hold of a prompt: the library's front door.

    async with Indexer(["http://10.0.0.5:8000", "http://10.0.0.6:8000"]) as indexer:
        scores = await indexer.score_chat(messages, model="org/model")
        print(scores.best)

It asks the engines what they serve, listens to their KV events, and renders prompts as they do;
nothing is sent anywhere to be answered. The gateway (`app`) is built around one: what this
says is what it routes by.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
import zmq.asyncio

from inferway.config import EngineSettings, ServeSettings, load_settings, parse_engine
from inferway.director import Director
from inferway.errors import (
    ConfigError,
    HelperError,
    InvalidRequestError,
    NoEndpointError,
    PromptTooLongError,
    RenderError,
    UnknownModelError,
)
from inferway.events.event import Batch
from inferway.fleet.columns import STATES
from inferway.fleet.discovery import EventSource
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.journal.state_dir import StateDir
from inferway.fleet.polling_subscriber import PollingSubscriber
from inferway.fleet.subscriber import EventSubscriber, Subscription
from inferway.fleet.zmq_subscriber import REPLAYS_AT_ONCE, ZmqSubscriber, sockets_context
from inferway.index.build import build_index
from inferway.index.protocol import CPU, GPU
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import Candidates, Endpoint, HolderId, Reason, TokenIds, Tokenized
from inferway.openai_api.requests import Body, parse_chat, parse_completion
from inferway.prompts.load import load_prompts
from inferway.prompts.on_demand import OnDemandPrompts
from inferway.prompts.renderer import Renderer
from inferway.prompts.request_templates import RequestTemplates
from inferway.prompts.served import ModelSource, PromptSource, ServedModel
from inferway.prompts.token_ids import checked_token_ids
from inferway.scheduling.policies import scheduling_of
from inferway.scheduling.scheduling import Scheduling
from inferway.steps.eligible import Standing
from inferway.steps.match import Lookup, Matched, Matcher
from inferway.steps.rewrite import Rewrites
from inferway.tasks import Later

# By when an engine's events have come that its first token tells of: 0.06 to 0.17 s were seen with
# engines that computed on the CPU, next to nothing otherwise.
EVENT_SECONDS = 0.25

log = logging.getLogger("inferway")

# An engine whose block size nobody has told yet is listened to all the same: its first event
# tells. Until then this is what is expected.
ASSUMED_BLOCK_SIZE = 16

MAX_TOKENS_ON_LOOP = 16_384  # about a millisecond's work
CAUGHT_UP_SECONDS = 0.02  # between two looks

_Parsed = TypeVar("_Parsed")
OnEngineBatch = Callable[[Engine, HolderId, Batch], None]


class EngineScore(msgspec.Struct, frozen=True):
    """What one engine, or one data-parallel rank of it, holds of a prompt: of its beginning, up
    to the first block that is missing. A tail that fills no block never counts."""

    engine: str
    rank: int | None  # None: the engine has one, or balances its own
    state: str  # how true what we believe of it is: exact, partial, repairing, stale or blind
    block_size: int  # in tokens
    total_blocks: int  # of the prompt
    blocks: int  # of them held, in whatever tier
    score: float  # the same, each block weighed by the best tier it lies in
    tiers: tuple[int, int, int]  # blocks held in GPU; GPU or CPU; GPU, CPU or storage

    @property
    def name(self) -> str:
        """The key in `Scores.engines`."""
        return self.engine if self.rank is None else f"{self.engine}/{self.rank}"

    @property
    def tokens(self) -> int:
        """Held, in whatever tier."""
        return self.blocks * self.block_size


class Scores(msgspec.Struct, frozen=True):
    """What the live engines of a model hold of a prompt."""

    model: str  # as engines call it in their answers
    prompt_tokens: int  # as far as they are known
    reason: Reason  # whether the prompt is known to its end
    engines: Mapping[str, EngineScore]  # by name; those that hold nothing too

    @property
    def best(self) -> EngineScore | None:
        """The highest score; None if nobody holds anything."""
        best = max(self.engines.values(), key=lambda engine: engine.score, default=None)
        return best if best is not None and best.blocks else None


class Indexer:
    """Of engines given by URL (as `--engine` takes it) or by settings; or of ServeSettings, for all
    the rest that can be said. `start` and `close`, or `async with`. What is given as an object
    stays the giver's, who closes it."""

    def __init__(
        self,
        engines: Iterable[str | EngineSettings] | ServeSettings,
        *,
        renderer: Renderer | None = None,
        context: zmq.asyncio.Context | None = None,
        on_batch: OnEngineBatch | None = None,
        standing: Standing | None = None,
        behind_proxy: bool = False,
    ) -> None:
        """`on_batch` sees each batch of events that was applied. `standing` says which engines get
        no requests now. `behind_proxy`: requests come from a proxy, and its headers count. Raises
        ConfigError."""
        self.settings = engines if isinstance(engines, ServeSettings) else _settings(engines)
        scheduling = _scheduling(self.settings)
        self.index = build_index(self.settings.index)
        self.state_dir = StateDir.of(self.settings)
        self._own_renderer = renderer is None
        self.renderer = renderer or Renderer()
        trusted = self.settings.trust_request_chat_template
        self.request_templates = RequestTemplates() if trusted else None
        self._own_context = context is None
        self._context = context or sockets_context()
        self._on_batch = on_batch
        self._replays = asyncio.Semaphore(REPLAYS_AT_ONCE)
        self._closed = False
        self.fleet = Fleet(
            self.settings,
            self.index,
            self._load_prompts,
            self._subscribe,
        )
        self.director = Director(
            self.fleet,
            Matcher(self.index, SpeculativeOverlay(_next_turn), breathe=partial(asyncio.sleep, 0)),
            scheduling,
            time.monotonic,
            rewrites=Rewrites(self.settings.model_rewrites),
            priorities=self.settings.objectives,
            scoring=self.settings.scoring,
            behind_proxy=behind_proxy,
            off_loop=_in_thread,
            later=Later(EVENT_SECONDS),
            standing=standing,
        )

    async def start(self) -> None:
        """Asks every engine what it is, and begins to listen. Engines that are not there are
        looked for again. What they hold comes in afterwards; see `caught_up`. Raises ConfigError,
        with all that was opened closed again."""
        try:
            if self.request_templates is not None:
                await _start_helper(self.request_templates)
            self.state_dir.open()
            await self.index.start()
            await self.fleet.start()
        except BaseException:
            await self.close()
            raise

    async def caught_up(self, seconds: float) -> bool:
        """Whether all that can be known of the live engines' caches has come in; waits for that,
        but not for longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_caught_up():
                    await asyncio.sleep(CAUGHT_UP_SECONDS)
        return self._is_caught_up()

    def _is_caught_up(self) -> bool:
        return all(
            subscriber.state.is_settled
            for engine in self.fleet.engines
            if engine.healthy
            for subscriber in engine.subscribers
        )

    async def close(self) -> None:
        """Closes what `start` has opened, in reverse. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self.fleet.close()
        await self.state_dir.close()
        await self.index.close()
        if self._own_context:
            self._context.destroy(linger=200)
        if self.request_templates is not None:
            self.request_templates.close()
        if self._own_renderer:
            self.renderer.close()

    async def __aenter__(self) -> Indexer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # what is asked

    async def score_prompt(
        self,
        prompt: str,
        model: str,
        engines: Sequence[str] | None = None,
        lora: str | None = None,
        cache_salt: str | None = None,
    ) -> Scores:
        """Of a text, as /v1/completions would tokenize it. Raises RequestError that names the
        argument; NoEndpointError, RenderError or IndexAwayError if it cannot be known now."""
        body = _body({"prompt": prompt, "cache_salt": cache_salt}, model)
        request = await self.director.parse(parse_completion, body)
        return await self.score_request(request, engines, lora)

    async def score_chat(
        self,
        chat: Sequence[Mapping[str, Any]] | Mapping[str, Any],
        model: str,
        engines: Sequence[str] | None = None,
        lora: str | None = None,
        cache_salt: str | None = None,
    ) -> Scores:
        """Of messages, or of a whole body as /v1/chat/completions takes it (tools, template
        arguments), whose `model` and `cache_salt` those given here replace. Raises as
        `score_prompt` does."""
        fields: dict[str, Any] = dict(chat) if isinstance(chat, Mapping) else {"messages": chat}
        if cache_salt is not None:
            fields["cache_salt"] = cache_salt
        request = await self.director.parse(parse_chat, _body(fields, model))
        return await self.score_request(request, engines, lora)

    async def score_tokens(
        self,
        tokens: Sequence[int] | TokenIds,
        model: str,
        engines: Sequence[str] | None = None,
        lora: str | None = None,
        cache_salt: str | None = None,
    ) -> Scores:
        """Of token ids, as the engine would see them; no tokenizer is needed. Raises as
        `score_prompt` does."""
        served = self._served(model, lora)
        most = served.contexts.most
        if most is not None and len(tokens) > most:
            raise PromptTooLongError(
                f"tokens: {len(tokens)} are more than the model's context of {most}",
                param="tokens",
            )
        if len(tokens) <= MAX_TOKENS_ON_LOOP:
            ids = checked_token_ids(tokens, "tokens")
        else:
            ids = await asyncio.to_thread(checked_token_ids, tokens, "tokens")
        lookup = await self.director.matcher.look_up(served, Tokenized([ids]), cache_salt)
        return self._scores(served, lookup, engines)

    async def score_request(
        self, body: Body, engines: Sequence[str] | None = None, lora: str | None = None
    ) -> Scores:
        """Of a parsed request; several prompts are added up. Prompts on their way to an engine do
        not count. Raises as `score_prompt` does."""
        served = self._served(body.model or self.fleet.sole_model(), lora)
        return self._scores(served, await self.director.matcher.match(served, body), engines)

    # how it is found out

    def _served(self, model: str, lora: str | None) -> ServedModel:
        served = self.fleet.model(model)
        if lora is not None:
            try:
                served = self.fleet.model(lora)
            except UnknownModelError as e:
                raise UnknownModelError(f"lora: no engine serves {lora!r}", param="lora") from e
            if served.lora is None or model not in {lora, *self._parents(lora)}:
                raise InvalidRequestError(
                    f"lora: {lora!r} is not an adapter of {model!r}", param="lora"
                )
        if not served.block_sizes:
            self.fleet.candidates(served.name)  # engines that are gone have not told theirs either
            raise RenderError(
                f"model {served.name!r}: its engines have not told their block size; give"
                " --engine URL,block_size=N",
                reason=Reason.NO_BLOCK_SIZE,
            )
        return served

    def _parents(self, adapter: str) -> set[str]:
        """The names of what it was made from."""
        return {
            base.name
            for engine in self.fleet.engines
            if adapter in engine.model_names
            for base in engine.base_models
        }

    def _scores(self, served: ServedModel, lookup: Lookup, engines: Sequence[str] | None) -> Scores:
        candidates = self.fleet.candidates(served.name)
        self.director.matcher.fill(candidates, lookup.prompts, speculate=False)
        wanted = None if engines is None else self._wanted(engines)
        scores = {
            endpoint.name: _engine_score(candidates, row, lookup.prompts)
            for row, endpoint in enumerate(candidates.endpoints)
            if wanted is None or endpoint.engine in wanted or endpoint.name in wanted
        }
        if not scores:
            raise NoEndpointError(
                f"model {served.name!r}: none of its live engines is among those asked for; live: "
                + ", ".join(endpoint.name for endpoint in candidates.endpoints)
            )
        prompts: Sequence[Matched] = next(iter(lookup.prompts.values()), ())
        num_tokens = sum(len(item.prompt.token_ids) for item in prompts)
        return Scores(served.answers_as or served.name, num_tokens, lookup.reason, scores)

    def _wanted(self, names: Sequence[str]) -> frozenset[str]:
        """Names of engines stand for all their ranks."""
        known = {engine.name for engine in self.fleet.engines}
        known |= {e.name for engine in self.fleet.engines for e in engine.endpoints}
        for name in names:
            if name not in known:
                raise InvalidRequestError(
                    f"engines: no engine is called {name!r}; known: {', '.join(sorted(known))}",
                    param="engines",
                )
        return frozenset(names)

    # what the fleet is given

    async def _load_prompts(self, source: ModelSource) -> PromptSource:
        load = partial(load_prompts, self.renderer, self.request_templates, source)
        return await load() if self.settings.scoring else OnDemandPrompts(load)

    def _subscribe(
        self, engine: Engine, source: EventSource, endpoint: Endpoint
    ) -> EventSubscriber:
        subscription = Subscription(
            source,
            endpoint.holder,
            engine.block_size_told or ASSUMED_BLOCK_SIZE,
            self.index,
            name=engine.name,
            on_batch=partial(self._on_batch, engine) if self._on_batch else None,
            journal=self.state_dir.journal(engine, source, endpoint),
            lora_path=engine.adapter_path,
        )
        if source.is_polled:
            return PollingSubscriber(subscription, headers=engine.http_headers)
        return ZmqSubscriber(subscription, context=self._context, replays=self._replays)


def _settings(engines: Iterable[str | EngineSettings]) -> ServeSettings:
    """Checked, as those of `inferway serve` are."""
    parsed = [parse_engine(e) if isinstance(e, str) else e for e in engines]
    return load_settings(None, {"engines": parsed})


def _scheduling(settings: ServeSettings) -> Scheduling:
    scheduling = scheduling_of(settings)
    for note in scheduling.notes:
        log.info("%s", note)
    return scheduling


def _body(fields: Mapping[str, Any], model: str) -> bytes:
    """As a client would send it: there is one place that checks requests."""
    try:
        return msgspec.json.encode({**fields, "model": model})
    except (TypeError, ValueError) as e:
        raise InvalidRequestError(f"body: it has no form in JSON: {e}") from e


def _engine_score(
    candidates: Candidates, row: int, prompts: Mapping[int, Sequence[Matched]]
) -> EngineScore:
    endpoint, block_size = candidates.endpoints[row], int(candidates.block_sizes[row])
    items = prompts.get(block_size, ())
    holder, blocks = endpoint.holder, int(candidates.matched_blocks[row])
    gpu, cpu = (sum(item.found.within(holder, tier) for item in items) for tier in (GPU, CPU))
    return EngineScore(
        engine=endpoint.engine,
        rank=endpoint.rank,
        state=str(STATES[int(candidates.states[row])]),
        block_size=block_size,
        total_blocks=int(candidates.prompt_blocks[row]),
        blocks=blocks,
        score=float(candidates.matched_value[row]),
        tiers=(gpu, cpu, blocks),
    )


async def _start_helper(templates: RequestTemplates) -> None:
    try:
        await templates.start()
    except HelperError as e:
        raise ConfigError(f"trust_request_chat_template: {e}") from e


async def _in_thread(parse: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
    return await asyncio.to_thread(parse, body)


def _next_turn(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)
