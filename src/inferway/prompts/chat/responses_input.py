"""A `/v1/responses` body -> the chat that vLLM 0.32 makes of it, where that is known.

vLLM renders both by one function (renderers/online_renderer.py: `render_responses` and
`render_chat` call `preprocess_chat`), so what differs is what it is given. Sources:
entrypoints/openai/responses/utils.py (`construct_input_messages`, `construct_tool_dicts`,
`should_continue_final_message`), protocol.py (`build_chat_params`, `build_tok_params`: special
tokens are added, unlike in a chat) and tool_parsers/utils.py (`get_function_tools`).

What is not written down here, only the engine turns into a prompt, or refuses: earlier responses,
which it alone has; encrypted reasoning; items and parts of other types. `previous_input_messages`
are read for models that vLLM renders in code of its own (gpt-oss), and by no template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from inferway.errors import RenderError, RequestError
from inferway.model import Reason
from inferway.openai_api.requests import ChatRequest, ResponsesRequest

JsonObject = dict[str, Any]

_OF_A_MESSAGE = {"type", "role", "content", "id", "status", "phase", "name"}
_ROLES = ("user", "system", "developer")
_PARTS = ("input_text", "input_image")  # an image ends what is known of the prompt
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_OPEN = ("in_progress", "incomplete")  # the last message, or reasoning, is then continued

# What a custom tool is shown as (tool_parsers/utils.py, `custom_tool_parameters`).
_FREE_TEXT = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "The freeform text payload for this tool."}
    },
    "required": ["input"],
    "additionalProperties": False,
}

_OUR_NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens"}


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """Raises RenderError if only the engine knows."""
    if body.previous_response_id is not None:
        raise _unknown("previous_response_id")
    messages: list[JsonObject] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        for i, item in enumerate(body.input or ()):
            _add(item, messages, f"input[{i}]")
    is_open = _is_open(body.input)
    return ChatRequest(
        model=body.model,
        messages=messages,
        tools=[*_functions(body.tools)] if body.tools else None,
        tool_choice=body.tool_choice,
        chat_template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=not is_open,
        continue_final_message=is_open,
        add_special_tokens=True,
        reasoning_effort=_effort(body.reasoning),
        truncate_prompt_tokens=None if body.cuts_nothing else -1,
        kv_transfer_params=body.kv_transfer_params,
        cache_salt=body.cache_salt,
        max_completion_tokens=body.max_output_tokens,
        stream=body.stream,
        vllm_xargs=body.vllm_xargs,
    )


def _is_open(given: str | list[JsonObject] | None) -> bool:
    if not isinstance(given, list) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in _OPEN


def in_its_fields(error: RequestError) -> RequestError:
    """Return the error of the chat in the words of the response: text and `param` begin with the
    response's field. Paths within a field are left out, because the lists differ."""
    name = (error.param or "").partition("[")[0]
    if name not in _OUR_NAMES:
        return error
    text, named = str(error), error.param or ""
    if text.startswith(named):
        text = _OUR_NAMES[name] + text.removeprefix(named)
    return type(error)(text, param=_OUR_NAMES[name]).with_traceback(error.__traceback__)


def _add(item: JsonObject, messages: list[JsonObject], where: str) -> None:
    """One message may be made of several items: what an assistant thinks, says and calls."""
    kind = item.get("type", "message")
    if kind in _CALLS:
        call = _call(item, where)
        last = _assistants(messages)
        if last is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            last.setdefault("tool_calls", []).append(call)
    elif kind in _OUTPUTS:
        messages.append(
            {
                "role": "tool",
                "content": _content(item, "output", where),
                "tool_call_id": _text(item, "call_id", where),
            }
        )
    elif kind == "reasoning":
        _say(messages, "reasoning", _reasoning(item, where))
    elif kind == "message" and item.get("role") == "assistant":
        _say(messages, "content", _said(item, where))
    elif kind == "message" and item.get("role") in _ROLES and _given(item) <= _OF_A_MESSAGE:
        message = {"role": item["role"], "content": _content(item, "content", where)}
        if isinstance(item.get("name"), str):
            message["name"] = item["name"]
        messages.append(message)
    else:
        raise _unknown(where)


