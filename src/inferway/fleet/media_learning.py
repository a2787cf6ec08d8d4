"""Asks engines what they make of pictures, for models whose rule is not known here
(prompts/media/learned.py). A model is asked about one size at a time, with a blank picture."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from inferway.errors import RenderError, RequestError, UpstreamError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_token_ids import RENDER_SECONDS
from inferway.model import TokenIds
from inferway.openai_api.requests import CHAT, ChatRequest
from inferway.prompts.media.learned import question
from inferway.prompts.media.rule import Span
from inferway.prompts.remote_render_cache import as_ids
from inferway.prompts.served import LocalPrompts, ModelSource
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.remote")

JsonObject = dict[str, Any]

PAUSE_SECONDS = 60.0  # after an engine did not say it


class _Place(msgspec.Struct):
    offset: int
    length: int


class _MediaFeatures(msgspec.Struct):
    mm_placeholders: dict[str, list[_Place]]


class _RenderedChat(msgspec.Struct):
    token_ids: list[int]
    features: _MediaFeatures | None = None


_RENDERED_CHAT = msgspec.json.Decoder(_RenderedChat)


class Asker(Protocol):
    """The way to engines (remote_prompts.RemoteRenderers)."""

    client: EngineClient
    engines: Sequence[Engine]
    names: Callable[[Engine], Mapping[str, str]]  # by the key of a model's source

    def spawn(self, work: Coroutine[Any, Any, None], /) -> object:
        """Run a task beside the requests."""


class MediaLearning:
    """Teaches one model's rule for pictures."""

    def __init__(self, asker: Asker, source: ModelSource) -> None:
        self._asker = asker
        self._model, self._key = source.model, source.key
        self._is_asking = False
        self._not_before = 0.0

    def learn(self, local: LocalPrompts) -> None:
        """Have an engine asked for what chats have wanted, unless one is being asked."""
        if self._is_asking or local.media.learned.next_question() is None:
            return
        if asyncio.get_running_loop().time() >= self._not_before:
            self._is_asking = True
            self._asker.spawn(self._ask_all(local))

    async def _ask_all(self, local: LocalPrompts) -> None:
        try:
            while await self._ask(local):
                pass
        finally:
            self._is_asking = False

    async def _ask(self, local: LocalPrompts) -> bool:
        """Ask one question. Return whether another one may follow."""
        asked, engines = local.media.learned.next_question(), self._engines()
        if asked is None or not engines:
            return False
        size, count = asked
        messages = await asyncio.to_thread(question, size, count)
        for engine, name in engines:
            chat = ChatRequest(model=name, messages=messages)
            try:
                plain = await local.before_expansion(chat)
                rendered, spans = await self._rendered(engine, name, messages)
            except (UpstreamError, RenderError, RequestError) as e:
                log.debug("engine %s does not tell the tokens of a picture: %s", engine.name, e)
                continue
            why = local.media.learned.teach(size, plain, rendered, spans)
            if why is not None:
                log.warning(
                    "model %r: chats are known up to their first picture: no rule for its pictures"
                    " can be learned, because %s",
                    self._model,
                    why,
                )
            return why is None
        self._not_before = asyncio.get_running_loop().time() + PAUSE_SECONDS
        return False

    def _engines(self) -> list[tuple[Engine, str]]:
        """Return the engines that serve the model, and the names that they know it by."""
        named = [(each, self._asker.names(each).get(self._key)) for each in self._asker.engines]
        return [(engine, name) for engine, name in named if name is not None and engine.healthy]

    async def _rendered(
        self, engine: Engine, model: str, messages: Sequence[JsonObject]
    ) -> tuple[TokenIds, list[Span]]:
        """Return the engine's tokens of the chat, and the places of its pictures. Raises
        UpstreamError."""
        body = msgspec.json.encode(
            {"model": model, "messages": messages, "mm_payload": "none", "max_tokens": 1}
        )
        path = f"{CHAT}/render"
        status, raw = await self._asker.client.post(
            engine.url, path, body, engine.headers, RENDER_SECONDS
        )
        if status != 200:
            raise UpstreamError(f"{path} answered {status}")
        try:
            found = await asyncio.to_thread(_RENDERED_CHAT.decode, raw)
        except UNREADABLE as e:
            raise UpstreamError(f"{path}: its answer cannot be read") from e
        places = {} if found.features is None else found.features.mm_placeholders
        spans = [Span(each.offset, each.length) for each in places.get("image", ())]
        if sum(map(len, places.values())) != len(spans) or not spans:
            raise UpstreamError(f"{path}: no places of pictures in its answer")
        return as_ids(found.token_ids), spans
