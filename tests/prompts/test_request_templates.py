"""Templates that requests bring: what they can do, and that it is nothing to anybody else."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests import stored
from tests.prompts.escapes import CHANGING, HARMLESS, NOTHING, REFUSED

from inferway.config import ModelSettings
from inferway.errors import (
    HeavyError,
    InferwayError,
    InvalidRequestError,
    RenderError,
    TemplateError,
)
from inferway.model import Reason
from inferway.openai_api.requests import ChatRequest
from inferway.prompts import ModelPrompts, Renderer
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.chat.conversation import asked_template, chat_input
from inferway.prompts.chat.helper_templates import (
    MAX_TEMPLATE_CHARS,
    RequestTemplates,
)
from inferway.prompts.chat.template_jobs import pack
from inferway_structured.sandbox.process import Limits

Row = dict[str, Any]

HI = [{"role": "user", "content": "Hi"}]

# Small ones, so that templates pass them soon.
LIMITS = Limits(memory_bytes=64 << 20, cpu_seconds=1, wall_seconds=20, result_bytes=1 << 20)


@pytest.fixture
async def templates() -> AsyncIterator[RequestTemplates]:
    made = RequestTemplates(LIMITS)
    await made.start()
    yield made
    made.close()


async def render(templates: RequestTemplates, source: str, **variables: Any) -> str:
    template = await templates.template(source)
    return await templates.render(pack(template.source, ChatInput(HI, variables=variables)))


# The limit that each passes, or what it fails with.
BOMBS = {
    "a string of 1 GB": ("{{ ('x' * 10**9)|length }}", "more memory than 64 MiB"),
    "output of 100 MB": ("{{ 'a' * 10**8 }}", "more memory than 64 MiB"),
    "output of 10 MB": ("{% for i in range(10) %}{{ 'a' * 10**6 }}{% endfor %}", "more than 1 MiB"),
    "a string that doubles": (
        "{% set n = namespace(s='x') %}"
        "{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "more memory than 64 MiB",
    ),
    "a list that doubles": (
        "{% set n = namespace(l=[1]) %}"
        "{% for i in range(40) %}{% set n.l = n.l + n.l %}{% endfor %}",
        "more memory than 64 MiB",
    ),
    "a wide format": ("{{ '%1000000000d'|format(1) }}", "more memory than 64 MiB"),
    "a wide str.format": ("{{ '{:>1000000000}'.format(1) }}", "more memory than 64 MiB"),
    "a wide center": ("{{ 'x'|center(10**9) }}", "more memory than 64 MiB"),
    "a wide indent": ("{{ [[1]]|tojson(indent=10**9) }}", "more memory than 64 MiB"),
    "loops in loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "more than 1 s",
    ),
    "macros that call twice": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "more than 1 s",
    ),
    "a great power": ("{{ 3 ** (10**7) % 7 }}", "more than 1 s"),
    "a power while it is compiled": ("{% if 3 ** (10**7) > 1 %}x{% endif %}", "more than 1 s"),
    "endless Latin": ("{{ lipsum(n=10**7) }}", "more than 1 s"),
    "a range of 1e9": ("{% for i in range(10**9) %}{% endfor %}", "fails .* OverflowError"),
    "a macro that calls itself": (
        "{% macro f(n) %}{{ f(n+1) }}{% endmacro %}{{ f(0) }}",
        "fails .* RecursionError",
    ),
    "10,000 parentheses": ("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}", "does not compile"),
    "10,000 signs": ("{{ " + "-" * 10_000 + "1 }}", "does not compile"),
    "1,000 conditions": ("{% if a %}" * 1_000 + "{% endif %}" * 1_000, "does not compile"),
    "an integer of 5,000 digits": ("{{ " + "9" * 5_000 + " }}", "does not compile"),
    "no template": ("{% for %}", "does not compile"),
    "no known block": ("{% nothing %}", "does not compile: Encountered unknown tag 'nothing'"),
    "10 MB": ("x" * 10_000_000, f"10000000 characters, allowed are {MAX_TEMPLATE_CHARS}"),
    "half a character": ("\ud800", "lone surrogate"),
    "half a character of output": (r"{{ '\ud800' }}", "lone surrogate"),
}


@pytest.mark.parametrize(("source", "words"), BOMBS.values(), ids=BOMBS)
async def test_a_template_that_asks_for_too_much_is_the_clients_fault_and_nobody_elses_trouble(
    templates: RequestTemplates, source: str, words: str
) -> None:
    with pytest.raises(
        TemplateError, match=f"^chat_template: the request's template .*{words}"
    ) as e:
        await render(templates, source)

    assert e.value.param == "chat_template"
    assert await render(templates, "{{ messages[0].content }}") == "Hi"


async def test_a_template_that_gets_no_cpu_time_is_not_the_clients_fault() -> None:
    templates = RequestTemplates(replace(LIMITS, cpu_seconds=60, wall_seconds=0.1))

    with closing(templates), pytest.raises(RenderError, match=r"took more than 0\.1 s") as e:
        await render(templates, BOMBS["loops in loops"][0])

    assert e.value.reason is Reason.HELPER_BUSY


async def test_a_template_that_refuses_is_quoted_no_further_than_300_characters(
    templates: RequestTemplates,
) -> None:
    with pytest.raises(TemplateError, match="refuses these messages: No system") as e:
        await render(templates, "{{ raise_exception('No system' + 'x' * 9999) }}")

    assert str(e.value).count("x") < 310


async def test_a_template_that_fails_does_not_quote_the_conversation(
    templates: RequestTemplates,
) -> None:
    with pytest.raises(TemplateError) as e:
        await render(templates, "{{ {}[messages[0].content].x }}")

    assert "Hi" not in str(e.value)


def in_process(source: str) -> str:
    """What the template gets out of `ChatTemplate`, without its limits if need be; "refused" if it
    fails."""
    chat = ChatInput(copy.deepcopy(HI))
    try:
        try:
            return without_addresses(ChatTemplate(source).render(chat))
        except HeavyError:
            return without_addresses(ChatTemplate(source, bounded=False).render(chat))
    except InferwayError:
        return "refused"


async def in_helper(templates: RequestTemplates, source: str) -> str:
    try:
        return without_addresses(await render(templates, source))
    except InferwayError:
        return "refused"


def without_addresses(text: str) -> str:
    return re.sub("0x[0-9a-f]{6,}", "0x", text)


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("bounded", [True, False])
def test_no_escape_from_the_sandbox_is_possible_in_this_process(source: str, bounded: bool) -> None:
    messages = copy.deepcopy(HI)
    try:
        text = ChatTemplate(source, bounded=bounded).render(ChatInput(messages))
    except InferwayError:
        text = ""

    assert (text in NOTHING, messages) == (True, HI)


async def test_no_escape_from_the_sandbox_is_possible_in_the_helper(
    templates: RequestTemplates,
) -> None:
    got = {name: await in_helper(templates, source) for name, source in REFUSED.items()}

    assert {n: text for n, text in got.items() if text not in (*NOTHING, "refused")} == {}
    assert templates.helper.stats.kills == {}


@pytest.mark.parametrize(("source", "text"), HARMLESS.values(), ids=HARMLESS)
def test_what_the_sandbox_allows_gets_nothing_it_should_not(source: str, text: str) -> None:
    assert in_process(source) == text


async def test_what_a_template_changes_is_its_own_copy(templates: RequestTemplates) -> None:
    messages = copy.deepcopy(HI)
    for source in CHANGING.values():
        await templates.render(pack(source, ChatInput(messages)))

    assert messages == HI


def plain_jinja(source: str) -> str:
    """The same in Jinja's own sandbox, without our short ways."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    ours = ChatTemplate("", bounded=False)._environment
    environment.globals.update(
        {name: ours.globals[name] for name in ("raise_exception", "strftime_now")}
    )
    environment.filters["tojson"] = ours.filters["tojson"]
    try:
        return environment.from_string(source).render(messages=copy.deepcopy(HI))
    except Exception:
        return "refused"


