"""A model's prompts where scoring is switched off: hardly anybody asks for tokens then, and a
tokenizer takes 50 MiB. It is loaded when somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inferway.model import ContextLengths, Reason, Tokenized
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.prompts.served import LocalPrompts, NoPrompts, PromptSource
from inferway.prompts.version_rules import VersionRules

_NOT_YET = NoPrompts(Reason.TOKENIZER_LOADING, "scoring is switched off: no tokenizer is loaded")


class OnDemandPrompts:
    """A PromptSource. One that could not be had is tried again with the next request."""

    def __init__(self, load: Callable[[], Awaitable[PromptSource]]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self._loaded: PromptSource = _NOT_YET

    def within(self, contexts: ContextLengths, rules: VersionRules) -> OnDemandPrompts:
        async def load() -> PromptSource:
            return (await self._load()).within(contexts, rules)

        return OnDemandPrompts(load)

    @property
    def local(self) -> LocalPrompts | None:
        return self._loaded.local

    def rendered_text(self, body: ChatRequest) -> str | None:
        return self._loaded.rendered_text(body)

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        """Raises RenderError."""
        await self._load_once()
        return await self._loaded.chat_of(body)

    async def tokenize(self, body: PromptBody) -> Tokenized:
        """Raises RequestError, or RenderError for reasons of ours."""
        await self._load_once()
        return await self._loaded.tokenize(body)

    async def _load_once(self) -> None:
        if isinstance(self._loaded, NoPrompts):
            async with self._loading:
                if isinstance(self._loaded, NoPrompts):
                    self._loaded = await self._load()
