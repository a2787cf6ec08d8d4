"""A `/v1/chat/completions` body -> what is rendered, by the rules of vLLM 0.32's chat endpoint.

Sources: entrypoints/openai/chat_completion/protocol.py (defaults, order of fields after
validation), renderers/chat_utils.py (messages), renderers/hf.py (developer messages),
renderers/online_renderer.py and params.py (which argument wins over which).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from inferway.errors import InvalidRequestError, RenderError
from inferway.model import Reason
from inferway.openai_api.requests import ChatRequest
from inferway.prompts.chat_template import ChatTemplate, Message
from inferway.prompts.content_format import ContentFormat
from inferway.prompts.renderer import RenderChatRequest

JsonObject = dict[str, Any]

# Arguments of `apply_chat_template` that a request cannot change in effect.
_IGNORED = {"tokenize", "return_dict", "chat_template"}


def chat_render_request(
    body: ChatRequest,
    key: str,
    template: ChatTemplate,
    *,
    truncate_prompt_tokens: int | None = None,
    trust_request_template: bool = False,
) -> RenderChatRequest:
    """Raises InvalidRequestError for what vLLM refuses, RenderError for what we cannot follow
    (`media`, `request_template`). `template` is the model's own for this body;
    `truncate_prompt_tokens` the body's, -1 resolved."""
    given = dict(body.chat_template_kwargs or {})
    request_template = body.chat_template or given.get("chat_template")
    if request_template is not None:
        if not trust_request_template:
            raise RenderError(
                "chat_template: the request brings its own, which is not trusted",
                reason=Reason.REQUEST_TEMPLATE,
            )
        template = ChatTemplate(request_template)
    settings = _settings(body, given)
    messages = conversation(body.messages, template)
    return RenderChatRequest(
        key=key,
        conversation=messages,
        tools=settings.pop("tools"),
        documents=settings.pop("documents"),
        chat_template=request_template,
        continue_final_message=settings.pop("continue_final_message"),
        add_generation_prompt=settings.pop("add_generation_prompt"),
        chat_template_kwargs=settings,
        truncate_prompt_tokens=truncate_prompt_tokens,
        add_special_tokens=bool(body.add_special_tokens),
    )


def _settings(body: ChatRequest, given: JsonObject) -> JsonObject:
    """Arguments of the template: the body's fields win over `chat_template_kwargs`, which win
    over what vLLM sets; null and "auto" count as not given."""
    own: JsonObject = {
        "tools": _tools(body.tools),
        "documents": None,
        **{name: value for name, value in given.items() if _is_set(value)},
    }
    for name in _IGNORED:
        own.pop(name, None)
    fields: JsonObject = {
        "add_generation_prompt": body.add_generation_prompt is not False,
        "continue_final_message": body.continue_final_message is True,
        "documents": body.documents,
        "reasoning_effort": body.reasoning_effort,
    }
    if body.reasoning_effort is not None and "enable_thinking" not in given:
        fields["enable_thinking"] = body.reasoning_effort != "none"
    return {**own, **{name: value for name, value in fields.items() if _is_set(value)}}


def _is_set(value: object) -> bool:
    return value is not None and value != "auto"


def _tools(tools: Iterable[JsonObject] | None) -> list[JsonObject] | None:
    """Tools as vLLM's models write them: known fields only, in their order, with nulls."""
    if tools is None:
        return None
    written = []
    for i, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(
                f"tools[{i}].function.name: required field is missing",
                param=f"tools[{i}].function.name",
            )
        written.append(_tool(tool, function))
    return written


def _tool(tool: JsonObject, function: JsonObject) -> JsonObject:
    inherited = {**_given(tool, "defer_loading"), **_given(function, "defer_loading")}
    return {
        "type": tool.get("type", "function"),
        "function": {
            "name": function["name"],
            "description": function.get("description"),
            "parameters": function.get("parameters"),
            **_given(function, "strict"),
            **_given(inherited, "defer_loading"),
        },
        **_given(tool, "defer_loading"),
    }


def _given(fields: JsonObject, name: str) -> JsonObject:
    """The field alone, or nothing if it is absent or null."""
    return {name: fields[name]} if fields.get(name) is not None else {}


def conversation(messages: Iterable[JsonObject], template: ChatTemplate) -> list[Message]:
    """The messages as `template` gets to see them."""
    content_format = template.content_format
    rendered = [
        _plain_message(message, content_format)
        or _message(message, f"messages[{i}]", content_format)
        for i, message in enumerate(messages)
    ]
    if not template.knows_developer and any(m["role"] == "developer" for m in rendered):
        return _one_system_message([_developer_as_system(message) for message in rendered])
    return rendered


def _plain_message(message: JsonObject, content_format: ContentFormat) -> Message | None:
    """The short way of `_message` for what most messages are; None for all others."""
    content, role = message.get("content"), message["role"]
    if content_format != "string" or not isinstance(content, str) or len(message) != 2:
        return None
    return {"role": role, "content": content} if role in ("user", "assistant") else None


