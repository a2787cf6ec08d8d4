"""A `/v1/chat/completions` body -> what is rendered, by the rules of vLLM 0.32's chat endpoint:
what a template gets to see of the messages, and besides them: tools, documents,
`chat_template_kwargs`.

Sources: entrypoints/openai/chat_completion/protocol.py (defaults, order of fields after validation,
`build_chat_params`, tools as its models write them), renderers/chat_utils.py (messages),
renderers/online_renderer.py and params.py (which argument wins over which), renderers/hf.py
(developer messages, what reaches the template)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2.defaults import DEFAULT_NAMESPACE

from inferway.config import ModelSettings
from inferway.errors import InvalidRequestError, RenderError
from inferway.model import Reason
from inferway.openai_api.lenient import json_type
from inferway.openai_api.requests import BILLING_HEADER, ChatRequest, PromptBody
from inferway.prompts.chat.chat_template import ChatInput, Message
from inferway.prompts.chat.content_format import ContentFormat, TemplateFacts
from inferway.prompts.version_rules import OLDER_RULES
from inferway_structured.lax import lax_bool

JsonObject = dict[str, Any]

# Names in `chat_template_kwargs` that no template gets to see: arguments of transformers'
# `apply_chat_template`, and Jinja's own globals.
_OF_TOKENIZATION = ("padding", "truncation", "max_length", "return_tensors", "tokenizer_kwargs")
_NEVER_SEEN = {
    *("tokenize", "return_dict", "return_assistant_tokens_mask", "chat_template"),
    *_OF_TOKENIZATION,
    *DEFAULT_NAMESPACE,
}

# And those with which vLLM cannot call it.
_REFUSED = ("model_config", "tokenizer", "conversation", "self")


def shows_tools(body: ChatRequest, flags: ModelSettings) -> bool:
    """Return whether the template gets the tools of the body."""
    excluded = body.tool_choice == "none" and flags.exclude_tools_when_tool_choice_none
    return body.tools is not None and not excluded


def sees_tools(body: ChatRequest, flags: ModelSettings) -> bool:
    """Return whether the template gets any tools. If it does, vLLM takes the model's template for
    chats with tools."""
    others = (body.chat_template_kwargs or {}).get("tools")
    if not is_set(others):
        others = flags.chat_template_kwargs.get("tools")
    return others is not None or shows_tools(body, flags)


def template_arguments(body: ChatRequest, flags: ModelSettings) -> JsonObject:
    """Return the template's arguments: the body's fields win over `chat_template_kwargs`, which
    win over what vLLM sets, which wins over the engine's defaults; null and "auto" count as not
    given."""
    given = body.chat_template_kwargs or {}
    own: JsonObject = {"tools": None, "documents": None, **flags.chat_template_kwargs}
    if shows_tools(body, flags):
        own["tools"] = _tools(body.tools)
    own.update((name, value) for name, value in given.items() if is_set(value))
    if len(own) > 2:
        _check_arguments(own, body)
        own = {name: value for name, value in own.items() if name not in _NEVER_SEEN}
    effort = flags.reasoning_effort_map.get(body.reasoning_effort or "", body.reasoning_effort)
    fields: JsonObject = {
        "add_generation_prompt": body.add_generation_prompt is not False,
        "continue_final_message": body.continue_final_message is True,
        "documents": body.documents,
        "reasoning_effort": effort,
    }
    if effort is not None and "enable_thinking" not in given:
        fields["enable_thinking"] = effort != "none"
    arguments = {**own, **{name: value for name, value in fields.items() if is_set(value)}}
    if arguments["tools"] is not None:
        arguments["tools"] = [*_objects("tools", arguments["tools"])]
    if arguments["documents"] is not None:
        _objects("documents", arguments["documents"])
    return arguments


def _objects(name: str, value: Any) -> Iterable[JsonObject]:
    """transformers goes through it, whatever it is, and takes objects only (chat_template_utils.py,
    `render_jinja_template`); what is empty has none."""
    if isinstance(value, list | dict | str) and all(isinstance(each, dict) for each in value):
        return value  # type: ignore[return-value]
    param = f"chat_template_kwargs.{name}"
    raise InvalidRequestError(f"{param}: must be a list of objects", param=param)


def _check_arguments(own: JsonObject, body: ChatRequest) -> None:
    refused = [name for name in _REFUSED if name in own]
    if own.get("return_assistant_tokens_mask"):
        refused.append("return_assistant_tokens_mask")
    if refused:
        param = f"chat_template_kwargs.{refused[0]}"
        raise InvalidRequestError(f"{param}: is not for requests to give", param=param)
    # The ids are then made by `apply_chat_template`: without special tokens, cut as it is told.
    if own.get("tokenize") and (body.add_special_tokens or any(n in own for n in _OF_TOKENIZATION)):
        raise RenderError("chat_template_kwargs.tokenize: not followed", reason=Reason.OUR_FAULT)


def is_set(value: object) -> bool:
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
    inherited = {**_flag(tool, "defer_loading"), **_flag(function, "defer_loading")}
    return {
        "type": tool.get("type", "function"),
        "function": {
            "name": function["name"],
            "description": function.get("description"),
            "parameters": function.get("parameters"),
            **_flag(function, "strict"),
            **_flag(inherited, "defer_loading"),
        },
        **_flag(tool, "defer_loading"),
    }


def _flag(fields: JsonObject, name: str) -> JsonObject:
    """The field alone, true or false ("true" and 1 are), or nothing if it is absent or null."""
    value = fields.get(name)
    if value is None:
        return {}
    try:
        return {name: lax_bool(value)}
    except ValueError as e:
        param = f"tools.function.{name}"
        raise InvalidRequestError(
            f"{param}: expected true or false, got `{json_type(value)}`", param=param
        ) from e


NO_FLAGS = ModelSettings()
NO_TOKENS: Mapping[str, str] = {}

_SPEAKERS = {"user", "assistant"}


def chat_input(
    body: ChatRequest,
    template: TemplateFacts,
    wanted: ContentFormat | None = None,
    *,
    flags: ModelSettings = NO_FLAGS,
    special_tokens: Mapping[str, str] = NO_TOKENS,
) -> ChatInput:
    """Return what the template gets to see; `wanted` is the form of content, None: as vLLM finds it
    before 0.33. Raises InvalidRequestError for what vLLM refuses, RenderError (`media`) for what we
    cannot follow."""
    settings = template_arguments(body, flags)
    wanted = wanted or OLDER_RULES.content_format(flags, template)
    return ChatInput(
        messages=conversation(body.messages, template, wanted),
        tools=settings.pop("tools"),
        documents=settings.pop("documents"),
        add_generation_prompt=settings.pop("add_generation_prompt"),
        continue_final_message=settings.pop("continue_final_message"),
        variables={**special_tokens, **settings},
    )


def forwarded_ids(body: PromptBody) -> list[int] | None:
    """Return the prompt's ids if the request carries them: a prefill engine has rendered them for
    the engine that decodes. vLLM then looks at no message."""
    if body.prompt_field != "messages":
        return None
    ids = (body.kv_transfer_params or {}).get("prompt_token_ids")
    if ids is None or body.echo or any(map(carries_media, body.messages)):
        return None
    if not isinstance(ids, list) or not ids or any(type(id) is not int or id < 0 for id in ids):
        param = "kv_transfer_params.prompt_token_ids"
        raise InvalidRequestError(f"{param}: must be a list of token ids", param=param)
    return ids


def carries_media(message: JsonObject) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        is_media(part) or (isinstance(part, dict) and not _MEDIA_FIELDS.isdisjoint(part))
        for part in content
    )


def brings_template(body: ChatRequest) -> bool:
    """Return whether the request brings something that vLLM refuses unless it was started with
    --trust-request-chat-template."""
    in_kwargs = (body.chat_template_kwargs or {}).get("chat_template")
    return body.chat_template is not None or in_kwargs is not None


def asked_template(body: ChatRequest, flags: ModelSettings) -> str | None:
    """Return the template that a request brings or names, if the engine uses it."""
    if body.chat_template:
        return body.chat_template
    if flags.chat_template is not None:  # an engine's --chat-template wins over one in kwargs
        return None
    in_kwargs = (body.chat_template_kwargs or {}).get("chat_template")
    if not is_set(in_kwargs):
        return None
    if isinstance(in_kwargs, str):
        return in_kwargs
    raise InvalidRequestError(
        f"chat_template_kwargs.chat_template: expected `str`, got `{type(in_kwargs).__name__}`",
        param="chat_template_kwargs.chat_template",
    )


def untrusted_template() -> RenderError:
    return RenderError(
        "chat_template: the request brings its own, which is not trusted",
        reason=Reason.REQUEST_TEMPLATE,
    )


def conversation(
    messages: Iterable[JsonObject],
    template: TemplateFacts,
    wanted: ContentFormat | None = None,
) -> list[Message]:
    """The messages as `template` gets to see them; `wanted` if not in the form that it wants."""
    wanted = wanted or template.content_format
    messages = list(messages)
    # Of a long chat all but the first message are mostly plain, and then they stay as they are.
    num_looked_at = len(messages)
    if wanted == "string" and _are_plain(messages[1:]):
        num_looked_at = 1
    rendered = [
        _plain_message(message, wanted) or _message(message, f"messages[{i}]", wanted)
        for i, message in enumerate(messages[:num_looked_at])
    ]
    developer = any(m["role"] == "developer" for m in rendered)
    rendered += messages[num_looked_at:]
    if developer and not template.knows_developer:
        return _one_system_message([_developer_as_system(message) for message in rendered])
    return rendered


def _are_plain(messages: list[JsonObject]) -> bool:
    """Return whether each is a user's or an assistant's role and then text, and no more. Histories
    are long, and this is the only look at most of them: a loop that CPython specialises takes half
    the time of one that calls or builds anything."""
    for message in messages:
        if len(message) != 2:
            return False
        first, second = message  # templates may see the order
        if first != "role" or second != "content":
            return False
        if message["role"] not in _SPEAKERS or type(message["content"]) is not str:
            return False
    return True


def _plain_message(message: JsonObject, content_format: ContentFormat) -> Message | None:
    """The short way of `_message` for what most messages are; None for all others."""
    content, role = message.get("content"), message["role"]
    if content_format != "string" or not isinstance(content, str) or len(message) != 2:
        return None
    if role in _SPEAKERS or (role == "system" and not content.startswith(BILLING_HEADER)):
        return {"role": role, "content": content}
    return None


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
    if content_format == "string":
        return "\n".join(filter(None, map(_plain, kept)))
    # Few templates take parts from a tool; vLLM joins them unless one is a reference to a tool.
    if role == "tool" and all(part["type"] == "text" for part in kept):
        return "\n".join(map(_plain, kept))
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

_MEDIA_FIELDS = {
    *("image_url", "image_pil", "image_embeds", "input_image", "input_audio", "audio_url"),
    *("audio_embeds", "video_url", "video_embeds", "prompt_embeds"),
}

# Fields of the part types that vLLM knows.
_KNOWN_PART_FIELDS = {
    *("type", "text", "refusal", "thinking", "closed", "name", "uuid", "data", "file"),
    *("image_url", "image_pil", "image_embeds", "input_audio", "audio_url", "audio_embeds"),
    *("video_url", "video_embeds", "prompt_cache_breakpoint"),
}


def _text_part(part: object, where: str) -> JsonObject | None:
    """The part as templates that want parts get it; None for a part without text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, MediaPart):
        return part
    assert isinstance(part, dict)
    kind = part.get("type")
    if kind == "tool_reference":
        return {"type": "tool_reference", "name": part.get("name")}
    if is_media(part):
        raise RenderError(f"{where}: a part of type {kind!r} is not text", reason=Reason.MEDIA)
    text = part.get(_TEXT_PARTS[part["type"]])
    if text is None and part["type"] in ("text", "refusal"):
        return None
    return {"type": "text", "text": text, **extra_fields(part)}


