"""A model that an engine serves -> how its requests become token ids: at once, or, where scoring is
switched off, when somebody asks for tokens. Hardly anybody does, and a tokenizer takes 50 MiB."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from inferway.errors import InferwayError, RenderError, crash_report, panic_as_error
from inferway.model import ContextLengths, Reason, Tokenized
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.prompts.chat.helper_templates import RequestTemplates
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.prompts.served import LocalPrompts, ModelSource, NoPrompts, PromptSource
from inferway.prompts.version_rules import VersionRules

log = logging.getLogger("inferway")


async def load_prompts(
    renderer: Renderer, request_templates: RequestTemplates | None, source: ModelSource
) -> PromptSource:
    """Load the model's tokenizer and template. Returns NoPrompts with the reason if they cannot be
    had; the model's requests are then routed by load only."""
    name, root = source.model, source.root
    request = GetOrCreateTokenizerKeyRequest(
        root,
        token=os.environ.get("HF_TOKEN") or None,
        follows_links=source.flags.tokenizer is not None,
    )
    try:
        key = await renderer.get_or_create_tokenizer_key_async(request)
        prompts = ModelPrompts(
            renderer,
            key,
            flags=source.flags,
            request_templates=request_templates,
        )
    except BaseException as raised:  # whatever it is: it is this model's, and others are served
        e = panic_as_error(raised)
        if not isinstance(e, InferwayError):
            log.error("the prompts of model %r could not be set up: %s", name, crash_report(e))
        reason = Reason(e.reason) if isinstance(e, RenderError) else Reason.NO_TOKENIZER
        if reason is Reason.BAD_TEMPLATE:
            return NoPrompts(reason, f"model {name!r}: {e}")
        cure = f"give --tokenizer {name}=PATH"
        return NoPrompts(reason, f"model {name!r}: no tokenizer from {root!r}: {e}; {cure}")
    log.info(
        "model %s has its tokenizer from %s, and the encoder %s (%s)",
        name,
        root,
        *prompts.encoder,
    )
    return prompts


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
