"""A `/v1/messages` body -> the chat that vLLM 0.32 makes of it.

Source: entrypoints/anthropic/serving.py (`to_chat_completion_request`), protocol.py (what a block
may be). The chat is rendered as any other. Two things vLLM finds out of the model's template, and
is given here: whether a system message between the others must be merged into the first one, and
which effort stands for no thinking.

Blocks of a user's or an assistant's message become, in their order:

text, image                 its content; one text alone is a string
thinking                    `reasoning`, joined
tool_use                    `tool_calls`, with arguments as objects, which they are to templates
tool_result, of a user      messages before it: the tool's text, its images, its references to tools
redacted_thinking,
tool_reference              nothing

What engines refuse, such as documents, is not read further: RenderError, and an engine says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from inferway.errors import RenderError
from inferway.model import Reason
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, MessagesRequest
from inferway.prompts.chat.conversation import BILLING_HEADER

JsonObject = dict[str, Any]

_BLOCKS = frozenset(
    {
        *("text", "image", "tool_use", "tool_result", "tool_reference", "thinking"),
        "redacted_thinking",
    }
)
_TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})
_CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": "required"}


def has_inline_system(body: CountTokensRequest) -> bool:
    """Return whether a system message stands among the others."""
    return any(message.get("role") == "system" for message in body.messages)


def disables_thinking(body: CountTokensRequest) -> bool:
    """Return whether the request asks for an answer without thinking."""
    return body.thinking is not None and body.thinking.get("type") == "disabled"


def as_chat(
    body: CountTokensRequest, *, merge_inline_system: bool, no_thinking_effort: str
) -> ChatRequest:
    """Return the chat. `no_thinking_effort` is the reasoning effort of a request that disables
    thinking. Raises RenderError for what engines refuse."""
    messages = _system(body, merge=merge_inline_system)
    for i, message in enumerate(body.messages):
        where = f"messages[{i}]"
        if message.get("role") != "system":
            _add(message, messages, where)
        elif not merge_inline_system:
            text = _system_text(message.get("content"), f"{where}.content")
            if text:
                messages.append({"role": "system", "content": text})
    if not messages:
        raise _unknown("messages")
    tools = _tools(body)
    chat = ChatRequest(
        model=body.model,
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice, tools),
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=no_thinking_effort if disables_thinking(body) else _effort(body),
    )
    if not isinstance(body, MessagesRequest):
        return chat
    return msgspec.structs.replace(
        chat,
        kv_transfer_params=body.kv_transfer_params,
        cache_salt=body.cache_salt,
        max_tokens=body.max_tokens,
        stream=body.stream,
        vllm_xargs=body.vllm_xargs,
    )


def _system(body: CountTokensRequest, *, merge: bool) -> list[JsonObject]:
    """The system message that comes first, if there is one. Its text is joined by nothing; if it
    is given as a string, it is not looked at (but the chat's rendering drops its first line if
    that is a billing header)."""
    given = body.system
    text = "".join(_texts(given, "system")) if isinstance(given, list) else given or ""
    if merge:
        for i, message in enumerate(body.messages):
            if message.get("role") == "system":
                text += _system_text(message.get("content"), f"messages[{i}].content")
    return [{"role": "system", "content": text}] if text else []


def _system_text(content: object, where: str) -> str:
    """The text of a system message that stands among the others."""
    if isinstance(content, str):
        return "" if content.startswith(BILLING_HEADER) else content
    return "".join(_texts(content, where, _BLOCKS | _TOOL_CHANGES))


def _texts(content: object, where: str, allowed: frozenset[str] = _BLOCKS) -> Iterator[str]:
    """Of blocks of a system prompt. Claude Code's billing header changes with every request."""
    for place, block in _blocks(content, where, allowed):
        if block["type"] == "text":
            text = _text(block, "text", place)
            if not text.startswith(BILLING_HEADER):
                yield text


