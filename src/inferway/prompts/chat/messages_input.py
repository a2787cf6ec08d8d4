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

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from inferway.errors import RenderError, TemplateError
from inferway.model import Reason
from inferway.openai_api.requests import (
    BILLING_HEADER,
    ChatRequest,
    CountTokensRequest,
)
from inferway.prompts.chat.chat_template import ChatTemplate

JsonObject = dict[str, Any]

_TOOL_CHANGES = ("tool_addition", "tool_removal")
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
    for message in body.messages:
        if message.get("role") != "system":
            _add(message, messages)
        elif not merge_inline_system:
            text = _system_text(message.get("content"))
            if text:
                messages.append({"role": "system", "content": text})
    if not messages:
        raise _unknown("empty list")
    tools = _tools(body)
    return ChatRequest(
        model=body.model,
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice, tools),
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=no_thinking_effort if disables_thinking(body) else _effort(body),
        **body.passed_on(),
    )


def with_written_arguments(chat: ChatRequest) -> ChatRequest:
    """Return the chat as an engine takes it from a client: arguments of calls are JSON."""
    messages = [
        {**message, "tool_calls": [_written(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in chat.messages
    ]
    return msgspec.structs.replace(chat, messages=messages)


def _written(call: JsonObject) -> JsonObject:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}


def _system(body: CountTokensRequest, *, merge: bool) -> list[JsonObject]:
    """The system message that comes first, if there is one. Its text is joined by nothing; if it
    is given as a string, it is not looked at (but the chat's rendering drops its first line if
    that is a billing header)."""
    given = body.system
    text = "".join(_texts(given, _BLOCKS)) if isinstance(given, list) else given or ""
    if merge:
        for message in body.messages:
            if message.get("role") == "system":
                text += _system_text(message.get("content"))
    return [{"role": "system", "content": text}] if text else []


def _system_text(content: object) -> str:
    """The text of a system message that stands among the others."""
    if isinstance(content, str):
        return "" if content.startswith(BILLING_HEADER) else content
    return "".join(_texts(content, _BLOCKS_AND_CHANGES))


def _texts(content: object, allowed: Collection[str]) -> Iterator[str]:
    """Of blocks of a system prompt. Claude Code's billing header changes with every request."""
    for block in _blocks(content):
        if _kind(block) not in allowed:
            raise _unknown("system.type")
        if block["type"] == "text":
            text = _text(block, "text")
            if not text.startswith(BILLING_HEADER):
                yield text


def _blocks(content: object) -> list[JsonObject]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise _unknown("content")
    return content


def _kind(block: JsonObject) -> str:
    return _text(block, "type")


def _add(message: JsonObject, messages: list[JsonObject]) -> None:
    """Add a user's or an assistant's message, and before it what its tools have answered."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise _unknown("role")
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    if not isinstance(content, list):
        raise _unknown("content")
    said, is_user = _Said(), role == "user"
    for block in content:
        kind = block.get("type") if type(block) is dict else None
        if kind == "tool_result" and is_user:
            messages += _tool_messages(block)
            continue
        take = _BLOCKS.get(kind) if type(kind) is str else None
        if take is None:
            raise _unknown("content.type")
        take(said, block)
    if said.parts or not is_user:
        messages.append(said.message(role))


class _Said:
    """What is said in one message."""

    __slots__ = ("calls", "parts", "thoughts")

    def __init__(self) -> None:
        self.parts: list[JsonObject] = []
        self.calls: list[JsonObject] = []
        self.thoughts: list[str] = []

    def message(self, role: str) -> JsonObject:
        made: JsonObject = {"role": role}
        if self.thoughts:
            made["reasoning"] = "".join(self.thoughts)
        if self.calls:
            made["tool_calls"] = self.calls
        parts = self.parts
        if parts:
            is_text = len(parts) == 1 and parts[0]["type"] == "text"
            made["content"] = parts[0]["text"] if is_text else parts
        return made

    def text(self, block: JsonObject) -> None:
        text = _text(block, "text")
        if text:
            self.parts.append({"type": "text", "text": text})

    def image(self, block: JsonObject) -> None:
        if block.get("source"):
            self.parts.append(_image(block["source"]))

    def thinking(self, block: JsonObject) -> None:
        if block.get("thinking") is not None:
            self.thoughts.append(_text(block, "thinking"))

    def call(self, block: JsonObject) -> None:
        """vLLM names a call by the clock if it has no id."""
        arguments, id = block.get("input"), _text(block, "id")
        if (arguments is not None and not isinstance(arguments, dict)) or not id:
            raise _unknown("tool_use")
        function = {"name": _text(block, "name"), "arguments": arguments or {}}
        self.calls.append({"id": id, "type": "function", "function": function})

    def repeat(self, block: JsonObject) -> None:
        """Add a tool's answer that an assistant repeats: text, or Python's form of blocks."""
        content = block.get("content")
        if content is not None and not isinstance(content, str):
            _blocks(content)
        self.parts.append({"type": "text", "text": f"Tool result: {content or ''}"})

    def nothing(self, block: JsonObject) -> None:
        """Leave out a block that templates do not see."""


_BLOCKS: Mapping[str, Callable[[_Said, JsonObject], None]] = {
    "text": _Said.text,
    "image": _Said.image,
    "thinking": _Said.thinking,
    "tool_use": _Said.call,
    "tool_result": _Said.repeat,
    "redacted_thinking": _Said.nothing,
    "tool_reference": _Said.nothing,
}
_BLOCKS_AND_CHANGES = frozenset({*_BLOCKS, *_TOOL_CHANGES})


def _tool_messages(block: JsonObject) -> Iterator[JsonObject]:
    """What a tool has answered, as its user tells: items that are no text, image or reference are
    dropped, as engines do."""
    id, content = _text(block, "tool_use_id"), block.get("content")
    if isinstance(content, str):
        yield {"role": "tool", "tool_call_id": id, "content": content}
        return
    texts, images, references = [], [], []
    for item in () if content is None else _blocks(content):
        match item.get("type"):
            case "text":
                texts.append(_given_text(item, "text"))
            case "image":
                images.append(_image(item.get("source", {})))
            case "tool_reference" if name := item.get("tool_name") or item.get("name"):
                references.append({"type": "tool_reference", "name": name})
    yield {"role": "tool", "tool_call_id": id, "content": "\n".join(texts)}
    images = [image for image in images if image["image_url"]["url"]]
    if images:
        yield {"role": "user", "content": images}
    if references:
        yield {"role": "tool", "tool_call_id": id, "content": references}


def _image(source: object) -> JsonObject:
    """As a part of a chat's content: what is not at a URL is made one."""
    if not isinstance(source, dict):
        raise _unknown("source")
    if source.get("type") == "url":
        url = _given_text(source, "url")
    else:
        media_type, data = source.get("media_type", "image/jpeg"), source.get("data", "")
        url = f"data:{media_type};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tools(body: CountTokensRequest) -> list[JsonObject] | None:
    """The tools at the end of the conversation, which may have added some and removed others."""
    given = body.tools
    changes = [
        block
        for message in body.messages
        if message.get("role") == "system" and isinstance(message.get("content"), list)
        for block in _blocks(message["content"])
        if block.get("type") in _TOOL_CHANGES
    ]
    if changes:
        given = _changed(given or [], changes)
    return None if given is None else [_tool(tool) for tool in given]


def _changed(given: list[JsonObject], changes: list[JsonObject]) -> list[JsonObject]:
    tools = {_name(tool): tool for tool in given}
    removed: set[str] = set()
    for block in changes:
        change = block.get("tool")
        if not isinstance(change, dict):
            raise _unknown("tool")
        adds = block["type"] == "tool_addition"
        match change.get("type"):
            case "tool_definition" if adds and isinstance(change.get("definition"), dict):
                name = _name(change["definition"])
                tools[name] = change["definition"]
            case "tool_reference" if (name := _name(change)) in tools:
                if adds:
                    tools[name] = {**tools[name], "defer_loading": None}
            case _:
                raise _unknown("tool")
        if adds:
            removed.discard(name)
        else:
            removed.add(name)
    return [tool for name, tool in tools.items() if name not in removed]


def _tool(tool: JsonObject) -> JsonObject:
    """As a chat has it. A schema without a type is an object's."""
    schema, description = tool.get("input_schema"), tool.get("description")
    if not isinstance(schema, dict):  # of a tool of Anthropic's own, for example
        raise _unknown("tools.input_schema")
    if description is not None and not isinstance(description, str):
        raise _unknown("tools.description")
    return {
        "type": "function",
        "function": {
            "name": _name(tool),
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
    found = _CHOICES.get(_text(choice, "type"))
    if found is None:
        raise _unknown("tool_choice.type")
    return found


def _effort(body: CountTokensRequest) -> str | None:
    effort = (body.output_config or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise _unknown("output_config.effort")
    return effort


def _name(tool: JsonObject) -> str:
    name = tool.get("name")
    if not isinstance(name, str):
        raise _unknown("tools.name")
    return name


def _text(fields: JsonObject, name: str) -> str:
    """Empty if it is absent or null."""
    value = fields.get(name)
    if type(value) is str:
        return value
    if value is None:
        return ""
    raise _unknown(name)


def _given_text(fields: JsonObject, name: str) -> str:
    """Empty if it is absent; not null."""
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise _unknown(name)
    return value


def _unknown(name: str) -> RenderError:
    return RenderError(f"messages: engines refuse this {name}", reason=Reason.MESSAGE_BLOCKS)


EFFORTS = ("low", "medium", "high", "xhigh", "max")

_HI = [{"role": "user", "content": "Hi"}]


class MessageRules:
    """The rules for messages of one model with its engines' flags. `templates` are those for chats
    without tools and with tools, none if the model has none; `render` writes a chat with them."""

    def __init__(
        self, templates: Sequence[ChatTemplate], render: Callable[[ChatRequest], str]
    ) -> None:
        self._templates = templates
        self._render = render
        self.no_thinking_effort: str | None = None  # once it is found out

    def merges_inline_system(self) -> bool:
        """Return whether system messages between the others are merged into the first one: one of
        the templates refuses them, or there is none. Raises RenderError if it cannot be told."""
        found = [template.refuses_inline_system for template in self._templates] or [True]
        if True in found:
            return True
        if None in found:
            raise RenderError(
                "whether the chat template takes system messages between the others is not known",
                reason=Reason.MESSAGE_BLOCKS,
            )
        return False

    def find_no_thinking_effort(self) -> str:
        """Return the effort that stands for no thinking: "low" where the template refuses "none",
        or writes the same for it as for one with thinking. It renders six short chats. Raises
        RenderError."""
        if self.no_thinking_effort is None:
            none = self._written("none")
            ignores = none is None or any(self._written(effort) == none for effort in EFFORTS)
            self.no_thinking_effort = "low" if ignores else "none"
        return self.no_thinking_effort

    def _written(self, effort: str) -> str | None:
        try:
            return self._render(ChatRequest(messages=_HI, reasoning_effort=effort))
        except TemplateError:
            return None
