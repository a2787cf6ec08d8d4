"""A real model's template and tokenizer, for an engine that simulates the rest."""

from __future__ import annotations

from collections.abc import Sequence

from inferway.config import ModelSettings
from inferway.errors import InvalidRequestError, RenderError
from inferway.model import Reason, TokenIds
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.prompts.chat.conversation import NO_FLAGS, brings_template
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.renderer import Renderer


class RenderedModel:
    """The model loaded under `key`; `max_model_len` is the engine's, in tokens, `flags` are those
    of its flags that shape prompts. Raises RenderError if the model does not say which token ends
    a reply, or a template cannot be had."""

    def __init__(
        self, renderer: Renderer, key: str, max_model_len: int, flags: ModelSettings = NO_FLAGS
    ) -> None:
        self._prompts = ModelPrompts(renderer, key, max_model_len, flags=flags, max_prompts=None)
        self._tokenizer = renderer.loaded(key).tokenizer
        self.eos_token_id = self._eos()

    async def tokenize(self, body: PromptBody) -> list[TokenIds]:
        if body.chat is not None and brings_template(body.chat):
            raise InvalidRequestError(
                "Chat template is passed with request, but --trust-request-chat-template is not "
                "set. Refused request with untrusted chat template."
            )
        tokenized = await self._prompts.tokenize(body)
        if tokenized.reason is not Reason.KV_AWARE:
            raise RenderError("images and their like are not simulated", reason=tokenized.reason)
        return tokenized.token_ids

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return await self._prompts.chat_of(body)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).tolist()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _eos(self) -> int:
        text = self._tokenizer.special_tokens.get("eos_token")
        ids = [] if text is None else self.encode(text)
        if len(ids) != 1:
            raise RenderError(
                "tokenizer_config.json: eos_token is missing or not one token",
                reason=Reason.BAD_TOKENIZER,
            )
        return ids[0]