@pytest.mark.parametrize(
    "source",
    [*REFUSED.values(), *(source for source, _ in HARMLESS.values()), *CHANGING.values()],
    ids=[*REFUSED, *HARMLESS, *CHANGING],
)
def test_our_sandbox_gives_and_refuses_what_jinjas_does(source: str) -> None:
    assert in_process(source) == plain_jinja(source)


VALUES = ["'<a b>'", "1.5", "[3, 1]", "{'a': 1}", "messages"]
FILTERED = [
    f"{{{{ {value}|{name}{arguments} }}}}"
    for name in sorted(FILTERS)
    for value in VALUES
    for arguments in ("", "(2)", "('a')")
    if name != "random"
]


async def test_the_helper_renders_as_this_process_does_whatever_a_template_makes_jinja_import(
    templates: RequestTemplates,
) -> None:
    sources = [
        *FILTERED,
        "{{ 'é\\n\\u00e9'.encode('utf-8') }}{{ lipsum(1, min=5, max=6)|length > 9 }}",
        "{% set n = namespace(a=1) %}{% set n.a = 2 %}{{ n.a }}{{ joiner()() }}",
        "{{ cycler(1, 2).next() }}{{ '{:>5}'.format(1.5) }}{{ '%5.2f'|format(2) }}",
        "{% for i in [1, 2] recursive %}{{ loop.cycle(1, 2) }}{{ loop.changed(i) }}{% endfor %}",
    ]
    differ = []
    for source in sources:
        if in_process(source) != await in_helper(templates, source):
            differ.append(source)

    assert differ == []


