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


def thought(text: str | None = "hm", *, summary: str | None = None, **fields: Any) -> Row:
    content = None if text is None else [{"type": "reasoning_text", "text": text}]
    parts = [] if summary is None else [{"type": "summary_text", "text": summary}]
    return {"type": "reasoning", "id": "r1", "summary": parts, "content": content} | fields


def custom(payload: str = "ls -l", id: str = "c1", **fields: Any) -> Row:
    return {"type": "custom_tool_call", "call_id": id, "name": "shell", "input": payload} | fields


def custom_result(text: Any = "r", id: str = "c1", **fields: Any) -> Row:
    return {"type": "custom_tool_call_output", "call_id": id, "output": text} | fields


PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
F: Row = {"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True}
G: Row = {"type": "function", "name": "g", "description": "d", "parameters": {}, "strict": None}
FREE: Row = {"type": "custom", "name": "shell", "description": "runs", "format": {"type": "text"}}
NAMESPACE: Row = {
    "type": "namespace",
    "name": "files",
    "description": "of a server",
    "tools": [
        {"type": "function", "name": "read", "description": "d", "parameters": PARAMETERS},
        {"type": "custom", "name": "not shown"},
        {"type": "function", "name": "list", "strict": True, "defer_loading": True},
    ],
}
SEARCH: Row = {"type": "web_search_preview"}
FILE = {"type": "input_file", "file_id": "f1"}
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
    "reasoning": [
        body([user(), thought(), output("x"), user("y")]),
        body([user(), thought(None, summary="s"), output("x"), user("y")]),
        body([user(), thought("a", summary="s"), said("x"), user("y")]),
        body([user(), thought(None), output("x"), user("y")]),
        body([user(), thought(), call(), result(), thought("b"), call(id="c2"), result(id="c2")]),
        body([user(), output("x"), thought(), thought("b"), user("y")]),
        body([user(), thought(status="completed", encrypted_content=None), call(), result()]),
        body([user(), thought("a\n\nb"), thought("c"), said("x"), user("y")]),
    ],
    "continued": [
        body([user(), said("x", status="incomplete")]),
        body([user(), output("x", status="in_progress")]),
        body([user(), thought(), output("x", status="incomplete")]),
        body([user(), call(), output("x", status="incomplete")], tools=[F]),
        body([user(status="incomplete")]),
        body([user("a", status="incomplete"), said("b", status="incomplete"), user("c")]),
        body([user(), call(status="in_progress")], tools=[F]),
        body([user(), output("x", status="completed")]),
    ],
    "results in parts": [
        body([user(), call(), result(words("r"))], tools=[F]),
        body([user(), call(), result(words("r", "s"), id="c1", status="completed")], tools=[F]),
        body([user(), call(), result([{"type": "input_text", "text": "r", "more": 1}])], tools=[F]),
        body([user(), custom(), custom_result(words("r", "s"))], tools=[FREE]),
        body([user(), custom(), custom_result(words("r"), status="completed", id="o")]),
    ],
    "other tools": [
        body(tools=[SEARCH]),
        body(tools=[SEARCH, F], tool_choice="none"),
        body(tools=[{"type": "code_interpreter", "container": {"type": "auto"}}, G]),
        body(tools=[{"type": "local_shell"}, {"type": "web_search"}, F]),
        body(tools=[{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1"}]),
        body(tools=[FREE]),
        body(tools=[{"type": "custom", "name": "bare"}, F]),
        body(tools=[NAMESPACE]),
        body(tools=[F, NAMESPACE, FREE, SEARCH]),
        body(tools=[{**F, "defer_loading": True}], tool_choice={"type": "function", "name": "f"}),
    ],
    "other calls": [
        body([user(), custom(), custom_result()], tools=[FREE]),
        body([user(), custom('é"\n<x>'), custom_result("s", status="completed", id="o")]),
        body([user(), thought(), custom(id="c1"), custom(id="c2"), custom_result()], tools=[FREE]),
        body([user(), custom(namespace="n"), custom_result()], tools=[FREE]),
        body([user(), call("read", namespace="files"), result()], tools=[NAMESPACE]),
        body([user(), call(namespace=""), result()], tools=[F]),
    ],
    "other messages": [
        body([user(name="Ann")]),
        body([user(), {**said(words("x", "z")), "type": "message"}, user("y")]),
        body([user(), said(words("x")), user("y")]),
        body([user([{"type": "input_text", "text": "a", "more": 1}])]),
        body(previous_input_messages=[{"role": "user", "content": "not read"}]),
    ],
    # As coding agents send them: the whole conversation, and tools that run beside the agent.
    "agents": [
        body(
            [
                {"type": "message", "role": "developer", "content": words("<rules>", "<skills>")},
                {"type": "message", "role": "user", "content": words("<cwd>/tmp</cwd>")},
                {"type": "message", "role": "user", "content": words("fix it")},
                thought(None, summary="**Looking**", encrypted_content=None),
                call("exec", '{"cmd":["ls","-l"]}', "c1"),
                result("total 0", "c1"),
                output("Done.", phase="final_answer", status="completed"),
                {"type": "message", "role": "user", "content": words("and now?")},
            ],
            instructions="You are an agent that edits files.",
            tools=[{**F, "name": "exec", "strict": False}, {"type": "web_search"}],
            tool_choice="auto",
            parallel_tool_calls=False,
            reasoning={"effort": "medium", "summary": "auto"},
            store=False,
            include=["reasoning.encrypted_content"],
            prompt_cache_key="0190",
        ),
    ],
    # The others are the engine's alone: no chat is made of them here.
    "engine": [
        body(previous_response_id="resp_1"),
        body([user(), thought(encrypted_content="AAAA"), said("x")]),
        body([user(), thought(None, summary=None, content=[{"type": "text", "text": "r"}])]),
        body([user(), {"type": "reasoning", "content": []}]),
        body([user(), {"type": "item_reference", "id": "x"}]),
        body([user(), {"type": "web_search_call", "id": "w", "status": "completed"}]),
        body([user(), {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {}}]),
        body([user([*words("a"), FILE])]),
        body([user([{"type": "text", "text": "a"}])]),
        body([user(), call() | {"arguments": {}}, result()], tools=[F]),
        body([user(), output("x", content=[{"type": "refusal", "refusal": "no"}])]),
        body(tools=[{**NAMESPACE, "tools": "none"}]),
        body(tools=[{"type": "custom"}]),
    ],
}
