"""Which field of two bodies differs, and in what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_console.records.body_difference import MOST_DIFFERENCES, at_text, field_differences

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def _tool(name: str, **properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _first(left: dict[str, Any], right: dict[str, Any]) -> tuple[str, str]:
    found = field_differences(left, right)
    return found[0].field, found[0].kind


@pytest.mark.parametrize(
    ("left", "right", "field", "kind"),
    [
        (
            {"tools": [_tool("a"), _tool("b")]},
            {"tools": [_tool("b"), _tool("a")]},
            "tools",
            "tool-order",
        ),
        (
            {"tools": [_tool("a", x="1", y="2")]},
            {"tools": [_tool("a", y="2", x="1")]},
            "tools[0].function.parameters.properties",
            "key-order",
        ),
        ({"tools": [_tool("a")]}, {"tools": [_tool("a"), _tool("b")]}, "tools[1]", "growing-list"),
        (
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
            "template-argument",
        ),
        ({"reasoning_effort": "low"}, {}, "reasoning_effort", "template-argument"),
        ({"prompt": "at 07:16"}, {"prompt": "at 08:48"}, "prompt", "time"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a 1"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a 2"}]}]},
            "messages[0].content[0].text",
            "number",
        ),
    ],
)
def test_the_first_field_that_differs_is_named(
    left: dict[str, Any], right: dict[str, Any], field: str, kind: str
) -> None:
    assert _first(left, right) == (field, kind)
    assert _first(right, left)[1] == kind


def test_what_is_not_in_a_prompt_does_not_count() -> None:
    left = {"messages": [], "temperature": 0.0, "max_tokens": 3, "stream": True}

    assert not field_differences(left, {"messages": [], "temperature": 1.0})


def test_the_text_before_the_place_says_which_field_it_is() -> None:
    left = {
        "system": "It is 07:16 now.",
        "messages": [{"role": "user", "content": "file 12 of it"}],
    }
    right = {
        "system": "It is 08:48 now.",
        "messages": [{"role": "user", "content": "file 31 of it"}],
    }
    found = field_differences(left, right)

    by_text = at_text(found, "<|im_start|>user\nfile ")

    assert by_text is not None
    assert by_text.field == "messages[0].content"
    first = at_text(found, "")
    assert first is not None
    assert first.field == "system"


@given(JSON, JSON)
def test_any_two_bodies_can_be_compared(left: Any, right: Any) -> None:
    found = field_differences({"messages": left}, {"messages": right})

    assert len(found) <= MOST_DIFFERENCES
    if json.dumps(left) == json.dumps(right):
        assert not found


def test_deep_bodies_end() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]

    assert not field_differences({"messages": deep}, {"messages": [deep]})