@pytest.mark.slow
async def test_real_templates_give_the_same_text_in_the_helper(templates: RequestTemplates) -> None:
    differ = []
    for row in stored.templates()[::4]:
        source = row["chat_template"]
        template = await templates.template(source)
        ours = ChatTemplate(source)
        facts = (template.content_format, template.knows_developer)
        same = facts == (ours.content_format, ours.knows_developer)
        if "strftime_now" not in source:
            same = same and await in_helper(templates, source) == in_process(source)
        if not same:
            differ.append(row["id"])

    assert differ == []


async def test_the_helper_knows_our_time_zone(
    templates: RequestTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    elsewhere = RequestTemplates(LIMITS)
    source = "{{ strftime_now('%H:%M') == there }}"
    try:
        there = await render(elsewhere, "{{ strftime_now('%M') }}")
        here = await render(templates, "{{ strftime_now('%M') }}")
    finally:
        elsewhere.close()

    # 45 minutes apart from every zone of full hours; a minute may have passed
    assert (int(there) - int(here)) % 60 in (45, 46, 15, 16, 44, 14), source


async def test_a_chat_that_cannot_be_sent_goes_by_load_only() -> None:
    with pytest.raises(RenderError, match="TypeError"):
        pack("x", ChatInput([{"role": "user", "content": object()}]))


async def test_integers_of_any_length_keep_their_digits(prompts: MakePrompts) -> None:
    call = {"name": "f", "arguments": json.dumps({"a": [2**64, -(2**70), 10**4000], "é": 1e300})}
    said = {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}
    tool = {"name": "f", "parameters": {"properties": {"a": {"maximum": 2**64}}, "const": 2**65}}
    source = (
        "{{ messages[1].tool_calls[0].function.arguments | tojson }}{{ tools | tojson }}{{ big }}"
    )
    body = chat(
        chat_template=source,
        tools=[{"type": "function", "function": tool}],
        chat_template_kwargs={"big": 2**64 + 1},
    )
    body.messages.append(said)

    made = await prompts(max_model_len=None).render_chat(body)

    template = ChatTemplate(source)
    assert made.text == template.render(chat_input(body, template))
    assert f"[{2**64}, {-(2**70)}, {10**4000}]" in made.text
    assert f'{{"maximum": {2**64}}}}}, "const": {2**65}}}' in made.text
    assert made.text.endswith(str(2**64 + 1))


async def test_an_integer_that_python_does_not_read_is_refused(prompts: MakePrompts) -> None:
    """As vLLM does: json.loads is Python's there, too."""
    call = {"name": "f", "arguments": '{"a": ' + "1" * 4301 + "}"}
    said = {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}
    body = chat()
    body.messages.append(said)

    with pytest.raises(InvalidRequestError, match="4300 digits"):
        await prompts().render_chat(body)


# The same as requests.


@pytest.fixture
def prompts(
    renderer: Renderer, smollm2_key: str, templates: RequestTemplates
) -> Callable[..., ModelPrompts]:
    def make(**settings: Any) -> ModelPrompts:
        return ModelPrompts(
            renderer,
            smollm2_key,
            **{"max_model_len": 8192, "request_templates": templates, **settings},
        )

    return make


def chat(content: Any = "Hi", **fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=[{"role": "user", "content": content}], **fields)


MakePrompts = Callable[..., ModelPrompts]


async def text_of(prompts: ModelPrompts, body: ChatRequest) -> str:
    result = await prompts.render_chat(body)
    assert prompts.decode(result.input_ids) == result.text
    return result.text


@pytest.mark.parametrize(
    "fields", [{"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}}]
)
async def test_a_template_that_is_not_trusted_is_not_even_looked_at(
    prompts: MakePrompts, templates: RequestTemplates, fields: dict[str, Any]
) -> None:
    jobs = templates.helper.stats.jobs

    with pytest.raises(RenderError) as e:
        await prompts(request_templates=None).tokenize(chat(**fields))

    assert (e.value.reason, templates.helper.stats.jobs) == ("request-template", jobs)


async def test_a_trusted_template_makes_the_prompt(prompts: MakePrompts) -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ x }}"
    )
    body = chat(chat_template=source, chat_template_kwargs={"x": 7})

    assert await text_of(prompts(), body) == "<|im_start|>user: Hi7"