class MediaPart(JsonObject):
    """A part of a content that is no text, given unchanged to a template that wants parts."""


def is_media(part: object) -> bool:
    """Return whether a part of a content must be turned into tokens by a processor of the engine,
    or is refused by the engine."""
    if not isinstance(part, dict) or part.get("type") == "tool_reference":
        return False
    kind = part.get("type")
    return not isinstance(kind, str) or kind not in _TEXT_PARTS or part.get("uuid") is not None


def extra_fields(part: JsonObject) -> JsonObject:
    """Return the fields of a part that vLLM does not know and hands to the template
    ("cache_control")."""
    return {name: value for name, value in part.items() if name not in _KNOWN_PART_FIELDS}


def _plain(part: JsonObject) -> str:
    text = part["name"] if part["type"] == "tool_reference" else part["text"]
    return "" if text is None else str(text)


def _without_billing_header(parts: list[Any]) -> list[Any]:
    """Claude Code's first system line changes with every request; vLLM drops it."""
    kept = []
    for part in parts:
        is_text_part = isinstance(part, dict) and part.get("type") == "text"
        text = part.get("text") if is_text_part else part
        if isinstance(text, str) and text.startswith(BILLING_HEADER):
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
    ordered["arguments"] = _arguments(function.get("arguments"), where)
    return {**_in_order(call, ("id", "function", "type")), "function": ordered}


def _in_order(fields: Mapping[str, Any], first: tuple[str, ...]) -> JsonObject:
    return {**{name: fields[name] for name in first if name in fields}, **fields}


def _arguments(arguments: object, where: str) -> JsonObject:
    """vLLM keeps a broken history going: what is no JSON object becomes an empty one. Integers
    that Python does not read it refuses."""
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except (json.JSONDecodeError, RecursionError):
            return {}
        except ValueError as e:
            raise _bad_call(where, "arguments have an integer of more than 4300 digits") from e
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
    return "\n".join(_plain(part) for part in content if "text" in part)
