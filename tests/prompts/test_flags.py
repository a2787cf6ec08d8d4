"""Flags of engines that shape prompts: what we make of them is what vLLM makes of them."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.stored import templates

from inferway.config import ModelSettings
from inferway.errors import InferwayError, RenderError
from inferway.model import Reason
from inferway.openai_api.requests import ChatRequest, CompletionRequest
from inferway.prompts import ModelPrompts, Renderer
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.chat.conversation import asked_template, chat_input

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_flags.jsonl.gz"

SHOUT = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
HI = ChatRequest(model="m", messages=[{"role": "user", "content": "hi"}])


def test_22_bodies_give_the_prompts_of_vllm_under_7_sets_of_flags(read_golden: Any) -> None:
    head, *cases = read_golden(GOLDEN)
    flags = msgspec.convert(head["flags"], list[ModelSettings])
    sources = {t["id"]: t["chat_template"] for t in templates()}
    compared, misses = 0, []

    for number, case in enumerate(cases):
        body = msgspec.convert(case["body"], ChatRequest)
        for id, expected in case["expected"].items():
            for given, text in zip(flags, expected, strict=True):
                compared += 1
                if rendered(body, sources[id], given, head["special_tokens"]) != text:
                    misses.append((number, id, given))

    assert misses == []
    assert compared == 22 * 12 * 7


def rendered(
    body: ChatRequest, source: str, flags: ModelSettings, tokens: dict[str, str]
) -> str | None:
    template = compiled(flags.chat_template or source)
    try:
        return template.render(chat_input(body, template, flags=flags, special_tokens=tokens))
    except InferwayError:
        return None


compiled = cache(ChatTemplate)


def text_of(prompts: ModelPrompts, body: ChatRequest = HI) -> str:
    return asyncio.run(prompts.render_chat(body)).text


def test_a_template_is_read_from_a_file(
    renderer: Renderer, smollm2_key: str, tmp_path: Path
) -> None:
    path = tmp_path / "shout.jinja"
    path.write_text(SHOUT)

    prompts = ModelPrompts(renderer, smollm2_key, flags=ModelSettings(chat_template=str(path)))

    assert text_of(prompts) == prompts.rendered_text(HI) == "HI"


def test_a_template_is_given_as_jinja_itself(renderer: Renderer, smollm2_key: str) -> None:
    prompts = ModelPrompts(renderer, smollm2_key, flags=ModelSettings(chat_template=SHOUT))

    assert text_of(prompts) == "HI"


def test_a_template_of_the_models_own_is_given_by_name(
    renderer: Renderer, smollm2_key: str
) -> None:
    prompts = ModelPrompts(renderer, smollm2_key, flags=ModelSettings(chat_template="default"))

    assert text_of(prompts) == text_of(ModelPrompts(renderer, smollm2_key))


def test_a_template_that_cannot_be_had_is_named(renderer: Renderer, smollm2_key: str) -> None:
    with pytest.raises(RenderError) as e:
        ModelPrompts(renderer, smollm2_key, flags=ModelSettings(chat_template="no.jinja"))

    assert e.value.reason == Reason.BAD_TEMPLATE
    assert "chat_template 'no.jinja': no such file" in str(e.value)
    assert "the model's own templates are ['default']" in str(e.value)


def test_a_template_that_is_no_jinja_is_refused(renderer: Renderer, smollm2_key: str) -> None:
    with pytest.raises(RenderError, match="does not compile"):
        ModelPrompts(renderer, smollm2_key, flags=ModelSettings(chat_template="{% if %}"))


def test_the_engines_template_wins_over_one_among_a_requests_arguments() -> None:
    body = msgspec.structs.replace(HI, chat_template_kwargs={"chat_template": "{{ 1 }}"})

    assert asked_template(body, ModelSettings()) == "{{ 1 }}"
    assert asked_template(body, ModelSettings(chat_template=SHOUT)) is None


def test_completions_have_nothing_to_do_with_templates(
    renderer: Renderer, smollm2_key: str
) -> None:
    flags = ModelSettings(chat_template=SHOUT, chat_template_content_format="openai")

    prompts = ModelPrompts(renderer, smollm2_key, flags=flags)

    ids = asyncio.run(prompts.tokenize(CompletionRequest(model="m", prompt="The"))).token_ids

    assert [each.tolist() for each in ids] == [[504]]
