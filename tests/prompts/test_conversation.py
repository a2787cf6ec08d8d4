"""A chat body becomes the conversation that vLLM's chat endpoint makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.golden.prompts.chat_rules import RULES
from tests.prompts.conftest import RealTemplates

from inferway.config import ModelSettings
from inferway.errors import InferwayError, InvalidRequestError, RenderError
from inferway.openai_api.requests import ChatRequest, parse_chat
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.chat.conversation import (
    chat_input,
    conversation,
    forwarded_ids,
    sees_tools,
    template_arguments,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_chats.jsonl.gz"
NUM_DRAWN = 160

TEXT = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
PARTS = ChatTemplate(
    "{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}"
)


def body(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=list(messages), **fields)


def user(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def request(*messages: dict[str, Any], **fields: Any) -> ChatInput:
    return chat_input(body(*messages or (user(),), **fields), TEXT)


@pytest.fixture(scope="module")
def golden_rows(read_golden: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_golden(GOLDEN)
    return rows


@pytest.fixture(scope="module")
def templates(
    golden_rows: list[dict[str, Any]], real_templates: RealTemplates
) -> dict[str, ChatTemplate]:
    return {id: real_templates[id] for id in golden_rows[0]["meta"]["templates"]}


@pytest.mark.parametrize("rule", [*RULES, "drawn"])
def test_bodies_give_the_prompts_of_vllm_with_24_real_templates(
    rule: str, golden_rows: list[dict[str, Any]], templates: dict[str, ChatTemplate]
) -> None:
    meta, *cases = golden_rows
    tokens = meta["meta"]["special_tokens"]
    misses = []

    for case in cases:
        # What vLLM refuses before it renders, it will refuse, whatever we make of it.
        if case["rule"] == rule and case["valid"]:
            misses += [
                (case["body"], id)
                for id, expected in case["expected"].items()
                if rendered(case["body"], templates[id], tokens) != expected
            ]

    assert misses == []


def rendered(fields: dict[str, Any], template: ChatTemplate, tokens: dict[str, str]) -> str | None:
    asked = as_chat(fields)
    if asked.chat_template is not None:
        template = ChatTemplate(asked.chat_template)
    try:
        return template.render(chat_input(asked, template, special_tokens=tokens))
    except InferwayError:
        return None


def test_each_rule_is_asked_as_often_as_it_was_recorded(golden_rows: list[dict[str, Any]]) -> None:
    recorded = [(case["rule"], case["body"]) for case in golden_rows[1:]]

    assert recorded[:-NUM_DRAWN] == [(rule, body) for rule in RULES for body in RULES[rule]]
    assert {rule for rule, _ in recorded[-NUM_DRAWN:]} == {"drawn"}


def as_chat(fields: dict[str, Any]) -> ChatRequest:
    return parse_chat(json.dumps(fields).encode())


def test_text_templates_get_parts_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, "b"]

    assert conversation([user(parts)], TEXT) == [user("a\nb")]


def test_part_templates_get_text_as_one_part() -> None:
    assert conversation([user("a")], PARTS) == [user([{"type": "text", "text": "a"}])]


def test_part_templates_get_unknown_fields_of_a_part_too() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}

    assert conversation([user([part])], PARTS) == [user([part])]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "input_audio", "input_audio": {}},
        {"image_url": "http://x"},
        {"type": "text", "text": "a", "uuid": "u"},
    ],
)
def test_a_part_that_is_not_text_is_beyond_us(part: dict[str, Any]) -> None:
    with pytest.raises(RenderError, match=r"messages\[0\].content") as e:
        request(user([{"type": "text", "text": "look"}, part]))

    assert e.value.reason == "media"


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"b": 1, "a": null}', {"b": 1, "a": None}),
        ({"b": 1}, {"b": 1}),
        ("", {}),
        (None, {}),
        ("{broken", {}),
        ("[1]", {}),
        (7, {}),
    ],
)
def test_a_template_sees_tool_arguments_as_an_object(arguments: Any, seen: Any) -> None:
    [message] = conversation([call(arguments)], TEXT)

    assert message["tool_calls"][0]["function"]["arguments"] == seen


def test_the_clients_message_is_left_as_it_came() -> None:
    message = call('{"a": 1}')
    before = json.dumps(message)

    conversation([message], TEXT)

    assert json.dumps(message) == before


@pytest.mark.parametrize("calls", ["x", ["x"], [{"function": "x"}], [{"type": "custom"}]])
def test_tool_calls_that_vllm_refuses_name_their_message(calls: Any) -> None:
    with pytest.raises(InvalidRequestError) as e:
        conversation([user(), {"role": "assistant", "tool_calls": calls}], TEXT)

    assert e.value.param == "messages[1].tool_calls"


def test_reasoning_has_two_names() -> None:
    given = {"role": "assistant", "content": "x", "reasoning_content": "r"}

    [message] = conversation([given], TEXT)

    assert (message["reasoning"], message["reasoning_content"]) == ("r", "r")


def test_developer_messages_become_one_system_message_where_the_template_knows_none() -> None:
    messages = [user(), {"role": "developer", "content": "a"}, {"role": "system", "content": "b"}]

    assert conversation(messages, TEXT) == [{"role": "system", "content": "a\n\nb"}, user()]


def test_developer_messages_stay_where_the_template_knows_them() -> None:
    template = ChatTemplate("{% if messages[0].role == 'developer' %}{% endif %}")

    [message] = conversation([{"role": "developer", "content": "a"}], template)

    assert message == {"role": "developer", "content": "a", "tools": None}


def test_a_generation_prompt_is_added_unless_refused() -> None:
    asked = [request(), request(add_generation_prompt=False)]

    assert [one.add_generation_prompt for one in asked] == [True, False]


def test_a_bodys_own_fields_win_over_chat_template_kwargs() -> None:
    asked = request(
        reasoning_effort="low",
        chat_template_kwargs={"reasoning_effort": "high", "add_generation_prompt": False, "x": 1},
    )

    assert asked.add_generation_prompt is True
    assert asked.variables == {
        "reasoning_effort": "low", "x": 1, "enable_thinking": True
    }  # fmt: skip


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("minimal", True)])
def test_reasoning_effort_turns_thinking_on(effort: str, thinks: bool) -> None:
    asked = request(reasoning_effort=effort)

    assert asked.variables == {"reasoning_effort": effort, "enable_thinking": thinks}


def test_tools_stay_with_tool_choice_none() -> None:
    tool = {"type": "function", "function": {"name": "f"}}

    assert request(tools=[tool], tool_choice="none").tools is not None


def test_tools_are_written_with_known_fields_in_vllms_order() -> None:
    tool = {"function": {"parameters": {"z": 1}, "x": 1, "name": "f", "strict": True}, "y": 2}

    asked = request(tools=[tool])

    assert json.dumps(asked.tools) == json.dumps(
        [
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": None,
                    "parameters": {"z": 1},
                    "strict": True,
                },
            }
        ]
    )


@pytest.mark.parametrize(
    ("effort", "mapped", "thinks"),
    [("medium", "low", True), ("high", "none", False), ("max", "max", True)],
)
def test_an_effort_is_the_one_that_the_engine_makes_of_it(
    effort: str, mapped: str, thinks: bool
) -> None:
    flags = ModelSettings(reasoning_effort_map={"medium": "low", "high": "none"})
    arguments = template_arguments(ChatRequest(messages=[], reasoning_effort=effort), flags)

    assert (arguments["reasoning_effort"], arguments["enable_thinking"]) == (mapped, thinks)


def test_a_tool_without_a_name_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidRequestError) as e:
        request(tools=[{"type": "function", "function": {}}])

    assert e.value.param == "tools[0].function.name"


def test_claude_codes_changing_header_is_dropped() -> None:
    system = {"role": "system", "content": "x-anthropic-billing-header: cch=1\nBe kind."}

    assert conversation([system], TEXT) == [{"role": "system", "content": "Be kind."}]


FORWARDED = {"kv_transfer_params": {"prompt_token_ids": [5, 6, 7]}}


def test_ids_that_a_request_carries_are_its_prompt() -> None:
    assert forwarded_ids(body(user(), **FORWARDED)) == [5, 6, 7]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"kv_transfer_params": {"prompt_token_ids": None}},
        {**FORWARDED, "echo": True},
    ],
)
def test_without_them_the_messages_are_the_prompt(fields: dict[str, Any]) -> None:
    assert forwarded_ids(body(user(), **fields)) is None


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "a", "image_url": 1}]
)
def test_ids_do_not_stand_for_media(part: dict[str, Any]) -> None:
    assert forwarded_ids(body(user([part]), **FORWARDED)) is None


@pytest.mark.parametrize("ids", [[], "x", [1, -1], [True], [1.0], {"a": 1}])
def test_ids_that_are_none_are_refused(ids: Any) -> None:
    with pytest.raises(InvalidRequestError) as e:
        forwarded_ids(body(user(), kv_transfer_params={"prompt_token_ids": ids}))

    assert e.value.param == "kv_transfer_params.prompt_token_ids"


@pytest.mark.parametrize("name", ["conversation", "tokenizer", "model_config"])
def test_arguments_of_the_call_itself_are_not_for_requests_to_give(name: str) -> None:
    with pytest.raises(InvalidRequestError) as e:
        request(chat_template_kwargs={name: 1})

    assert e.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("others", [{"truncation": True}, {"max_length": 3}])
def test_tokenization_by_the_template_call_is_not_followed(others: dict[str, Any]) -> None:
    with pytest.raises(RenderError):
        request(chat_template_kwargs={"tokenize": True, **others})


@pytest.mark.parametrize(
    ("fields", "flags", "sees"),
    [
        ({}, {}, False),
        ({"tools": [{}]}, {}, True),
        ({"tools": [{}], "tool_choice": "none"}, {}, True),
        (
            {"tools": [{}], "tool_choice": "none"},
            {"exclude_tools_when_tool_choice_none": True},
            False,
        ),
        ({"chat_template_kwargs": {"tools": [{}]}}, {}, True),
        ({"chat_template_kwargs": {"tools": None}}, {}, False),
        (
            {"chat_template_kwargs": {"tools": "auto"}},
            {"chat_template_kwargs": {"tools": []}},
            True,
        ),
    ],
)
def test_any_tools_decide_for_the_template_for_tools(
    fields: dict[str, Any], flags: dict[str, Any], sees: bool
) -> None:
    assert sees_tools(body(user(), **fields), ModelSettings(**flags)) is sees


@pytest.mark.parametrize(
    "odd",
    [
        {"content": "b", "role": "user"},  # templates may see the order
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": "b", "unknown": 1},
        {"role": "assistant", "content": None},
        {"role": "developer", "content": "b"},
    ],
)
def test_one_odd_message_among_plain_ones_is_looked_at_as_if_alone(odd: dict[str, Any]) -> None:
    plain = [user(str(n)) for n in range(5)]

    together = conversation([*plain, odd, *plain], TEXT)

    apart = conversation([user("first"), odd], TEXT)
    if odd["role"] == "developer":  # becomes the system's, and that is first
        assert together == [apart[0], *plain, *plain]
    else:
        assert together == [*plain, apart[1], *plain]
        assert list(together[5]) == ["role", "content"]


def test_plain_messages_are_what_vllm_makes_of_them_one_by_one() -> None:
    messages = [user(str(n)) if n % 2 else {"role": "assistant", "content": "a"} for n in range(9)]

    assert conversation(messages, TEXT) == [conversation([m], TEXT)[0] for m in messages]
    assert conversation(messages, PARTS) == [conversation([m], PARTS)[0] for m in messages]
