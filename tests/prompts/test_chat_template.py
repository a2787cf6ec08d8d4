"""Templates render as transformers renders them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.prompts.conftest import RealTemplates
from tests.stored import template_goldens, upstream_render_cases

from inferway.errors import HeavyError, RenderError, TemplateError
from inferway.prompts.chat.chat_template import MAX_REASON_CHARS, ChatInput, ChatTemplate

Row = dict[str, Any]

HI = [{"role": "user", "content": "Hi"}]


def chat(data: Row, **variables: Any) -> ChatInput:
    """A case of the shared data: what is no argument is a variable."""
    named = {k: data[k] for k in ("messages", "tools", "documents") if k in data}
    prompt = data.get("add_generation_prompt", False)
    others = {k: v for k, v in data.items() if k not in named and k != "add_generation_prompt"}
    return ChatInput(**named, add_generation_prompt=prompt, variables={**variables, **others})


def render(source: str, messages: list[Row] = HI, **variables: Any) -> str:
    return ChatTemplate(source).render(ChatInput(messages, variables=variables))


@pytest.fixture(scope="module")
def goldens() -> list[Row]:
    return template_goldens()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        *("user", "system_user", "multi", "system_multi_i18n", "no_generation_prompt"),
        *("tools", "tool_roundtrip", "content_parts", "thinking_off"),
    ],
)
def test_every_real_template_gives_the_text_of_transformers(
    case: str, goldens: list[Row], real_templates: RealTemplates
) -> None:
    meta = goldens[0]["meta"]
    tokens = {"bos_token": meta["bos_token"], "eos_token": meta["eos_token"]}
    misses, num_heavy = [], 0

    for golden in goldens[1:]:
        conversation = chat(meta["cases"][case], **tokens)
        try:
            text = real_templates[golden["id"]].render(conversation)
        except TemplateError:
            text = None
        except HeavyError:
            num_heavy += 1
            continue
        if text != golden["outputs"][case].get("text"):
            misses.append(golden["id"])

    assert misses == []
    assert num_heavy <= 1  # it calls `str.format`


def test_upstream_cases_miss_only_where_transformers_misses() -> None:
    cases = upstream_render_cases()
    missed = []

    for case in cases:
        now = datetime.fromisoformat(case.get("now") or "2025-07-10T12:00:00")
        template = ChatTemplate(case["chat_template"], now=lambda now=now: now)  # type: ignore[misc]
        try:
            text = template.render(chat(case["data"]))
        except TemplateError:
            text = None
        if text != case["target"]:
            missed.append(case["name"])

    assert missed == [case["name"] for case in cases if case["transformers_check"] != "exact"]


SEED_CHAT = [
    {"role": "user", "content": "What's 2+2?"},
    {"role": "assistant", "content": "Let me calculate that."},
    {"role": "user", "content": "Thanks!"},
]
SEED_LINES = [
    "{% for message in messages %}",
    "{% if message['role'] == 'user' %}",
    "{{ '<s>[INST] ' + message['content'] + ' [/INST]' }}",
    "{% elif message['role'] == 'assistant' %}",
    "{{ message['content'] + '</s>' }}",
    "{% endif %}",
    "{% endfor %}",
]


def test_the_template_of_seed_000_on_one_line_gives_its_flattened_prompt() -> None:
    text = render("".join(SEED_LINES), SEED_CHAT)

    assert text == (
        "<s>[INST] What's 2+2? [/INST]Let me calculate that.</s><s>[INST] Thanks! [/INST]"
    )


def test_the_template_of_seed_000_on_lines_gives_a_newline_behind_each_message() -> None:
    text = render("\n".join(SEED_LINES), SEED_CHAT)

    assert text == (
        "<s>[INST] What's 2+2? [/INST]\nLet me calculate that.</s>\n<s>[INST] Thanks! [/INST]\n"
    )


def test_tojson_keeps_html_and_other_scripts_as_they_are() -> None:
    assert render("{{ x | tojson }}", x={"b": "<é & 東>", "a": 1}) == '{"b": "<é & 東>", "a": 1}'


def test_tojson_takes_indent_separators_and_order() -> None:
    source = "{{ x | tojson(indent=1, separators=(',', ':'), sort_keys=true) }}"

    assert render(source, x={"b": 1, "a": 2}) == '{\n "a":2,\n "b":1\n}'


def test_loops_may_be_left_early() -> None:
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )


def test_a_day_after_midnight_is_another_day() -> None:
    moments = iter([datetime(2024, 7, 26, 23, 59, 59), datetime(2024, 7, 27)])
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: next(moments))

    texts = [template.render(ChatInput(HI)) for _ in range(2)]

    assert (texts, template.reads_clock) == (["26 Jul 2024", "27 Jul 2024"], True)


@pytest.mark.parametrize(
    "source",
    [
        "{% if x %}{{ strftime_now('%d') }}{% endif %}",
        "{% set now = strftime_now %}{{ now('%d') }}",
        "{% macro day() %}{{ strftime_now('%d') }}{% endmacro %}{{ day() }}",
        "{{ ['%d'] | map(strftime_now) | list }}",
        "{% generation %}{{ strftime_now('%d') }}{% endgeneration %}",
    ],
)
def test_whoever_hands_the_clock_on_reads_it(source: str) -> None:
    assert ChatTemplate(source).reads_clock


def test_a_template_that_only_speaks_of_the_clock_does_not_read_it() -> None:
    assert not ChatTemplate("{# strftime_now #}{{ 'strftime_now' }}").reads_clock


def test_a_variable_may_stand_in_for_the_clock() -> None:
    assert render("{{ strftime_now('%d') }}", strftime_now=str.upper) == "%D"


def test_what_is_given_under_no_name_of_the_template_changes_nothing() -> None:
    assert render("{{ x }}", x=1, y=2) == "1"


def test_a_template_that_refuses_gives_its_own_reason() -> None:
    with pytest.raises(TemplateError, match="refuses these messages: Roles must alternate!") as e:
        render("{{ raise_exception('Roles must alternate!') }}")

    assert e.value.param == "messages"


def test_a_long_reason_is_cut() -> None:
    with pytest.raises(TemplateError) as e:
        render("{{ raise_exception('x' * 9999) }}")

    assert str(e.value).count("x") == MAX_REASON_CHARS


def test_a_template_that_fails_does_not_quote_the_conversation() -> None:
    secret = [{"role": "user", "content": "my password"}]

    with pytest.raises(TemplateError) as e:
        render("{{ {}[messages[0].content].x }}", secret)

    assert str(e.value) == "the model's chat template fails on these messages: UndefinedError"


def test_a_source_that_is_no_template_is_our_trouble_not_the_clients() -> None:
    with pytest.raises(RenderError, match="does not compile") as e:
        ChatTemplate("{% for %}")

    assert e.value.reason == "bad-template"


def test_a_variable_cannot_replace_the_messages() -> None:
    with pytest.raises(TemplateError, match="'messages' is given already"):
        ChatTemplate("{{ messages }}").render(ChatInput(HI, variables={"messages": []}))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].environ }}",
        "{{ '{0.__class__.__mro__}'.format('x') }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises((TemplateError, HeavyError)):
        render(source)
    with pytest.raises(TemplateError):
        ChatTemplate(source, bounded=False).render(ChatInput(HI))


MARKED = "{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endfor %}"


def test_generation_blocks_are_found_in_the_text() -> None:
    messages = [{"role": "assistant", "content": "ab"}, {"role": "assistant", "content": "cde"}]

    text, spans = ChatTemplate(MARKED).render_with_spans(ChatInput(messages))

    assert (text, [text[start:end] for start, end in spans]) == ("[ab][cde]", ["ab", "cde"])


def test_generation_blocks_are_text_when_nobody_asks() -> None:
    assert render(MARKED) == "[Hi]"


CONTINUED = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
STRIPPING = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"


def continue_final(source: str, content: Any) -> str:
    request = ChatInput(
        [*HI, {"role": "assistant", "content": content}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    return ChatTemplate(source).render(request)


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (CONTINUED, "I am ", "<Hi><I am "),
        (STRIPPING, "I am ", "<Hi><I am"),
        ("{% for m in messages %}{{ m.content[-1].text or m.content }}|{% endfor %}",
         [{"type": "text", "text": "I"}, {"type": "text", "text": "am"}], "Hi|am"),
    ],
)  # fmt: skip
def test_a_continued_message_stays_open(source: str, content: Any, text: str) -> None:
    assert continue_final(source, content) == text


@pytest.mark.parametrize(
    ("source", "content", "why"),
    [
        (CONTINUED, None, "no text to continue"),
        (CONTINUED, [{"type": "image"}], "no text to continue"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "I", "does not show"),
        ("{{ messages[0].content }}", "I", "drops or changes"),
        (CONTINUED, [{"type": "text", "text": None}], "no text to continue"),
        (CONTINUED, ["some text"], "no text to continue"),
    ],
)
def test_a_message_that_cannot_be_continued_names_the_field(
    source: str, content: Any, why: str
) -> None:
    with pytest.raises(TemplateError, match=why) as e:
        continue_final(source, content)

    assert e.value.param == "continue_final_message"


def test_another_field_than_the_content_can_be_continued() -> None:
    request = ChatInput(
        [*HI, {"role": "assistant", "content": "", "thinking": "Well, "}],
        add_generation_prompt=False,
        continue_final_message="thinking",
    )

    text = ChatTemplate("{% for m in messages %}<{{ m.thinking }}>{% endfor %}").render(request)

    assert text == "<><Well, "


def test_a_message_is_not_continued_and_answered_at_once() -> None:
    with pytest.raises(TemplateError, match="add_generation_prompt"):
        ChatTemplate(CONTINUED).render(ChatInput(HI, continue_final_message=True))
