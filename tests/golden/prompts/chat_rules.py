"""Chat bodies by the field whose rule they show. `record_vllm_chats.py` asks vLLM about each,
tests/prompts/test_conversation.py asks us."""

from __future__ import annotations

import json
from typing import Any

Row = dict[str, Any]


def user(content: Any = "hi", **fields: Any) -> Row:
    return {"role": "user", "content": content, **fields}


def assistant(content: Any = "x", **fields: Any) -> Row:
    return {"role": "assistant", "content": content, **fields}


def system(content: Any) -> Row:
    return {"role": "system", "content": content}


def developer(content: Any, **fields: Any) -> Row:
    return {"role": "developer", "content": content, **fields}


def tool(content: Any = "r", **fields: Any) -> Row:
    return {"role": "tool", "content": content, **{"tool_call_id": "c1", **fields}}


def text(words: Any, **fields: Any) -> Row:
    return {"type": "text", "text": words, **fields}


def body(*messages: Row, **fields: Any) -> Row:
    return {"model": "m", "messages": list(messages or (user(),)), **fields}


def call(arguments: Any, **fields: Any) -> Row:
    return {
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    } | fields


def called(*calls: Row, content: Any = None, **fields: Any) -> Row:
    """A chat in which the assistant has called something and got an answer."""
    return body(user(), assistant(content, tool_calls=list(calls)), tool(), **fields)


PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}}
F: Row = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": PARAMETERS},
}
HEADER = "x-anthropic-billing-header: cch=1"


def kwargs(**given: Any) -> Row:
    return body(chat_template_kwargs=given)


