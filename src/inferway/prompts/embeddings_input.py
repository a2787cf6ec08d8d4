"""An embeddings body -> the completion or chats whose prompts vLLM makes of it.

vLLM renders both with the code that it has for chats and completions (entrypoints/pooling/base/
io_processor.py). What differs is that nothing is generated, so that a chat ends without the start
of an answer unless the body wants one, and that nothing of the context is left for an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from inferway.model import TokenIds
from inferway.openai_api.lenient import check_messages
from inferway.openai_api.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    PromptBody,
)
from inferway.prompts.scoring_input import left

MAX_CHATS = 256  # of one request; as of a completion's prompts


def as_prompts(body: EmbeddingsRequest) -> Sequence[PromptBody]:
    """Return bodies that have the same prompts, in order. Raises RenderError for what is left to
    the engine, InvalidRequestError for messages that it refuses."""
    if body.input is not None and body.messages is not None:
        raise left("input beside messages: which of them counts, the engine says")
    if body.padding == "max_length":
        raise left("padding: the engine fills the prompt up")
    given = body.given
    items: list[Any] = [given] if isinstance(given, str) else given
    types = {*map(type, items)}
    inner = {*map(type, chain.from_iterable(items))} if types == {list} else set()
    try:
        if types in ({str}, {int}) or inner == {int}:
            return [_as(body, CompletionRequest, prompt=given)]
        if types == {dict}:
            return [_chat(body, items)]
        if inner == {dict} and len(items) <= MAX_CHATS:
            return [_chat(body, each) for each in items]
    except msgspec.ValidationError as e:
        raise left(str(e)) from e
    raise left("input: neither texts, token ids nor chats")


def _chat(body: EmbeddingsRequest, messages: list[Any]) -> PromptBody:
    check_messages(messages)
    return _as(
        body,
        ChatRequest,
        messages=messages,
        add_generation_prompt=body.add_generation_prompt or False,
        continue_final_message=body.continue_final_message,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _as(body: EmbeddingsRequest, kind: type[Any], **fields: Any) -> PromptBody:
    """Raises ValidationError for a field of another type: an engine may read it nevertheless."""
    side = body.truncation_side
    alike = {
        "model": body.model,
        "add_special_tokens": body.add_special_tokens,
        "truncation_side": side,
        "truncate_prompt_tokens": body.truncate_prompt_tokens if side else None,
        "max_tokens": 0,
    }
    made: PromptBody = msgspec.convert({**alike, **fields}, kind)
    return made


def check_uncut(body: EmbeddingsRequest, prompts: Sequence[TokenIds]) -> None:
    """Raise RenderError if a prompt is cut at no side that the body names: vLLM cuts those of
    pooling models to the right, and keeps the special tokens at their ends."""
    keep = body.truncate_prompt_tokens
    if keep is None or body.truncation_side is not None:
        return
    if type(keep) is not int or 0 <= keep < max(map(len, prompts)):
        raise left("truncate_prompt_tokens: which tokens are kept, the engine says")
