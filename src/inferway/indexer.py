"""The library's front door: an indexer knows what the engines' caches hold of a prompt.

    async with Indexer(["http://10.0.0.5:8000", "http://10.0.0.6:8000"]) as indexer:
        scores = await indexer.score_chat(messages, model="org/model")
        print(scores.best)

It asks the engines what they serve, listens to their KV events, and renders prompts as they do;
nothing is sent anywhere to be answered. The gateway (`app`) is built on one: its director routes
by the same `fleet` and `matcher`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from inferway.config import EngineSettings, ServeSettings, load_settings, parse_engine
from inferway.errors import (
    ConfigError,
    InvalidRequestError,
    PromptTooLongError,
    SandboxError,
)
from inferway.fleet.fleet import Fleet
from inferway.fleet.prober import Prober
from inferway.fleet.scores import Scores, scores_of, served_model
from inferway.fleet.shared_columns import SharedColumns
from inferway.fleet.state_dir import StateDir
from inferway.fleet.subscribing import OnEngineBatch, Subscribing
from inferway.fleet.watch import EngineWatch, Watch
from inferway.kv.index.build import build_index
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Index
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import TokenIds, Tokenized
from inferway.openai_api.requests import Body, parse_chat, parse_completion
from inferway.prompts.chat.helper_templates import RequestTemplates
from inferway.prompts.model_prompts import OnDemandPrompts, load_prompts
from inferway.prompts.renderer import Renderer
from inferway.prompts.served import ModelSource, PromptSource
from inferway.prompts.tokenizer.token_rows import checked_token_ids
from inferway.routing.match import Matcher

MAX_TOKENS_ON_LOOP = 16_384  # about a millisecond's work
MAX_BYTES_ON_LOOP = 256 * 1024
CAUGHT_UP_SECONDS = 0.02  # between two looks
# How long the first scores wait until it is known what engines hold.
FIRST_SCORES_SECONDS = 2.0

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, slots=True)
class FleetParts:
    """The parts that an indexer shares with other processes of the same fleet."""

    index: Index
    columns: SharedColumns
    watch: Callable[[Fleet, ServeSettings], Watch] = EngineWatch
    prober: Callable[..., Prober] = Prober
    overlay: SpeculativeOverlay | None = None  # None: its own
    on_change: Callable[[], None] | None = None  # what is known of an engine has changed


class Indexer:
    """Knows what engines hold: engines given by URL (as `--engine` takes it) or by settings; or
    ServeSettings, for all the rest that can be said. It owns the index, the fleet and the matcher;
    `start` and `close` it, or use `async with`. What is given as an object stays the giver's, who
    closes it."""

    def __init__(
        self,
        engines: Iterable[str | EngineSettings] | ServeSettings,
        *,
        renderer: Renderer | None = None,
        on_batch: OnEngineBatch | None = None,
        on_counted: Callable[[], None] | None = None,
        parts: FleetParts | None = None,
    ) -> None:
        """`on_batch` sees each batch of events that was applied; `on_counted` is called when
        requests in flight have changed. `parts`: in place of its own. Raises ConfigError."""
        self.settings = engines if isinstance(engines, ServeSettings) else _settings(engines)
        self.index = build_index(self.settings.index, MemoryIndex) if parts is None else parts.index
        self.state_dir = _state_dir(self.settings, self.index)
        self._own_renderer = renderer is None
        self.renderer = renderer or Renderer()
        trusted = self.settings.trust_request_chat_template
        self.request_templates = RequestTemplates() if trusted else None
        self._closed = False
        self._first_scores = asyncio.Lock()
        self.fleet = Fleet(
            self.settings,
            self.index,
            self._load_prompts,
            Subscribing(self.index, self.state_dir, on_batch),
            columns=None if parts is None else parts.columns,
            watch=EngineWatch if parts is None else parts.watch,
            prober=Prober if parts is None else parts.prober,
            on_change=None if parts is None else parts.on_change,
            on_counted=on_counted,
        )
        overlay = None if parts is None else parts.overlay
        self.matcher = Matcher(
            *(self.index, overlay or SpeculativeOverlay(next_turn)),
            breathe=partial(asyncio.sleep, 0),
        )

    async def start(self) -> None:
        """Ask every engine what it is, and begin to listen. Engines that are not there are looked
        for again. What they hold comes in afterwards; see `caught_up`. Raises ConfigError, with all
        that was opened closed again."""
        try:
            if self.request_templates is not None:
                await _start_helper(self.request_templates)
            self.state_dir.open()
            await self.fleet.start()
        except BaseException:
            await self.close()
            raise

    async def caught_up(self, seconds: float) -> bool:
        """Return whether prompts can be matched with all that can be known: the first tokenizers
        are loaded, or cannot be had, and the live engines' caches are known. Waits for that, but no
        longer than so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_caught_up():
                    await asyncio.sleep(CAUGHT_UP_SECONDS)
        return self._is_caught_up()

    def _is_caught_up(self) -> bool:
        return self.fleet.loading is None and all(
            subscriber.state.is_settled
            for engine in self.fleet.engines
            if engine.healthy
            for subscriber in engine.streams
        )

    async def close(self) -> None:
        """Close what `start` has opened, in reverse. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self.state_dir.close()
        await self.fleet.close()
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
        """Return the scores of a text, as /v1/completions would tokenize it. Raises RequestError
        that names the argument; NoEndpointError or RenderError if they cannot be known now."""
        body = _body({"prompt": prompt, "cache_salt": cache_salt}, model)
        request = await _parsed(parse_completion, body)
        return await self.score_request(request, engines, lora)

    async def score_chat(
        self,
        chat: Sequence[Mapping[str, Any]] | Mapping[str, Any],
        model: str,
        engines: Sequence[str] | None = None,
        lora: str | None = None,
        cache_salt: str | None = None,
    ) -> Scores:
        """Return the scores of messages, or of a whole body as /v1/chat/completions takes it
        (tools, template arguments), whose `model` and `cache_salt` those given here replace. Raises
        as `score_prompt` does."""
        fields: dict[str, Any] = dict(chat) if isinstance(chat, Mapping) else {"messages": chat}
        if cache_salt is not None:
            fields["cache_salt"] = cache_salt
        request = await _parsed(parse_chat, _body(fields, model))
        return await self.score_request(request, engines, lora)

    async def score_tokens(
        self,
        tokens: Sequence[int] | TokenIds,
        model: str,
        engines: Sequence[str] | None = None,
        lora: str | None = None,
        cache_salt: str | None = None,
    ) -> Scores:
        """Return the scores of token ids, as the engine would see them; no tokenizer is needed.
        Raises as `score_prompt` does."""
        await self._follow_events()
        served = served_model(self.fleet, model, lora)
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
        lookup = await self.matcher.look_up(served, Tokenized([ids]), cache_salt)
        return scores_of(self.fleet, self.matcher, served, lookup, engines)

    async def score_request(
        self, body: Body, engines: Sequence[str] | None = None, lora: str | None = None
    ) -> Scores:
        """Return the scores of a parsed request; several prompts are added up. Prompts on their way
        to an engine do not count. Raises as `score_prompt` does."""
        await self._follow_events()
        served = served_model(self.fleet, body.model or self.fleet.sole_model(), lora)
        return scores_of(
            self.fleet, self.matcher, served, await self.matcher.match(served, body), engines
        )

    async def _follow_events(self) -> None:
        """See that engines' KV events are followed. Who asks first, or meanwhile, waits for what
        replays bring."""
        if self.fleet.follows_events and not self._first_scores.locked():
            return
        async with self._first_scores:
            if not self.fleet.follows_events:
                await asyncio.sleep(0)  # a handler begins outside of a task (http/server.py)
                await self.fleet.follow_events()
                await self.caught_up(FIRST_SCORES_SECONDS)

    # what the fleet is given

    async def _load_prompts(self, source: ModelSource) -> PromptSource:
        load = partial(load_prompts, self.renderer, self.request_templates, source)
        return await load() if self.settings.scoring else OnDemandPrompts(load)


def _settings(engines: Iterable[str | EngineSettings]) -> ServeSettings:
    """Return settings that are checked as those of `inferway serve` are."""
    parsed = [parse_engine(e) if isinstance(e, str) else e for e in engines]
    return load_settings(None, {"engines": parsed})


def _body(fields: Mapping[str, Any], model: str) -> bytes:
    """Return the body as a client would send it: there is one place that checks requests."""
    try:
        return msgspec.json.encode({**fields, "model": model})
    except (TypeError, ValueError) as e:
        raise InvalidRequestError(f"body: it has no form in JSON: {e}") from e


def _state_dir(settings: ServeSettings, index: Index) -> StateDir:
    """Return the directory that settings name; a copy of an index has nothing to keep."""
    if settings.state_dir is None or not isinstance(index, MemoryIndex):
        return StateDir(None, lambda: iter(()))
    return StateDir(Path(settings.state_dir), index.links)


async def _start_helper(templates: RequestTemplates) -> None:
    try:
        await templates.start()
    except SandboxError as e:
        raise ConfigError(f"trust_request_chat_template: {e}") from e


async def _parsed(parse: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
    if len(body) <= MAX_BYTES_ON_LOOP:
        return parse(body)
    return await asyncio.to_thread(parse, body)


def next_turn(call: Callable[[], None]) -> None:
    """Call it in the next turn of the event loop."""
    asyncio.get_running_loop().call_soon(call)
