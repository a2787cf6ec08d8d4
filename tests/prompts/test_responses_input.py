"""A Responses body becomes the chat that vLLM makes of it, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.golden.prompts.responses_rules import RULES
from tests.prompts.conftest import RealTemplates

from inferway.errors import InferwayError, PromptTooLongError, RenderError, TemplateError
from inferway.model import Reason
from inferway.openai_api.requests import parse_responses
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.chat.conversation import chat_input
from inferway.prompts.chat.responses_input import as_chat, in_its_fields

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_responses.jsonl.gz"
RENDERED = [rule for rule in RULES if rule != "engine"]


@pytest.fixture(scope="module")
def golden_rows(read_golden: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_golden(GOLDEN)
    return rows


def chat_of(fields: dict[str, Any]) -> Any:
    return as_chat(parse_responses(msgspec.json.encode(fields)))


def rendered(fields: dict[str, Any], template: ChatTemplate, tokens: dict[str, str]) -> str | None:
    try:
        return template.render(chat_input(chat_of(fields), template, special_tokens=tokens))
    except InferwayError:
        return None


@pytest.mark.parametrize("rule", RENDERED)
def test_bodies_give_the_prompts_of_vllm_with_24_real_templates(
    rule: str, golden_rows: list[dict[str, Any]], real_templates: RealTemplates
) -> None:
    meta, _, *cases = golden_rows
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
    recorded = [(case["rule"], case["body"]) for case in golden_rows[2:]]

    assert recorded == [(rule, body) for rule in RULES for body in RULES[rule]]
    assert sum(v is not None for case in golden_rows[2:] for v in case["expected"].values()) > 2000


def test_text_is_tokenized_and_cut_as_vllm_does(golden_rows: list[dict[str, Any]]) -> None:
    for fields, expected in golden_rows[1]["cases"]:
        chat = chat_of(fields)

        assert expected == {
            "max_output_tokens": chat.max_completion_tokens or 0,
            "truncate_prompt_tokens": chat.truncate_prompt_tokens,
            "truncation_side": chat.truncation_side,
            "add_special_tokens": chat.add_special_tokens,
        }, fields


@pytest.mark.parametrize(
    "fields",
    [
        *RULES["engine"],
        {"model": "m", "input": [{"role": "robot", "content": "x"}]},
        {"model": "m", "input": [{"role": "user", "content": 5}]},
        {"model": "m", "input": [{"role": "user", "content": "x", "nick": "n"}]},
        {"model": "m", "input": "hi", "reasoning": {"effort": 3}},
    ],
)
def test_what_only_the_engine_renders_is_no_chat(fields: dict[str, Any]) -> None:
    with pytest.raises(RenderError) as e:
        chat_of(fields)

    assert e.value.reason == Reason.RESPONSE_ITEMS


def test_errors_of_the_chat_are_told_in_the_words_of_the_response() -> None:
    long = in_its_fields(PromptTooLongError("messages: 9 tokens", param="messages"))
    other = TemplateError("conversation roles must alternate")

    assert (str(long), long.param) == ("input: 9 tokens", "input")
    assert isinstance(long, PromptTooLongError)
    assert in_its_fields(other) is other