def _blocks(
    content: object, where: str, allowed: frozenset[str] = _BLOCKS
) -> Iterator[tuple[str, JsonObject]]:
    if not isinstance(content, list):
        raise _unknown(where)
    for j, block in enumerate(content):
        place = f"{where}[{j}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str) or kind not in allowed:
            raise _unknown(f"{place}.type")
        yield place, block


def _add(message: JsonObject, messages: list[JsonObject], where: str) -> None:
    """Add a user's or an assistant's message, and before it what its tools have answered."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise _unknown(f"{where}.role")
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    said = _Said()
    for place, block in _blocks(content, f"{where}.content"):
        if block["type"] == "tool_result" and role == "user":
            messages += _tool_messages(block, place)
        else:
            said.take(block, place)
    if said.parts or role != "user":
        messages.append(said.message(role))


class _Said:
    """What is said in one message."""

    __slots__ = ("calls", "parts", "thoughts")

    def __init__(self) -> None:
        self.parts: list[JsonObject] = []
        self.calls: list[JsonObject] = []
        self.thoughts: list[str] = []

    def take(self, block: JsonObject, where: str) -> None:
        match block["type"]:
            case "text":
                text = _text(block, "text", where)
                if text:
                    self.parts.append({"type": "text", "text": text})
            case "image" if block.get("source"):
                self.parts.append(_image(block["source"], f"{where}.source"))
            case "thinking" if block.get("thinking") is not None:
                self.thoughts.append(_text(block, "thinking", where))
            case "tool_use":
                self.calls.append(_call(block, where))
            case "tool_result":  # of an assistant
                text = f"Tool result: {_repeated(block, where)}"
                self.parts.append({"type": "text", "text": text})

    def message(self, role: str) -> JsonObject:
        made: JsonObject = {"role": role}
        if self.thoughts:
            made["reasoning"] = "".join(self.thoughts)
        if self.calls:
            made["tool_calls"] = self.calls
        if self.parts:
            parts = self.parts
            is_text = len(parts) == 1 and parts[0]["type"] == "text"
            made["content"] = parts[0]["text"] if is_text else parts
        return made


def _call(block: JsonObject, where: str) -> JsonObject:
    """vLLM names a call by the clock if it has no id."""
    arguments = block.get("input")
    if arguments is not None and not isinstance(arguments, dict):
        raise _unknown(f"{where}.input")
    id = _text(block, "id", where)
    if not id:
        raise _unknown(f"{where}.id")
    function = {"name": _text(block, "name", where), "arguments": arguments or {}}
    return {"id": id, "type": "function", "function": function}


def _repeated(block: JsonObject, where: str) -> str:
    """What an assistant says that a tool has answered: text, or Python's form of the blocks."""
    content = block.get("content")
    if content is not None and not isinstance(content, str | list):
        raise _unknown(f"{where}.content")
    return str(content) if content else ""


def _tool_messages(block: JsonObject, where: str) -> Iterator[JsonObject]:
    """What a tool has answered, as its user tells: items that are no text, image or reference are
    dropped, as engines do."""
    id, content = _text(block, "tool_use_id", where), block.get("content")
    texts, images, references = [], [], []
    if isinstance(content, str):
        texts.append(content)
    elif content is not None:
        if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
            raise _unknown(f"{where}.content")
        for k, item in enumerate(content):
            place = f"{where}.content[{k}]"
            match item.get("type"):
                case "text":
                    texts.append(_given_text(item, "text", place))
                case "image":
                    images.append(_image(item.get("source", {}), f"{place}.source"))
                case "tool_reference" if item.get("tool_name") or item.get("name"):
                    name = item.get("tool_name") or item.get("name")
                    references.append({"type": "tool_reference", "name": name})
    yield {"role": "tool", "tool_call_id": id, "content": "\n".join(texts)}
    images = [image for image in images if image["image_url"]["url"]]
    if images:
        yield {"role": "user", "content": images}
    if references:
        yield {"role": "tool", "tool_call_id": id, "content": references}


