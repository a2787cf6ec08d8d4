"""The form of content that a template wants, as vLLM detects it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.prompts.conftest import RealTemplates

from inferway.prompts.chat.chat_template import ChatTemplate

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_formats.json"

LOOP = "{% for m in messages %}BODY{% endfor %}"


def test_every_real_template_gets_the_form_that_vllm_gives_it(
    real_templates: RealTemplates,
) -> None:
    found = {id: template.content_format for id, template in real_templates.items()}

    assert found == json.loads(GOLDEN.read_text())


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
    assert ChatTemplate(source).content_format == "openai"


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
    assert ChatTemplate(source).content_format == "string"
