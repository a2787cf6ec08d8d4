"""A `/v1/responses` body -> the chat that vLLM 0.32 makes of it, where that is known.

vLLM renders both by one function (renderers/online_renderer.py: `render_responses` and
`render_chat` call `preprocess_chat`), so what differs is what it is given. Sources:
entrypoints/openai/responses/utils.py (`construct_input_messages`, `construct_tool_dicts`) and
protocol.py (`build_chat_params`, `build_tok_params`: special tokens are added, unlike in a chat).
What is not written down here, only the engine turns into a prompt: earlier responses, which it
alone has, reasoning, media, built-in and custom tools, messages to be continued.
"""

from __future__ import annotations

from typing import Any

from inferway.errors import RenderError, RequestError
from inferway.model import Reason
from inferway.openai_api.requests import ChatRequest, ResponsesRequest

JsonObject = dict[str, Any]

_OF_A_MESSAGE = {"type", "role", "content", "id", "status", "phase"}
_OF_A_CALL = {"type", "call_id", "name", "arguments", "id", "status"}
_OF_AN_OUTPUT = {"type", "call_id", "output", "id", "status"}
_ENDED = (None, "completed")  # the others' last one is continued
_ROLES = ("user", "system", "developer")

_OUR_NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens"}


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """Raises RenderError if only the engine knows."""
    for name in ("previous_response_id", "previous_input_messages"):
        if getattr(body, name) is not None:
            raise _unknown(name)
    messages: list[JsonObject] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        for i, item in enumerate(body.input or ()):
            _add(item, messages, f"input[{i}]")
    return ChatRequest(
        model=body.model,
        messages=messages,
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())] or None,
        tool_choice=body.tool_choice,
        chat_template_kwargs=body.chat_template_kwargs,
        add_special_tokens=True,
        reasoning_effort=_effort(body.reasoning),
        truncate_prompt_tokens=None if body.cuts_nothing else -1,
        kv_transfer_params=body.kv_transfer_params,
        cache_salt=body.cache_salt,
        max_completion_tokens=body.max_output_tokens,
        stream=body.stream,
        vllm_xargs=body.vllm_xargs,
    )


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
    """One message may be made of several items: what an assistant says, and its calls."""
    kind, given = item.get("type", "message"), {k for k, value in item.items() if value is not None}
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if item.get("status") not in _ENDED:
        raise _unknown(f"{where}.status")
    if kind == "function_call" and given <= _OF_A_CALL:
        call = _call(item, where)
        if last is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            last.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output" and given <= _OF_AN_OUTPUT:
        messages.append(
            {
                "role": "tool",
                "content": _text(item, "output", where),
                "tool_call_id": _text(item, "call_id", where),
            }
        )
    elif kind == "message" and item.get("role") == "assistant" and given <= _OF_A_MESSAGE:
        said = _said(item, where)
        if last is not None and "content" not in last:
            last["content"] = said
        else:
            messages.append({"role": "assistant", "content": said})
    elif kind == "message" and item.get("role") in _ROLES and given <= _OF_A_MESSAGE:
        messages.append({"role": item["role"], "content": _content(item, where)})
    else:
        raise _unknown(where)


def _call(item: JsonObject, where: str) -> JsonObject:
    name, arguments = _text(item, "name", where), _text(item, "arguments", where)
    return {
        "id": _text(item, "call_id", where),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _said(item: JsonObject, where: str) -> str:
    """vLLM takes the first part of what an assistant said, and no other."""
    content = item.get("content")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        if content[0].get("type") != "output_text":
            raise _unknown(f"{where}.content[0]")
        return _text(content[0], "text", f"{where}.content[0]")
    return _text(item, "content", where)


def _content(item: JsonObject, where: str) -> str | list[JsonObject]:
    content = item.get("content")
    if not isinstance(content, list):
        return _text(item, "content", where)
    for j, part in enumerate(content):
        place = f"{where}.content[{j}]"
        if not isinstance(part, dict) or part.keys() != {"type", "text"}:
            raise _unknown(place)
        if part["type"] != "input_text":
            raise _unknown(f"{place}.type")
        _text(part, "text", place)
    return content


def _tool(tool: JsonObject, where: str) -> JsonObject:
    if tool.get("type") != "function":
        raise _unknown(f"{where}.type")
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


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
