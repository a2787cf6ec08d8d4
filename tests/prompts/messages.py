"""What we make of a body of messages with a template alone, as a model's prompts do with more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferway.errors import InferwayError, TemplateError
from inferway.openai_api.requests import ChatRequest, parse_messages
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.chat.conversation import chat_input
from inferway.prompts.chat.messages_input import MessageRules, as_chat


def text_of(chat: ChatRequest, template: ChatTemplate, tokens: Mapping[str, str]) -> str:
    """Raises InferwayError."""
    return template.render(chat_input(chat, template, special_tokens=tokens))


def found_in(template: ChatTemplate, tokens: Mapping[str, str]) -> tuple[bool | None, str]:
    """Whether system messages are merged, and the effort of no thinking."""

    def written(chat: ChatRequest) -> str:
        try:
            return text_of(chat, template, tokens)
        except InferwayError as e:
            raise TemplateError(str(e)) from e

    rules = MessageRules([template], written)
    return template.refuses_inline_system, rules.find_no_thinking_effort()


def rendered(
    fields: dict[str, Any],
    template: ChatTemplate,
    tokens: Mapping[str, str],
    found: tuple[bool | None, str] | None = None,
) -> str | None:
    """The prompt, or None if there is none."""
    merge, effort = found or found_in(template, tokens)
    try:
        chat = as_chat(
            parse_messages(msgspec.json.encode(fields)),
            merge_inline_system=merge is True,
            no_thinking_effort=effort,
        )
        return text_of(chat, template, tokens)
    except InferwayError:
        return None