def _message(message: JsonObject, where: str, content_format: ContentFormat) -> Message:
    role: str = message["role"]
    content = _content(role, message.get("content"), f"{where}.content", content_format)
    result: Message = {"role": role, "content": content}
    if role == "assistant":
        result.update(_assistant_fields(message, where))
    elif role == "tool" and "tool_call_id" in message:
        result["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "developer":
        result["tools"] = _developer_tools(message.get("tools"))
    return result


def _content(role: str, content: Any, where: str, content_format: ContentFormat) -> Any:
    if role != "system" and content_format == "string" and isinstance(content, str):
        return content  # nearly all messages of most models
    parts = _parts(content)
    if role == "system":
        parts = _without_billing_header(parts)
    texts = [_text_part(part, where) for part in parts]
    kept = [part for part in texts if part is not None]
    # Few templates take parts from a tool; vLLM joins them unless one is a reference to a tool.
    if content_format == "string" or (role == "tool" and all(p["type"] == "text" for p in kept)):
        return "\n".join(_plain(part) for part in kept)
    return kept


def _parts(content: object) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    assert isinstance(content, list)  # openai_api.requests has checked it
    return content


# Part type -> the field with its text.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}

# Fields of the part types that vLLM knows; the others go to the template ("cache_control").
_KNOWN_PART_FIELDS = {
    *("type", "text", "refusal", "thinking", "closed", "name", "uuid", "data", "file"),
    *("image_url", "image_pil", "image_embeds", "input_audio", "audio_url", "audio_embeds"),
    *("video_url", "video_embeds", "prompt_cache_breakpoint"),
}


def _text_part(part: object, where: str) -> JsonObject | None:
    """The part as templates that want parts get it; None for a part without text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    assert isinstance(part, dict)
    kind = part.get("type")
    if kind == "tool_reference":
        return {"type": "tool_reference", "name": part.get("name")}
    if kind not in _TEXT_PARTS or part.get("uuid") is not None:
        raise RenderError(f"{where}: a part of type {kind!r} is not text", reason=Reason.MEDIA)
    text = part.get(_TEXT_PARTS[kind])
    if text is None:
        return None
    extra = {name: value for name, value in part.items() if name not in _KNOWN_PART_FIELDS}
    return {"type": "text", "text": text, **extra}


def _plain(part: JsonObject) -> str:
    text = part["name"] if part["type"] == "tool_reference" else part["text"]
    return str(text)


_BILLING_HEADER = "x-anthropic-billing-header"


def _without_billing_header(parts: list[Any]) -> list[Any]:
    """Claude Code's first system line changes with every request; vLLM drops it."""
    kept = []
    for part in parts:
        is_text_part = isinstance(part, dict) and part.get("type") == "text"
        text = part.get("text") if is_text_part else part
        if isinstance(text, str) and text.startswith(_BILLING_HEADER):
            rest = text.partition("\n")[2]
            if not rest:
                continue
            part = {**part, "text": rest} if is_text_part else rest
        kept.append(part)
    return kept


def _assistant_fields(message: JsonObject, where: str) -> JsonObject:
    fields: JsonObject = {}
    calls = message.get("tool_calls")
    if calls:  # an empty list is as good as none
        if not isinstance(calls, list):
            raise _bad_call(where, "must be a list")
        fields["tool_calls"] = [_tool_call(call, where) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        fields["reasoning"] = fields["reasoning_content"] = reasoning
    return fields


def _tool_call(call: object, where: str) -> JsonObject:
    """Fields in the order of vLLM's models, then the unknown ones; arguments as an object."""
    if not isinstance(call, dict):
        raise _bad_call(where, "entries must be objects")
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise _bad_call(where, "entries must be of type 'function'")
    ordered = _in_order(function, ("arguments", "name"))
    ordered["arguments"] = _arguments(function.get("arguments"))
    return {**_in_order(call, ("id", "function", "type")), "function": ordered}


def _in_order(fields: Mapping[str, Any], first: tuple[str, ...]) -> JsonObject:
    return {**{name: fields[name] for name in first if name in fields}, **fields}


def _arguments(arguments: object) -> JsonObject:
    """vLLM keeps a broken history going: what is no JSON object becomes an empty one."""
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except (json.JSONDecodeError, RecursionError):
            return {}
    return arguments if isinstance(arguments, dict) else {}


def _bad_call(where: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}.tool_calls: {what}", param=f"{where}.tool_calls")


def _developer_tools(tools: object) -> Any:
    if not isinstance(tools, list):
        return tools
    return [
        {
            **_in_order(tool, ("function", "type")),
            "function": _in_order(
                tool.get("function") or {}, ("name", "description", "parameters", "strict")
            ),
        }
        if isinstance(tool, dict)
        else tool
        for tool in tools
    ]


def _developer_as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {**{k: v for k, v in message.items() if k != "tools"}, "role": "system"}


def _one_system_message(messages: list[Message]) -> list[Message]:
    """Many templates take a system message in the first place only."""
    places = [i for i, message in enumerate(messages) if message["role"] == "system"]
    if places in ([], [0]):
        return messages
    contents = [_joined(messages[i]["content"]) for i in places]
    merged = {"role": "system", "content": "\n\n".join(filter(None, contents))}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _joined(content: str | list[JsonObject]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