def _image(source: object, where: str) -> JsonObject:
    """As a part of a chat's content: what is not at a URL is made one."""
    if not isinstance(source, dict):
        raise _unknown(where)
    if source.get("type") == "url":
        url = _given_text(source, "url", where)
    else:
        media_type, data = source.get("media_type", "image/jpeg"), source.get("data", "")
        url = f"data:{media_type};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tools(body: CountTokensRequest) -> list[JsonObject] | None:
    """The tools at the end of the conversation, which may have added some and removed others."""
    given = body.tools
    changes = [
        (place, block)
        for i, message in enumerate(body.messages)
        if message.get("role") == "system" and isinstance(message.get("content"), list)
        for place, block in _blocks(
            message["content"], f"messages[{i}].content", _BLOCKS | _TOOL_CHANGES
        )
        if block["type"] in _TOOL_CHANGES
    ]
    if changes:
        given = _changed(given or [], changes)
    elif given is None:
        return None
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(given)]


def _changed(given: list[JsonObject], changes: list[tuple[str, JsonObject]]) -> list[JsonObject]:
    tools = {_name(tool, f"tools[{i}]"): tool for i, tool in enumerate(given)}
    removed: set[str] = set()
    for place, block in changes:
        change = block.get("tool")
        if not isinstance(change, dict):
            raise _unknown(f"{place}.tool")
        adds = block["type"] == "tool_addition"
        match change.get("type"):
            case "tool_definition" if adds and isinstance(change.get("definition"), dict):
                name = _name(change["definition"], f"{place}.tool.definition")
                tools[name] = change["definition"]
            case "tool_reference":
                name = _name(change, f"{place}.tool")
                if name not in tools:
                    raise _unknown(f"{place}.tool.name")
                if adds:
                    tools[name] = {**tools[name], "defer_loading": None}
            case _:
                raise _unknown(f"{place}.tool.type")
        if adds:
            removed.discard(name)
        else:
            removed.add(name)
    return [tool for name, tool in tools.items() if name not in removed]


def _tool(tool: JsonObject, where: str) -> JsonObject:
    """As a chat has it. A schema without a type is an object's."""
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):  # of a tool of Anthropic's own, for example
        raise _unknown(f"{where}.input_schema")
    description = tool.get("description")
    if description is not None and not isinstance(description, str):
        raise _unknown(f"{where}.description")
    return {
        "type": "function",
        "function": {
            "name": _name(tool, where),
            "description": description,
            "parameters": schema if "type" in schema else {**schema, "type": "object"},
            "strict": tool.get("strict"),
            "defer_loading": tool.get("defer_loading"),
        },
    }


def _tool_choice(choice: JsonObject | None, tools: list[JsonObject] | None) -> str | None:
    """As far as it decides the prompt: a tool that is named is one that is required."""
    if choice is None:
        return None if tools is None else "auto"
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise _unknown("tool_choice.type")
    return _CHOICES[kind]


def _effort(body: CountTokensRequest) -> str | None:
    effort = (body.output_config or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise _unknown("output_config.effort")
    return effort


def _name(tool: JsonObject, where: str) -> str:
    return _given_text(tool, "name", where, required=True)


def _text(fields: JsonObject, name: str, where: str) -> str:
    """Empty if it is absent or null."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _unknown(f"{where}.{name}")
    return value


def _given_text(fields: JsonObject, name: str, where: str, *, required: bool = False) -> str:
    """Empty if it is absent, and that is allowed; not null."""
    value = fields.get(name, None if required else "")
    if not isinstance(value, str):
        raise _unknown(f"{where}.{name}")
    return value


def _unknown(where: str) -> RenderError:
    return RenderError(f"{where}: engines refuse it", reason=Reason.MESSAGE_BLOCKS)