async def test_a_trusted_template_decides_which_form_of_content_it_gets(
    prompts: MakePrompts,
) -> None:
    loop = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert await text_of(prompts(), chat(parts, chat_template=loop)) == "[a][b]"


async def test_a_template_among_the_arguments_gets_what_the_models_own_wants(
    prompts: MakePrompts,
) -> None:
    loop = "{% for p in messages[0].content %}[{{ p }}]{% endfor %}"

    body = chat("ab", chat_template_kwargs={"chat_template": loop})

    assert await text_of(prompts(), body) == "[a][b]"


async def test_the_body_wins_over_its_template_arguments(prompts: MakePrompts) -> None:
    body = chat(chat_template="body", chat_template_kwargs={"chat_template": "kwargs"})

    assert await text_of(prompts(), body) == "body"


@pytest.mark.parametrize(
    ("fields", "flags", "asked"),
    [
        ({"chat_template": "b"}, {"chat_template": "f"}, "b"),
        ({"chat_template": "", "chat_template_kwargs": {"chat_template": "k"}}, {}, "k"),
        (
            {"chat_template": "", "chat_template_kwargs": {"chat_template": "k"}},
            {"chat_template": "f"},
            None,
        ),
        ({"chat_template": ""}, {}, None),
        ({}, {}, None),
    ],
)
def test_an_engines_flag_wins_over_template_arguments_only(
    fields: dict[str, Any], flags: dict[str, Any], asked: str | None
) -> None:
    assert asked_template(chat(**fields), ModelSettings(**flags)) == asked


async def test_a_template_that_is_no_text_names_its_field(prompts: MakePrompts) -> None:
    with pytest.raises(InvalidRequestError) as e:
        await prompts().tokenize(chat(chat_template_kwargs={"chat_template": 5}))

    assert e.value.param == "chat_template_kwargs.chat_template"


async def test_a_template_that_fails_is_told_as_the_request_has_it(prompts: MakePrompts) -> None:
    with pytest.raises(TemplateError) as e:
        await prompts().tokenize(chat(chat_template="{{ raise_exception('No!') }}"))

    assert (e.value.param, e.value.status) == ("chat_template", 400)


async def test_a_field_that_cannot_hold_is_told_under_its_own_name(prompts: MakePrompts) -> None:
    body = chat(chat_template="{{ messages[0].content }}", continue_final_message=True)

    with pytest.raises(TemplateError) as e:
        await prompts().tokenize(body)

    assert e.value.param == "continue_final_message"


async def test_a_prompt_that_cannot_fit_is_not_even_encoded(prompts: MakePrompts) -> None:
    body = chat(chat_template="{{ 'ab ' * 300000 }}")

    with pytest.raises(InferwayError, match="your prompt contains 900000 characters"):
        await prompts().tokenize(body)


async def test_many_hostile_templates_leave_the_event_loop_alone(
    prompts: MakePrompts, templates: RequestTemplates
) -> None:
    model = prompts()
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    hostile = [
        asyncio.create_task(model.tokenize(chat(str(i), chat_template=loop))) for i in range(12)
    ]
    while templates.helper.stats.jobs < 2:
        await asyncio.sleep(0.001)

    answered = 0
    while not all(task.done() for task in hostile):
        await model.tokenize(chat(f"ordinary {answered}"))
        answered += 1
        await asyncio.sleep(0)

    errors = [task.exception() for task in hostile]
    assert answered > 20
    assert all(isinstance(error, TemplateError | RenderError) for error in errors)
    assert templates.helper.stats.refused > 0
