"""What a template gets besides the messages: tools, documents, and `chat_template_kwargs`.

Sources in vLLM 0.32: entrypoints/openai/chat_completion/protocol.py (`build_chat_params`, tools as
its models write them), renderers/online_renderer.py and params.py (which argument wins over
which), renderers/hf.py (what reaches the template).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2.defaults import DEFAULT_NAMESPACE

from inferway.config import ModelSettings
from inferway.errors import InvalidRequestError, RenderError
from inferway.model import Reason
from inferway.openai_api.lenient import json_type
from inferway.openai_api.requests import ChatRequest
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


def template_arguments(body: ChatRequest, given: JsonObject, flags: ModelSettings) -> JsonObject:
    """Arguments of the template: the body's fields win over `chat_template_kwargs`, which win
    over what vLLM sets, which wins over the engine's defaults; null and "auto" count as not
    given."""
    own: JsonObject = {"tools": None, "documents": None, **flags.chat_template_kwargs}
    if shows_tools(body, flags):
        own["tools"] = _tools(body.tools)
    own.update((name, value) for name, value in given.items() if is_set(value))
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