RULES: dict[str, list[Row]] = {
    "content": [
        body(),
        body(user("")),
        body({"role": "user"}),
        body(user([])),
        body(user(None)),
        body(user("  a\r\n\n\tb  \n"), assistant(" c "), user("\n")),
        body(user("<|im_start|> hi </s> é 你好\r\n\t x")),
        body(user(), assistant(None), user("y")),
        body(user(), {"role": "assistant"}, user("y")),
    ],
    "parts of a content": [
        body(user([text("a"), text("b")])),
        body(user(["plain", text("b", cache_control={"type": "ephemeral"})])),
        body(user([text("a"), text(""), text("b")])),
        body(user([text(""), text("b")])),
        body(user([text("")])),
        body(user([text("a"), text(None), {"type": "input_text", "text": "in"}])),
        body(user([{"type": "output_text", "text": "out"}, text("a")])),
        body(user([{"type": "refusal", "refusal": None}, text("a")])),
        body(user([{"type": "thinking", "thinking": "th", "closed": True}, text("a")])),
        body({"role": "critic", "content": [{"type": "thinking", "thinking": None}, text("a")]}),
        body({"role": "critic", "content": [{"type": "input_text"}, text("a")]}),
        body({"role": "critic", "content": [{"type": "tool_reference"}, text("a")]}),
        body({"role": "critic", "content": [{"type": "tool_reference", "name": ""}, "a"]}),
        body(
            user(
                [
                    text("a"),
                    {"type": "refusal", "refusal": "no"},
                    {"type": "thinking", "thinking": "th"},
                    {"type": "tool_reference", "name": "tr"},
                ]
            )
        ),
        body(user(), assistant([text("a"), {"type": "refusal", "refusal": "no"}]), user("y")),
        body(system([text("x"), text("y")]), user(["plain", text("b")])),
        body(user([text("a", name="n", foo=[1, {"z": None}])])),
    ],
    "roles": [
        body(system("sys"), user()),
        body(system("a"), system("b"), user()),
        body(user(), system("b")),
        body(assistant("x"), assistant("y"), user("z")),
        body({"role": "weird", "content": "q"}),
        body(user(), {"role": "function", "name": "f", "content": "r"}),
        body(user(), assistant(), {"role": "ipython", "content": "1"}),
        body(user(), tool()),
        body(user(task="q"), assistant(task="q")),
    ],
    "developer": [
        body(developer("dev"), user()),
        body(system("s1"), developer([text("d1"), text("d2")]), user()),
        body(user(), developer("late"), user("x")),
        body(developer("dev", tools=[F]), user()),
        body(developer("", name="n"), user()),
        body(developer("a"), developer("b"), user()),
        body(system([text(""), text("s")]), user(), developer([text("d")])),
    ],
    "tool_calls": [
        called(call('{"x": "1"}'), content="", tools=[F]),
        called(call('{"b": 1, "a": [1,2,{"z":null}]}', index=0), tools=[F]),
        called(call({"b": 1, "a": [1, 2, {"z": None}]}), tools=[F]),
        called(call("not json"), tools=[F]),
        called(call("[1]")),
        called(call("null")),
        called(call('"text"')),
        called(call(""), content="x"),
        called(call(None)),
        called(call('{"a": NaN, "b": 1e400}')),
        called(call('{"a": 1, "a": 2}')),
        called(call("{}"), call('{"x": "é"}', id="c2"), content="both"),
        called({"function": {"arguments": "{}", "name": "f"}, "type": "function", "id": "c1"}),
        called({"id": "c1", "function": {"name": "f", "arguments": "{}"}}),
        called(call("{}", type="custom")),
        body(user(), assistant("x", tool_calls=[])),
        body(user(), assistant("x", tool_calls=None), user("y")),
        body(user("x", tool_calls=[call("{}")])),
    ],
    "tool_call_id": [
        body(user(), assistant(None, tool_calls=[call("{}")]), tool(tool_call_id="other")),
        body(user(), assistant(None, tool_calls=[call("{}")]), {"role": "tool", "content": "r"}),
        body(user(), tool(tool_call_id=None)),
        body(user(tool_call_id="c9")),
        called(call("{}"))
        | {
            "messages": [
                user(),
                assistant("x", tool_calls=[call("{}")]),
                tool([text("r1"), text("r2")], name="f"),
            ]
        },
        body(user(), tool([text("a"), {"type": "tool_reference", "name": "tr"}])),
        body(user(), tool([text("a"), text(""), text("b")])),
        body(user(), tool([])),
    ],
    "name": [
        body(user(name="bob")),
        body(user(name=""), assistant(name="al")),
        body(system("s") | {"name": "root"}, user()),
        body(user(name=None)),
    ],
    "reasoning": [
        body(user(), assistant(reasoning="think"), user("y")),
        body(user(), assistant(reasoning_content="think"), user("y")),
        body(user(), assistant(reasoning="a", reasoning_content="b"), user("y")),
        body(user(), assistant(reasoning=None, reasoning_content="b"), user("y")),
        body(user(), assistant(reasoning=""), user("y")),
        body(user(), assistant(reasoning_content=None), user("y")),
        body(user(reasoning="think")),
        body(
            user(),
            assistant(None, reasoning="think", tool_calls=[call("{}")]),
            tool(),
            tools=[F],
        ),
    ],
    "tools": [
        body(tools=[F]),
        body(tools=None),
        body(tools=[F, {"function": {"name": "g"}}]),
        body(
            tools=[
                {
                    "type": "function",
                    "function": {
                        "parameters": {"b": 1, "a": {}},
                        "name": "g",
                        "strict": True,
                        "zz": 1,
                    },
                    "q": 1,
                }
            ]
        ),
        body(tools=[{"type": "function", "defer_loading": True, "function": {"name": "g"}}]),
        body(tools=[{"function": {"name": "g", "defer_loading": False, "strict": None}}]),
        body(tools=[{"function": {"name": "g", "description": None, "parameters": None}}]),
        body(
            tools=[
                {"function": {"name": "g", "parameters": json.loads('{"é": [1.0, 1e-7, "<&>"]}')}}
            ]
        ),
    ],
    "tool_choice": [
        body(tools=[F], tool_choice="auto"),
        body(tools=[F], tool_choice="none"),
        body(tools=[F], tool_choice="required"),
        body(tools=[F], tool_choice=None),
        body(tools=[F], tool_choice={"type": "function", "function": {"name": "f"}}),
        body(tool_choice="none"),
        called(call("{}"), tools=[F], tool_choice="none"),
        body(tools=[F], parallel_tool_calls=False),
    ],
    "add_generation_prompt": [
        body(add_generation_prompt=True),
        body(add_generation_prompt=False),
        body(user(), assistant("I am"), add_generation_prompt=False),
    ],
    "continue_final_message": [
        body(user(), assistant("I am"), add_generation_prompt=False, continue_final_message=True),
        body(user(), assistant("I am  "), add_generation_prompt=False, continue_final_message=True),
        body(
            user(),
            assistant([text("I"), text(" am")]),
            add_generation_prompt=False,
            continue_final_message=True,
        ),
        body(user(), assistant("I am"), continue_final_message=True),
        body(user(), assistant(None), add_generation_prompt=False, continue_final_message=True),
        body(user(), assistant(""), add_generation_prompt=False, continue_final_message=True),
        body(user("Go"), add_generation_prompt=False, continue_final_message=True),
        body(
            user(),
            assistant("<think>\nwell", reasoning="r"),
            add_generation_prompt=False,
            continue_final_message=True,
        ),
        called(call("{}"), add_generation_prompt=False, continue_final_message=True),
    ],
    "reasoning_effort": [
        *(
            body(reasoning_effort=effort)
            for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", None)
        ),
        body(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}),
        body(reasoning_effort="none", chat_template_kwargs={"enable_thinking": None}),
        body(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"}),
    ],
    "documents": [
        body(documents=[{"title": "T", "text": "body"}]),
        body(documents=[]),
        body(documents=None),
        kwargs(documents=[{"title": "t", "text": "x"}]),
        body(
            documents=[{"title": "T", "text": "body"}],
            chat_template_kwargs={"documents": [{"title": "t", "text": "x"}]},
        ),
    ],
    "chat_template_kwargs": [
        body(chat_template_kwargs={}),
        body(chat_template_kwargs=None),
        kwargs(enable_thinking=True, reasoning_effort="high", foo=1, bos_token="B"),
        kwargs(add_generation_prompt=False, continue_final_message=True, thinking=True),
        kwargs(enable_thinking=False),
        kwargs(enable_thinking="auto", thinking=None),
        kwargs(tools=[F]),
        body(tools=[F], chat_template_kwargs={"tools": None}),
        body(tools=[F], chat_template_kwargs={"tools": [{"function": {"name": "own"}}]}),
        kwargs(namespace=1, range="x", dict=None, cycler=0, lipsum="x", joiner="x"),
        kwargs(strftime_now="x"),
        kwargs(raise_exception="x"),
        kwargs(padding=True, truncation=True, max_length=3, return_tensors="pt"),
        kwargs(return_dict=True, tokenizer_kwargs={"a": 1}),
        kwargs(return_assistant_tokens_mask=True),
        kwargs(return_assistant_tokens_mask=False),
        kwargs(messages=[]),
        kwargs(message="x", content="y", role="z", loop={"first": False}),
        kwargs(eos_token=None, bos_token=""),
        kwargs(custom_instructions="Be kind.", xml_tools=["a"], date_string="1 Jan 2020"),
    ],
    "chat_template": [
        body(chat_template="{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"),
        body(
            user([text("a"), text("b")]),
            chat_template="{% for m in messages %}{% for p in m.content %}<{{ p.text }}>"
            "{% endfor %}{% endfor %}",
        ),
        body(
            developer("d"),
            chat_template="{% for m in messages %}{{ m.role == 'developer' }}{% endfor %}",
        ),
    ],
    "Claude Code's header": [
        body(system(f"{HEADER}\nreal"), user()),
        body(system(HEADER), user()),
        body(system([text(HEADER), text("keep")]), user()),
        body(system([f"{HEADER}\na", text("b", cache_control={"type": "ephemeral"})]), user()),
        body(user(f"{HEADER}\nreal")),
        body(developer(f"{HEADER}\nreal"), user()),
    ],
    "fields without effect on the prompt": [
        body(include_reasoning=False),
        body(response_format={"type": "json_object"}),
        body(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}),
        body(structured_outputs={"regex": "a+"}),
        body(bad_words=["x"], logit_bias={"5": 1.0}, stop=["y"], stop_token_ids=[1]),
        body(echo=True, n=2, seed=1, user="u", logprobs=True, top_logprobs=2),
        body(use_beam_search=True, min_tokens=2, max_tokens=5, priority=1, request_id="r"),
        body(skip_special_tokens=False, spaces_between_special_tokens=False, ignore_eos=True),
        body(cache_salt="s", session_id="s", vllm_xargs={"a": 1}, return_prompt_text=True),
        body(thinking_token_budget=10, repetition_detection=None, stream_interval=2),
        body(stream=True, stream_options={"include_usage": True}, add_special_tokens=True),
        body(truncate_prompt_tokens=3, truncation_side="right", media_io_kwargs=None),
        body(functions=[F["function"]], function_call="auto", unknown={"a": 1}),
        body(kv_transfer_params={"do_remote_prefill": True}, mm_processor_kwargs=None),
    ],
}
