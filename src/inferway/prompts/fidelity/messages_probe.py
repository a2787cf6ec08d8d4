"""Do we make of messages the chat that an engine makes of them? No engine tells the ids of their
prompts, but vLLM counts their tokens: POST /v1/messages/count_tokens. Pure.

Versions of vLLM differ in what they make of a block, and an engine may have been started with
another effort for no thinking (--anthropic-disabled-thinking-effort). So each of these bodies has
parts whose texts would be missed, or stand twice, in another count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferway.errors import RenderError, RequestError
from inferway.model import Reason
from inferway.openai_api.requests import (
    CountsMessages,
    CountTokensRequest,
    parse_count_tokens,
)

JsonObject = dict[str, Any]


_BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=0f1e2;"}
_SYSTEM = {"type": "text", "text": "You are terse, and read files before you change them."}
_REMINDER = {"role": "system", "content": "One file has been opened since: it is b.py."}
_ASKED = {"role": "user", "content": [{"type": "text", "text": "Why does a.py fail?"}]}
_READS = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "The file must be read first.", "signature": "c2ln"},
        {"type": "text", "text": "I read it."},
        {"type": "tool_use", "id": "toolu_01ab", "name": "read", "input": {"path": "a.py"}},
    ],
}
_FILE = {
    "role": "user",
    "content": [
        {
            "type": "tool_result",
            "tool_use_id": "toolu_01ab",
            "content": [{"type": "text", "text": "def f():"}, {"type": "text", "text": "  1/0"}],
        },
        {"type": "text", "text": "Be quick."},
    ],
}
_READ = {
    "name": "read",
    "description": "Reads one file of the project.",
    "input_schema": {"properties": {"path": {"type": "string"}}, "required": ["path"]},
}

BODIES: tuple[JsonObject, ...] = (
    {"messages": [_ASKED], "system": [_BILLING, _SYSTEM]},
    {
        "messages": [_ASKED, _READS, _FILE],
        "system": [_SYSTEM],
        "tools": [_READ],
        "tool_choice": {"type": "none"},  # another choice needs flags that not every engine has
    },
    {"messages": [_ASKED, _REMINDER, _ASKED], "system": [_SYSTEM]},
    {"messages": [_ASKED], "thinking": {"type": "disabled"}},
    {"messages": [_ASKED], "output_config": {"effort": "high"}},
)


async def count(prompts: CountsMessages, body: CountTokensRequest) -> int | None:
    """Return how many tokens the prompt has; None if it is not known to its end, or cannot be
    had."""
    try:
        tokenized = await prompts.tokenize(await prompts.chat_of(body))
    except (RequestError, RenderError):
        return None
    return len(tokenized.token_ids[0]) if tokenized.reason is Reason.KV_AWARE else None


async def our_count(prompts: CountsMessages, body: Mapping[str, Any]) -> int | None:
    """The same for a body that is sent to an engine."""
    return await count(prompts, parse_count_tokens(msgspec.json.encode(body)))
