"""Conversations that nobody would write, for hypothesis: any role, content, call and tool."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Row = dict[str, Any]

# What templates look at, or that JSON, Jinja and tokenizers treat in a special way.
SPECIAL_TEXTS = (
    *("", " ", "\n", "  a\r\n\n\tb  \n", "Hi", "0", "None", "text", "content", "user"),
    *("<|im_end|>", "<s>", "</s>", "[INST] x [/INST]", "<think>\nwhy\n</think>\n\nso", "</think>"),
    *("<tool_call>", "{{ x }}", "{% if %}", "{# #}", "it's \"quoted\"", "back\\slash", "<é & 東>"),
    *('{"a": 1}', "[1, 2]", "a\u2028b", "👩‍👩‍👧 e\u0301", "العَرَبِيَّة", "CONTINUE_FINAL_MESSAGE_TAG "),
)  # fmt: skip

texts = st.sampled_from(SPECIAL_TEXTS) | st.text(max_size=12)
names = st.sampled_from(["f", "get_weather", "a b", "", "é", "type", "items", "content"])

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | names, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts | names, json_values, max_size=3)

parts = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda text, extra: {"type": "text", "text": text, **extra}, texts, json_objects),
    st.sampled_from(
        [{"type": "image"}, {"type": "tool_reference", "name": "f"}, {"type": "text"}, {}, "str"]
    ),
)
contents = texts | st.none() | st.lists(parts, max_size=3)

calls = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": names, "arguments": json_objects | json_objects.map(json.dumps)}
        )
    },
    optional={"id": texts, "type": st.just("function")},
)
roles = st.sampled_from(
    ["user", "user", "assistant", "assistant", "tool", "system", "developer", "ipython", "odd"]
)
messages: st.SearchStrategy[Row] = st.fixed_dictionaries(
    {"role": roles},
    optional={
        "content": contents,
        "tool_calls": st.lists(calls, max_size=2) | st.none(),
        "tool_call_id": texts,
        "name": names,
        "reasoning_content": texts | st.none(),
        "reasoning": texts,
        "thinking": texts,
        "items": json_values,
    },
)


def _turns(first: list[Row], spoken: list[Any]) -> list[Row]:
    """`spoken` by user and assistant in turn, as most templates demand."""
    roles = ("user", "assistant")
    return first + [{"role": roles[i % 2], "content": said} for i, said in enumerate(spoken)]


proper_conversations = st.builds(
    _turns,
    st.just([]) | texts.map(lambda text: [{"role": "system", "content": text}]),
    st.lists(texts | st.lists(parts, min_size=1, max_size=2), min_size=1, max_size=5),
)
conversations = proper_conversations | st.lists(messages, min_size=1, max_size=5)

properties = st.dictionaries(
    names,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "array", "object", ["string", "null"]])},
        optional={"description": texts, "enum": st.lists(texts, max_size=2), "items": json_objects},
    ),
    max_size=2,
)
functions = st.fixed_dictionaries(
    {"name": names},
    optional={
        "description": texts | st.none(),
        "parameters": st.builds(
            lambda inner: {"type": "object", "properties": inner, "required": [*inner][:1]},
            properties,
        )
        | json_values,
        "strict": st.booleans(),
    },
)
tools = st.none() | st.lists(
    st.builds(lambda function: {"type": "function", "function": function}, functions)
    | json_objects,
    max_size=2,
)
documents = st.none() | st.lists(
    st.fixed_dictionaries({"title": texts, "text": texts}) | json_objects, max_size=2
)
template_kwargs = st.dictionaries(
    st.sampled_from(
        [
            *("enable_thinking", "thinking", "reasoning_effort", "builtin_tools", "xml_tools"),
            *("date_string", "controls", "tools_in_user_message", "keep_past_thinking"),
            *("custom_instructions", "namespace", "range", "bos_token", "add_vision_id", "loop"),
        ]
    ),
    json_values,
    max_size=3,
)
