"""Responses bodies by the rule they show. `record_vllm_responses.py` asks vLLM about each,
tests/prompts/test_responses_input.py asks us."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def body(input: Any = "hi", **fields: Any) -> Row:
    return {"model": "m", "input": input, **fields}


def user(content: Any = "hi", **fields: Any) -> Row:
    return {"role": "user", "content": content, **fields}


def said(text: Any = "hello", **fields: Any) -> Row:
    return {"role": "assistant", "content": text, **fields}


def output(*texts: str, **fields: Any) -> Row:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "content": parts, "id": "m1"} | fields


def call(name: str = "f", arguments: str = '{"x": "1"}', id: str = "c1", **fields: Any) -> Row:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments} | fields


def result(text: Any = "r", id: str = "c1", **fields: Any) -> Row:
    return {"type": "function_call_output", "call_id": id, "output": text} | fields


def words(*texts: str) -> list[Row]:
    return [{"type": "input_text", "text": text} for text in texts]


PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
F: Row = {"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True}
G: Row = {"type": "function", "name": "g", "description": "d", "parameters": {}, "strict": None}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}

RULES: dict[str, list[Row]] = {
    "text": [body(), body(""), body("a\n\nb"), body("héllo 你好")],
    "instructions": [
        body(instructions="Be brief."),
        body(instructions=""),
        body(instructions=None),
        body([user()], instructions="Be brief."),
        body([{"role": "system", "content": "s"}, user()], instructions="Be brief."),
    ],
    "messages": [
        body([user()]),
        body([user(type="message")]),
        body([user("a"), user("b")]),
        body([user("a"), said("b"), user("c")]),
        body([user("a"), said("b"), said("c"), user("d")]),
        body([user("a"), said(""), user("d")]),
        body([{"role": "system", "content": "s"}, user()]),
        body([{"role": "developer", "content": "s"}, user()]),
        body([{"role": "developer", "content": words("s", "t")}, user()]),
    ],
    "parts": [
        body([user(words("a"))]),
        body([user(words("a", "b"))]),
        body([user(words("a", "b"), type="message")]),
        body([{"role": "system", "content": words("s")}, user()]),
    ],
    "outputs": [
        body([user(), output("x"), user("y")]),
        body([user(), output("x", status="completed"), user("y")]),
        body([user(), output("x", "z"), user("y")]),
        body([user(), said("x", type="message"), user("y")]),
        body([user(), output("x")]),
        # As an engine has sent it.
        body([user(), output("x", status="completed", phase=None), user("y")]),
        body([user(), output("x", phase="final_answer"), user("y")]),
    ],
    "calls": [
        body([user(), call(), result()], tools=[F]),
        body([user(), call(), result(), said("done"), user("more")], tools=[F]),
        body([user(), output("well"), call(), result()], tools=[F]),
        body([user(), call(), output("well"), result()], tools=[F]),
        body([user(), call(), call("g", "{}", "c2"), result(), result("s", "c2")], tools=[F, G]),
        body([user(), call(status="completed", id="c1"), result()], tools=[F]),
        body([user(), call(arguments=""), result("")], tools=[F]),
        body([user(), call(id="c1", status="completed", namespace=None), result()], tools=[F]),
        body([user(), call(), result(status=None)], tools=[F]),
    ],
    "tools": [
        body(tools=[F]),
        body(tools=[F, G]),
        body(tools=[G], tool_choice="none"),
        body(tools=[F], tool_choice="required"),
        body(tools=[F], tool_choice={"type": "function", "name": "f"}),
        body(tools=[]),
    ],
    "template arguments": [
        body(chat_template_kwargs={"enable_thinking": False}),
        body(chat_template_kwargs={"add_generation_prompt": False}),
        body(chat_template_kwargs={"tools": [{"type": "function", "function": {"name": "k"}}]}),
        body(chat_template_kwargs={"documents": [{"title": "t", "text": "u"}]}),
        body(reasoning={"effort": "low"}),
        body(reasoning={"effort": "none"}),
        body(reasoning={"effort": None}),
        body(reasoning={"effort": "high"}, chat_template_kwargs={"enable_thinking": False}),
    ],
    # The others are the engine's alone: no chat is made of them here.
    "engine": [
        body([user(), said("x", status="incomplete")]),
        body([user(), output("x", status="in_progress")]),
        body([user([*words("a"), IMAGE])]),
        body([user(), {"type": "reasoning", "summary": [], "id": "r1"}, said("x")]),
        body([user(), call(), result(words("r"))], tools=[F]),
        body([user(), call(namespace="n"), result()], tools=[F]),
        body(tools=[{"type": "web_search_preview"}]),
        body([user(), {"type": "item_reference", "id": "x"}]),
    ],
}
