"""The form of content that a template wants, as vLLM detects it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.prompts.conftest import RealTemplates

from inferway.config import ModelSettings
from inferway.errors import RenderError
from inferway.openai_api.requests import ChatRequest
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.chat.conversation import NO_FLAGS, chat_input
from inferway.prompts.version_rules import VersionRules

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_formats.json"

LOOP = "{% for m in messages %}BODY{% endfor %}"


def test_every_real_template_gets_the_form_that_vllm_gives_it(
    real_templates: RealTemplates,
) -> None:
    found = {id: template.content_format for id, template in real_templates.items()}
    newer = {id: template.newer_format for id, template in real_templates.items()}

    assert found == newer == json.loads(GOLDEN.read_text())  # of 0.32, and of 0.33


@pytest.mark.parametrize(
    "source",
    [
        LOOP.replace("BODY", "{% for part in m['content'] %}{{ part.text }}{% endfor %}"),
        LOOP.replace("BODY", "{% for part in m.content | list %}{{ part.text }}{% endfor %}"),
        LOOP.replace("BODY", "{% for part in m.content[1:] %}{{ part.text }}{% endfor %}"),
        LOOP.replace("BODY", "{% set content = m.content %}{% for c in content %}{% endfor %}"),
        "{% set rest = messages[1:] %}{% for m in rest %}{% for c in m.content %}"
        "{% endfor %}{% endfor %}",
        "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
        + LOOP.replace("BODY", "{{ show(m.content) }}"),
        "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
        + LOOP.replace("BODY", "{{ show(c=m.content) }}"),
    ],
)
def test_a_loop_over_a_messages_content_asks_for_parts(source: str) -> None:
    template = ChatTemplate(source)

    assert template.content_format == template.newer_format == "openai"


@pytest.mark.parametrize(
    "source",
    [
        LOOP.replace("BODY", "{{ m.content }}"),
        "{{ messages[0].content }}",
        LOOP.replace("BODY", "{% for call in m.tool_calls %}{{ call }}{% endfor %}"),
        "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}" + LOOP,
        # vLLM gives up where messages are unpacked, whatever comes after.
        "{% for i, m in messages %}{% endfor %}"
        + LOOP.replace("BODY", "{% for part in m.content %}{% endfor %}"),
    ],
)
def test_everything_else_asks_for_text(source: str) -> None:
    template = ChatTemplate(source)

    assert template.content_format == template.newer_format == "string"


PARTS = "{% for m in ns.rest %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}"
IN_NAMESPACES = [
    "{% set ns = namespace(rest=messages) %}" + PARTS,
    "{% set ns = namespace() %}{% set ns.rest = messages[1:] %}" + PARTS,
    "{% set ns = namespace(all=messages) %}{% set ns.rest = ns.all %}" + PARTS,
]


@pytest.mark.parametrize("source", IN_NAMESPACES)
def test_messages_in_a_namespace_are_followed_since_0_33_alone(source: str) -> None:
    template = ChatTemplate(source)

    assert (template.content_format, template.newer_format) == ("string", "openai")


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        ([(0, 32)], "[hi]"),
        ([(0, 33), None], "[{'type': 'text', 'text': 'hi'}]"),
        ([None], "[hi]"),
    ],
)
def test_a_chat_is_rendered_by_the_rules_of_its_engines_version(
    versions: list[tuple[int, int] | None], shown: str
) -> None:
    template = ChatTemplate(IN_NAMESPACES[0] + "[{{ messages[0].content | string }}]")
    wanted = VersionRules.of(versions).content_format(NO_FLAGS, template)
    chat = ChatRequest(messages=[{"role": "user", "content": "hi"}])

    assert shown in template.render(chat_input(chat, template, wanted))


def test_engines_of_both_versions_have_no_one_prompt_of_such_a_template() -> None:
    template, rules = ChatTemplate(IN_NAMESPACES[0]), VersionRules.of([(0, 32), (0, 33)])
    given = ModelSettings(chat_template_content_format="openai")

    with pytest.raises(RenderError, match="give it as chat_template_content_format"):
        rules.content_format(NO_FLAGS, template)
    assert rules.content_format(given, template) == "openai"