def _given(item: JsonObject) -> set[str]:
    return {name for name, value in item.items() if value is not None}


def _assistants(messages: list[JsonObject]) -> JsonObject | None:
    """The last message, if it is the assistant's."""
    return messages[-1] if messages and messages[-1]["role"] == "assistant" else None


def _say(messages: list[JsonObject], name: str, text: str) -> None:
    last = _assistants(messages)
    if last is None or name in last:
        messages.append({"role": "assistant", name: text})
    else:
        last[name] = text


def _call(item: JsonObject, where: str) -> JsonObject:
    name = _text(item, "name", where)
    if item["type"] == "custom_tool_call":
        payload = {"input": _text(item, "input", where)}
        arguments = json.dumps(payload, ensure_ascii=False)
    else:
        arguments = _text(item, "arguments", where)
        if item.get("namespace"):
            name = _in_namespace(_text(item, "namespace", where), name)
    return {
        "id": _text(item, "call_id", where),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _reasoning(item: JsonObject, where: str) -> str:
    """vLLM takes the first part of the content, else of the summary."""
    if item.get("encrypted_content"):
        raise _unknown(f"{where}.encrypted_content")
    summary, content = item.get("summary"), item.get("content")
    if not isinstance(summary, list) or not isinstance(content, list | None):
        raise _unknown(where)
    parts, kind = (content, "reasoning_text") if content else (summary, "summary_text")
    if not parts:
        return ""
    if not isinstance(parts[0], dict) or parts[0].get("type") != kind:
        raise _unknown(where)
    return _text(parts[0], "text", where)


def _said(item: JsonObject, where: str) -> str:
    """vLLM takes the first part of what an assistant said, and no other."""
    content = item.get("content")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        if content[0].get("type") not in ("output_text", "input_text"):
            raise _unknown(f"{where}.content[0]")
        return _text(content[0], "text", f"{where}.content[0]")
    return _text(item, "content", where)


def _content(item: JsonObject, name: str, where: str) -> str | list[JsonObject]:
    content = item.get(name)
    if not isinstance(content, list):
        return _text(item, name, where)
    for j, part in enumerate(content):
        place = f"{where}.{name}[{j}]"
        if not isinstance(part, dict) or part.get("type") not in _PARTS:
            raise _unknown(place)
        if part["type"] == "input_text":
            _text(part, "text", place)
    return content


def _functions(tools: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """The tools that vLLM shows the model: those of other types it runs itself, or leaves out."""
    for i, tool in enumerate(tools):
        kind, where = tool.get("type"), f"tools[{i}]"
        if kind == "function":
            yield _function(tool)
        elif kind == "custom":
            shown = {"name": _text(tool, "name", where), "description": tool.get("description")}
            yield _function({**shown, "parameters": _FREE_TEXT})
        elif kind == "namespace":
            yield from _in_its_namespace(tool, where)


def _in_its_namespace(tool: JsonObject, where: str) -> Iterator[JsonObject]:
    name, tools = _text(tool, "name", where), tool.get("tools")
    if not isinstance(tools, list):
        raise _unknown(f"{where}.tools")
    for each in tools:
        if not isinstance(each, dict):
            raise _unknown(f"{where}.tools")
        if each.get("type") == "function":
            yield _function({**each, "name": _in_namespace(name, _text(each, "name", where))})


def _function(tool: JsonObject) -> JsonObject:
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _in_namespace(namespace: str, name: str) -> str:
    return f"{namespace}__{name}"


def _effort(reasoning: JsonObject | None) -> str | None:
    effort = (reasoning or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise _unknown("reasoning.effort")
    return effort


def _text(item: JsonObject, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _unknown(f"{where}.{name}")
    return value


def _unknown(where: str) -> RenderError:
    return RenderError(f"{where}: only the engine renders it", reason=Reason.RESPONSE_ITEMS)
