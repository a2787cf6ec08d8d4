"""A request's body -> the token ids of its prompts, for one model: what the director calls."""

from __future__ import annotations

import numpy as np

from inferway.errors import InvalidRequestError, PromptTooLongError, RenderError
from inferway.model import Reason, TokenIds, Tokenized
from inferway.openai_api.requests import Body, ChatRequest, CompletionRequest
from inferway.prompts.conversation import chat_render_request
from inferway.prompts.renderer import Renderer, RenderRequest, RenderResult


class ModelPrompts:
    """One model's rules: its tokenizer and template (`key` of `renderer`), its context length
    in tokens (None: unknown, then no prompt is too long)."""

    def __init__(
        self,
        renderer: Renderer,
        key: str,
        max_model_len: int | None = None,
        *,
        trust_request_templates: bool = False,
    ) -> None:
        self._renderer = renderer
        self._key = key
        self._model = renderer.loaded(key)
        self.max_model_len = max_model_len
        self._trust_request_templates = trust_request_templates

    @property
    def encoder(self) -> str:
        """ "fastokens" or "tokenizers"; `why` says how it was chosen."""
        return self._model.tokenizer.encoder

    @property
    def why(self) -> str:
        return self._model.tokenizer.why

    async def tokenize(self, body: Body) -> Tokenized:
        """The client's fault is a RequestError that names the
        field; what we cannot do, although the engine may, is a RenderError."""
        if body.truncate_prompt_tokens is not None and body.truncation_side == "right":
            raise RenderError("truncation_side: right is not followed", reason=Reason.OUR_FAULT)
        if isinstance(body, ChatRequest):
            return Tokenized([(await self.render_chat(body)).input_ids])
        self._check_max_tokens("max_tokens", body.max_tokens)
        keep_last = self._kept_tokens(body.truncate_prompt_tokens, body.max_tokens)
        return Tokenized(
            [await self._tokenize_one(body, prompt, keep_last) for prompt in body.prompts]
        )

    async def render_chat(self, body: ChatRequest) -> RenderResult:
        """The chat as text and ids. Raises as `tokenize` does."""
        if self._model.own_renderer is not None:
            raise RenderError(
                f"chats of this model are rendered by vLLM's own code ({self._model.own_renderer})",
                reason=Reason.OWN_RENDERER,
            )
        budget = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        max_tokens = getattr(body, budget)
        self._check_max_tokens(budget, max_tokens)
        template = self._model.template(with_tools=body.tools is not None)
        request = chat_render_request(
            body,
            self._key,
            template,
            truncate_prompt_tokens=self._kept_tokens(body.truncate_prompt_tokens, max_tokens),
            trust_request_template=self._trust_request_templates,
        )
        result = await self._renderer.render_chat_async(request)
        self._check_length(len(result.input_ids), "messages")
        return result

    def rendered_text(self, body: ChatRequest) -> str:
        """The chat as its template writes it, for people to read. Raises as `tokenize` does."""
        template = self._model.template(with_tools=body.tools is not None)
        return self._renderer.render_chat(chat_render_request(body, self._key, template)).text

    async def _tokenize_one(
        self, body: CompletionRequest, prompt: str | list[int], keep_last: int | None
    ) -> TokenIds:
        if isinstance(prompt, str):
            if keep_last is None:
                self._check_text_length(prompt)
            special = body.add_special_tokens is not False
            request = RenderRequest(self._key, prompt, special, keep_last)
            ids = (await self._renderer.render_async(request)).input_ids
        else:
            ids = _as_ids(prompt)
            if keep_last is not None:
                ids = ids[max(0, len(ids) - keep_last) :]
        self._check_length(len(ids), "prompt")
        return ids

    def _kept_tokens(
        self, truncate_prompt_tokens: int | None, max_tokens: int | None
    ) -> int | None:
        """vLLM: -1 keeps what the context holds, less one token if any are to be generated."""
        if truncate_prompt_tokens is None:
            return None
        limit = self.max_model_len
        if truncate_prompt_tokens < -1 or (limit is not None and truncate_prompt_tokens > limit):
            raise InvalidRequestError(
                f"truncate_prompt_tokens: got {truncate_prompt_tokens}, allowed is -1 to"
                f" {'the model length' if limit is None else limit}",
                param="truncate_prompt_tokens",
            )
        if truncate_prompt_tokens >= 0:
            return truncate_prompt_tokens
        if limit is None:
            raise RenderError(
                "truncate_prompt_tokens: -1 needs the model's context length, which is not known",
                reason=Reason.UNKNOWN_CONTEXT_LENGTH,
            )
        return limit - 1 if max_tokens else limit

    def _check_max_tokens(self, param: str, max_tokens: int | None) -> None:
        if self.max_model_len is not None and (max_tokens or 0) > self.max_model_len:
            raise InvalidRequestError(
                f"{param}: {max_tokens} is more than the model's context of"
                f" {self.max_model_len} tokens",
                param=param,
            )

    def _check_text_length(self, text: str) -> None:
        """Spares us the encoding of a text that cannot fit, whatever its tokens."""
        longest = self._model.tokenizer.max_chars_per_token
        if self.max_model_len is not None and len(text) > self.max_model_len * longest:
            raise PromptTooLongError(
                f"prompt: {len(text)} characters cannot fit the model's context of"
                f" {self.max_model_len} tokens",
                param="prompt",
            )

    def _check_length(self, num_tokens: int, param: str) -> None:
        """vLLM refuses empty prompts, and those that leave no room for one token more
        (v1/engine/input_processor.py)."""
        if num_tokens == 0:
            raise InvalidRequestError(f"{param}: the prompt has no tokens", param=param)
        if self.max_model_len is not None and num_tokens >= self.max_model_len:
            raise PromptTooLongError(
                f"{param}: {num_tokens} tokens and one of the answer do not fit the model's"
                f" context of {self.max_model_len} tokens",
                param=param,
            )


def _as_ids(prompt: list[int]) -> TokenIds:
    try:
        return np.array(prompt, dtype=np.uint32)
    except (OverflowError, TypeError, ValueError) as e:
        raise InvalidRequestError(
            "prompt: token ids must be integers from 0 to 4294967295", param="prompt"
        ) from e
