"""Requests to the renderer, in the names of transformers, and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.errors import InvalidRequestError
from inferway.model import Offsets, TokenIds
from inferway.prompts.chat.chat_template import ChatInput, Message
from inferway.prompts.tokenizer.token_rows import TruncationSide


@dataclass(frozen=True, slots=True)
class GetOrCreateTokenizerKeyRequest:
    """`model`: a hub id, a model's directory, or the path of its tokenizer.json."""

    model: str
    is_local: bool = False
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    download_dir: str | None = None
    follows_links: bool = False  # out of the directory, because the operator has named it

    @property
    def key(self) -> str:
        return f"{self.model}:{self.revision or 'main'}:{self.is_local}"


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """Options for encoding a text.

    `truncation_side` is where tokens are dropped. None is on the left, too, but special tokens
    that were added stay; with a side, they are tokens like others. A text of more than
    `max_chars` characters is refused; or cut on that side before anything else, if there is one.
    """

    add_special_tokens: bool = False  # the template writes them
    truncate_prompt_tokens: int | None = None  # keep so many
    truncation_side: TruncationSide | None = None
    max_chars: int | None = None
    return_offsets_mapping: bool = False


class RenderChatRequest(Encoding, frozen=True):
    """`conversation` is what the template sees; `chat_template` is a template's name, or Jinja.

    Jinja that is given here is compiled in this process. Never give one that came from outside
    (RequestTemplates is for those).
    """

    key: str
    conversation: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template: str | None = None
    return_assistant_tokens_mask: bool = False
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None  # None: true, unless the final message is continued
    chat_template_kwargs: Mapping[str, Any] | None = None


class RenderRequest(msgspec.Struct, frozen=True):
    """A text to tokenize as it is; the other fields are those of an Encoding."""

    key: str
    text: str
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncation_side: TruncationSide | None = None
    max_chars: int | None = None
    return_offsets_mapping: bool = False


class RenderResult(msgspec.Struct, frozen=True):
    """`offset_mapping` is in characters of `text`; it and `assistant_mask` only if asked for."""

    input_ids: TokenIds
    text: str
    offset_mapping: Offsets | None = None
    assistant_mask: NDArray[np.uint8] | None = None


def check_chat(request: RenderChatRequest) -> None:
    if not request.conversation:
        raise InvalidRequestError("conversation: must not be empty", param="conversation")
    if request.return_assistant_tokens_mask and request.continue_final_message:
        raise InvalidRequestError(
            "return_assistant_tokens_mask: cannot be combined with continue_final_message",
            param="return_assistant_tokens_mask",
        )
    check_truncation(request.truncate_prompt_tokens)


def check_truncation(truncate_prompt_tokens: int | None) -> None:
    if truncate_prompt_tokens is not None and truncate_prompt_tokens < 0:
        raise InvalidRequestError(
            f"truncate_prompt_tokens: must not be negative, got {truncate_prompt_tokens}",
            param="truncate_prompt_tokens",
        )


def seen_by_template(request: RenderChatRequest, special_tokens: Mapping[str, str]) -> ChatInput:
    """Return the variables of the template. Variables of the request win over special tokens."""
    add_generation_prompt = request.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not request.continue_final_message
    return ChatInput(
        messages=request.conversation,
        tools=request.tools,
        documents=request.documents,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=request.continue_final_message,
        variables={**special_tokens, **(request.chat_template_kwargs or {})},
    )
