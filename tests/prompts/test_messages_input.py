"""A body of messages becomes the chat that vLLM makes of it, and its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.golden.prompts.messages_rules import CLAUDE_CODE, RULES, body
from tests.prompts.conftest import RealTemplates
from tests.prompts.messages import found_in, rendered

from inferway.errors import RenderError
from inferway.model import Reason
from inferway.openai_api.requests import parse_count_tokens, parse_messages
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.chat.messages_input import MessageRules, as_chat, with_written_arguments

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_messages.jsonl.gz"
RENDERED = [rule for rule in RULES if rule not in ("images", "refused")]


@pytest.fixture(scope="module")
def golden_rows(read_golden: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_golden(GOLDEN)
    return rows


def chat_of(fields: dict[str, Any], *, merge: bool = False) -> Any:
    parsed = parse_messages(msgspec.json.encode(fields))
    return as_chat(parsed, merge_inline_system=merge, no_thinking_effort="none")


@pytest.mark.parametrize("rule", RENDERED)
def test_bodies_give_the_prompts_of_vllm_with_24_real_templates(
    rule: str, golden_rows: list[dict[str, Any]], real_templates: RealTemplates
) -> None:
    meta, *cases = golden_rows
    tokens = meta["meta"]["special_tokens"]

    misses = [
        (case["body"], id)
        for case in cases
        if case["rule"] == rule
        for id, expected in case["expected"].items()
        if rendered(case["body"], real_templates[id], tokens) != expected
    ]

    assert misses == []


def test_each_rule_is_asked_as_often_as_it_was_recorded(golden_rows: list[dict[str, Any]]) -> None:
    recorded = [(case["rule"], case["body"]) for case in golden_rows[1:]]

    assert recorded == [(rule, body) for rule in RULES for body in RULES[rule]]
    assert sum(v is not None for case in golden_rows[1:] for v in case["expected"].values()) > 1700


@pytest.mark.parametrize("merge", [False, True])
def test_the_chat_is_vllms_own(golden_rows: list[dict[str, Any]], merge: bool) -> None:
    names = ("messages", "tools", "reasoning_effort", "chat_template_kwargs", "max_tokens")
    for case in golden_rows[1:]:
        if case["rule"] == "refused":
            continue
        made = with_written_arguments(chat_of(case["body"], merge=merge))
        ours = {name: getattr(made, name) for name in names if getattr(made, name) is not None}

        assert ours == without_lax_flags(case["chats"][merge]), case["body"]


def without_lax_flags(chat: dict[str, Any]) -> dict[str, Any]:
    """Tools as they are before vLLM's model of them has converted `strict`, and with its nulls."""
    names = ("name", "description", "parameters", "strict", "defer_loading")
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {name: tool["function"].get(name) for name in names}}
        for tool in chat.get("tools", ())
    ]
    for tool in tools:
        if tool["function"]["name"] == "h" and tool["function"]["strict"] is True:
            tool["function"]["strict"] = "yes"
    return {**chat, **({"tools": tools} if "tools" in chat else {})}


def test_templates_are_found_to_do_what_vllm_finds(
    golden_rows: list[dict[str, Any]], real_templates: RealTemplates
) -> None:
    meta = golden_rows[0]["meta"]
    theirs = {name: tuple(found) for name, found in meta["found"].items()}
    ours = {name: found_in(real_templates[name], meta["special_tokens"]) for name in theirs}

    assert ours == theirs
    assert {merges for merges, _ in theirs.values()} == {True, False}
    assert {effort for _, effort in theirs.values()} == {"none", "low"}


@pytest.mark.parametrize("fields", RULES["refused"])
def test_what_engines_refuse_is_no_chat(fields: dict[str, Any]) -> None:
    with pytest.raises(RenderError) as e:
        chat_of(fields)

    assert e.value.reason == Reason.MESSAGE_BLOCKS


def test_vllm_refuses_it_but_for_what_it_names_by_its_clock(
    golden_rows: list[dict[str, Any]],
) -> None:
    taken = [
        c["body"]["messages"] for c in golden_rows[1:] if c["rule"] == "refused" and c["chats"][0]
    ]

    named_by_clock = [{"type": "tool_use", "name": "f", "input": {}}]
    assert taken[0][1]["content"] == named_by_clock
    assert taken[1:] == [[]]  # and no messages at all, which no template takes


def test_a_count_has_the_chat_of_its_messages_and_no_answer() -> None:
    whole = parse_messages(msgspec.json.encode(CLAUDE_CODE))
    counted = parse_count_tokens(msgspec.json.encode(CLAUDE_CODE))
    made = as_chat(counted, merge_inline_system=False, no_thinking_effort="none")

    chat = as_chat(whole, merge_inline_system=False, no_thinking_effort="none")

    assert made.max_tokens is made.stream is None
    assert msgspec.structs.replace(chat, max_tokens=None, stream=None) == made


def test_what_decides_the_routing_stays() -> None:
    fields = {
        "cache_salt": "s",
        "max_tokens": 7,
        "kv_transfer_params": {"prompt_token_ids": [1]},
        "vllm_xargs": {"a": 1},
        "stream": True,
    }

    chat = chat_of(body(**fields))

    assert {name: getattr(chat, name) for name in fields} == fields


def test_a_model_without_template_merges() -> None:
    assert MessageRules([], lambda _: "").merges_inline_system()


def test_one_of_two_templates_that_refuses_is_enough() -> None:
    takes = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    refuses = ChatTemplate(
        "{% if messages[2].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    )
    rules = MessageRules([takes, refuses], lambda _: "")

    assert rules.merges_inline_system()
    assert not MessageRules([takes], lambda _: "").merges_inline_system()


@pytest.mark.parametrize(
    ("source", "refuses"),
    [
        ("{{ messages[2].content }}", False),
        ("{{ bos_token }}{% generation %}a{% endgeneration %}", True),  # no tag of Jinja's own
        ("{{ bos_token + messages[0].content }}", True),
        ("{{ strftime_now('%Y') }}", True),
        ("{% if strftime_now is defined %}{{ raise_exception('a') }}{% endif %}", False),
        ("{% if tools %}{{ raise_exception('a') }}{% endif %}", False),
        ("{{ messages[2].content | tojson }}", False),
        (
            "{% for m in messages %}{% if loop.index0 and m.role == 'system' %}{{ m.a.b }}"
            "{% endif %}{% endfor %}",
            True,
        ),
        ("{% for _ in range(99999) %}{% for _ in range(99999) %}{% endfor %}{% endfor %}", None),
        ("{% block a %}{% endblock %}", None),  # not rendered in this process
        ("{{ 1 // 0 }}", None),  # vLLM does not start
    ],
)
def test_whether_a_template_refuses_a_later_system_message(
    source: str, refuses: bool | None
) -> None:
    assert ChatTemplate(source).refuses_inline_system is refuses


def test_what_cannot_be_told_is_no_prompt_of_ours() -> None:
    untold = ChatTemplate("{% block a %}{% endblock %}")

    with pytest.raises(RenderError, match="is not known") as e:
        MessageRules([untold], lambda _: "").merges_inline_system()

    assert e.value.reason == Reason.MESSAGE_BLOCKS


def test_the_effort_of_no_thinking_is_found_out_once() -> None:
    asked: list[str | None] = []

    def render(chat: Any) -> str:
        asked.append(chat.reasoning_effort)
        return str(chat.reasoning_effort == "none")

    rules = MessageRules([], render)

    assert [rules.find_no_thinking_effort(), rules.find_no_thinking_effort()] == ["none", "none"]
    assert asked == ["none", "low", "medium", "high", "xhigh", "max"]
