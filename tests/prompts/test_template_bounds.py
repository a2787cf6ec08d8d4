"""What a model's template can do to the process that renders it: nothing that takes much."""

from __future__ import annotations

import pytest
from tests.cpu import seconds_of

from inferway.errors import HeavyError, RenderError, TemplateError
from inferway.prompts import RenderChatRequest, Renderer
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.chat.helper_templates import LargeChats
from inferway.prompts.chat.template_jobs import pack
from inferway_structured.sandbox.process import Limits

HI = [{"role": "user", "content": "Hi there, and a few words more"}]

# Of CPU, for what takes a tenth of that at most.
MOST_SECONDS = 4.0

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}"


def times(number: int, statement: str) -> str:
    return f"{{% for i in range({number}) %}}{statement}{{% endfor %}}"


def often(expression: str, *, text: str = "('x' * 1000) * 8000") -> str:
    """Of a text of 8 million characters, in as few statements as may be."""
    row = f"{{% set a = {' and '.join([expression] * 30)} %}}"
    return f"{{% set v = {text} %}}{{% set w = v[1:] ~ 'y' %}}" + row * 50


HEAVY = {
    "loops": ENDLESS,
    "empty loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a loop that takes nothing": times(
        9999, "{% for j in range(9999) if 'x' in 'y' %}{% endfor %}"
    ),
    "a recursive loop": "{% set l = messages + messages %}{% for m in l recursive %}"
    "{{ loop(l) }}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "a deep macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "times": "{{ 'x' * 10**9 }}",
    "times the other way": "{{ 10**9 * 'x' }}",
    "a long list": "{{ ([0] * 10**9)|length }}",
    "powers": "{{ 10 ** (10 ** 9) }}",
    "squares": "{% set n = namespace(v=9) %}" + times(60, "{% set n.v = n.v * n.v %}"),
    "doubled by +": "{% set n = namespace(v='x') %}" + times(60, "{% set n.v = n.v + n.v %}"),
    "doubled by ~": "{% set n = namespace(v='x') %}" + times(60, "{% set n.v = n.v ~ n.v %}"),
    "doubled in rows": "{% set v = 'xx' %}" + "{% set v = v + v %}" * 60,
    "doubled on the right": "{% set v = 'xx' %}" + "{% set v = v + (v + v) %}" * 60,
    "doubled lists": "{% set n = namespace(v=[1]) %}" + times(60, "{% set n.v = n.v + n.v %}"),
    "lists in lists": "{% set v = [1] %}" + "{% set v = [v, v] %}" * 60 + "{{ v }}",
    "lists in tuples": "{% set v = [1] %}" + "{% set v = (v, v) %}" * 60 + "{{ v|tojson }}",
    "lists in dicts": "{% set v = [1] %}" + "{% set v = {'a': v, 'b': v} %}" * 60 + "{{ v == v }}",
    "lists by dict()": "{% set v = [1] %}" + "{% set v = dict(a=v, b=v) %}" * 60 + "{{ v|string }}",
    "lists by varargs": "{% macro f() %}{{ varargs }}{% endmacro %}{{ f(1) }}",
    "lists by batch": "{% set v = [1] %}" + "{% set v = [v]|batch(2, v)|list %}" * 60 + "{{ v }}",
    "lists by map": "{% set v = [1] %}"
    + "{% set v = [1, 2]|map(attribute='a', default=v)|list %}" * 60
    + "{{ v }}",
    "lists by sum": "{% set v = [1] %}" + "{% set v = [v, v]|sum(start=[]) %}" * 60 + "{{ v }}",
    "namespaces in namespaces": "{% set v = namespace() %}"
    + "{% set v = namespace(a=v, b=v) %}" * 60
    + "{{ v }}",
    "center": "{{ 'x'.center(10**9) }}",
    "center by its name": "{{ 'x'['cen' ~ 'ter'](10**9) }}",
    "center in a namespace": "{% set n = namespace(f='x'.center) %}{{ n.f(10**9) }}",
    "the filter center": "{{ 'x'|center(10**9) }}",
    "center by map": "{{ ['x']|map('center', 10**9)|join }}",
    "zfill": "{{ '1'.zfill(10**9) }}",
    "tabs": "{{ '\\t'.expandtabs(10**9) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format by %": "{{ '%1000000000d' % 1 }}",
    "the filter format": "{{ '%1000000000d'|format(1) }}",
    "replace": "{% set n = namespace(v='xx') %}"
    + times(60, "{% set n.v = n.v.replace('x', 'xxxxxxxxx') %}"),
    "the filter replace": "{% set n = namespace(v='xx') %}"
    + times(60, "{% set n.v = n.v|replace('x', 'xxxxxxxxx') %}"),
    "join": "{% set n = namespace(v='xx') %}" + times(60, "{% set n.v = n.v.join('ab' * 9) %}"),
    "the filter join": "{% set n = namespace(v='xx') %}"
    + times(60, "{% set n.v = (n.v, n.v, n.v)|join(n.v) %}"),
    "indent": "{{ 'a\\nb'|indent(10**9) }}",
    "indented JSON": "{{ messages|tojson(indent=10**9) }}",
    "gaps in JSON": "{% set g = 'x' * 99999 %}{{ messages|tojson(separators=(g, g)) }}",
    "lipsum": "{{ lipsum(n=10**6) }}",
    "rounding": "{{ 2.5|round(10**9, 'ceil') }}",
    "one long text often": "{% set v = 'x' * 999999 %}" + times(9999, "{{ v }}"),
    "in a macro": "{% set v = 'x' * 999999 %}{% macro f() %}"
    + times(9999, "{{ v }}")
    + "{% endmacro %}{{ f() }}",
    "in a block": "{% set v = 'x' * 999999 %}{% set w %}" + times(9999, "{{ v }}") + "{% endset %}",
    "compared": "{% set v = 'x' * 999999 %}" + times(99999, "{{ v + 'y' == v + 'z' }}"),
    "a row of work": "{% set v = 'x' * 999999 %}" + "{{ v.upper()|length }}" * 2000,
    "counts": often("v.count('x')"),
    "a method of copies": often("v.strip('y')"),
    "copies by a name": "{% set v = ('x' * 1000) * 8000 %}"
    + "".join(f"{{% set a{n} = v.removeprefix('x') %}}" for n in range(200)),
    "slices": "{% set v = ('x' * 1000) * 8000 %}"
    + "".join(f"{{% set a{n} = v[1:] %}}" for n in range(200)),
    "slices backwards": often("v[::-1][0]"),
    "searched": often("'xxxxxy' not in v"),
    "searched by a test": often("'xxxxxy' is not in v"),
    "searched for a long text": "{% set v = ('x' * 1000) * 8000 %}{{ v.rfind('xy' ~ v[:99999]) }}",
    "stripped of a long text": "{% set v = ('x' * 1000) * 8000 %}{{ v.strip('y' * 99999 ~ 'x') }}",
    "stripped by the filter": "{% set v = ('x' * 1000) * 8000 %}{{ v|trim('y' * 99999 ~ 'x') }}",
    "compared with its like": often("v != w"),
    "compared as lists": "{% set v = [0] * 99999 %}{% set w = [0] * 99999 %}"
    + f"{{% set a = {' and '.join(['v == w'] * 30)} %}}" * 50,
    "looked at by a test": often("v is lower"),
    "a loop over a long text": often("v.count('x')")
    + "{% for i in range(999) %}{% for c in v %}{% endfor %}{% endfor %}",
    "filters in filters": "{{ range(99999)" + "|map('string')" * 60 + "|list|length }}",
    "selected by a long text": "{% set v = ('x' * 1000) * 8000 %}"
    "{{ range(9999)|map('string')|select('in', v)|list|length }}",
    "a long number": often("v|float", text="('1' * 1000) * 8000"),
    "taken apart": "{% set v = ('x ' * 1000) * 2000 %}" + "{% set v2 = v.split() %}" * 9,
    "taken apart by a filter": "{% set v = ('é' * 1000) * 4000 %}{{ v|list|length }}",
    "joined, one by one": "{% set v = ('é' * 1000) * 4000 %}{{ v|join('-')|length }}",
    "the same text many times": "{% set v = ('x' * 1000) * 4000 %}"
    + "{{ '"
    + "%s" * 40
    + "'|format("
    + ", ".join(["v"] * 40)
    + ")|length }}",
    "times of the clock": "{% set v = '%c' * 99999 %}{{ strftime_now(v)|length }}",
    "changes": "{% set v = ('x' * 1000) * 4000 %}{% set w = 'y' ~ v[1:] %}"
    + times(9999, "{% set a = loop.changed(v) or loop.changed(w) %}"),
    "lists of arguments": "{% set v = ('x' * 1000) * 8000 %}{{ dict(*v) }}",
    "a long template": "a" * 99_999,
    "center of a safe text": "{{ ('x'|safe).center(10**9) }}",
    "replaced in a safe text": "{% set v = ('x' * 1000) * 1000 %}"
    "{{ (v|safe).replace('x', 'y' * 1000)|length }}",
    "lists in lists, raised": "{% set v = [1] %}"
    + "{% set v = [v, v] %}" * 60
    + "{{ raise_exception(v) }}",
    "lists in lists, selected": "{% set v = [messages, messages] %}"
    + "{% set v = v + v %}" * 18
    + "{{ v|select('upper')|list }}",
    "lists in lists, replaced": "{% set v = [1] %}"
    + "{% set v = [v, v] %}" * 60
    + "{{ v|replace('1', '2') }}",
    "lists in lists as capitals": "{% set v = [1] %}"
    + "{% set v = [v, v] %}" * 60
    + "{{ v|upper }}",
    "large numbers": "{% set n = namespace(v=9) %}"
    + times(99999, "{% set n.v = n.v - (0 - n.v) %}"),
    "keys of a text": "{% set v = ('x' * 1000) * 1000 %}"
    + "{% set d = {v: 1} %}{% set w = ('x' * 1000) * 1000 %}"
    + times(99999, "{% set a = d[w] or d.get(w) %}"),
    "a namespace of many": "{% set d = dict(messages[0]) %}{{ namespace(**d) }}",
    "deep JSON": "{% set v = [1, 2, 3] %}"
    + "{% set v = [v, v, 0] %}" * 19
    + "{{ v|tojson(indent=64) }}",
    "capitals of a block": "{% set v = ('x ' * 500) * 1000 %}"
    + times(9, "{% filter title %}{{ v }}{% endfilter %}"),
    "capitals of words": "{% set v = 'x ' * 500 %}" + times(99999, "{% set a = v|title %}"),
    "taken apart often": "{% set v = 'x ' * 500 %}" + times(99999, "{% set a = v.split() %}"),
    "written often": "{% set v = [messages[0]] + messages %}"
    + times(99999, "{% set a = v ~ '' %}{% set b = v|tojson %}"),
    "sorted often": "{% set v = 'cba' * 20 %}" + times(99999, "{% set a = v|sort|first %}"),
    "empty macros": "{% macro f() %}{% endmacro %}" + times(99999, "{% set a = f() %}"),
    "the time": times(99999, "{% set a = strftime_now('%H:%M:%S.%f') %}"),
    "counted in a tuple": "{{ (messages, messages).count(messages) }}",
    "an escaping block": "{% autoescape true %}{{ '&' }}{% endautoescape %}",
}


@pytest.mark.parametrize("name", HEAVY)
def test_what_takes_much_is_not_done_here(name: str) -> None:
    template = ChatTemplate(HEAVY[name])

    def render() -> None:
        with pytest.raises(HeavyError):
            template.render(ChatInput(HI))

    assert seconds_of(render) < MOST_SECONDS


@pytest.mark.parametrize(
    "source",
    [
        "{{ '-' * 20 }}{{ 3 * 2.5 }}",
        "{{ '%s: %s'|format('b', none) }}{{ 7 % 4 }}{{ 7 % n }}",
        "{{ 'a' ~ 1 ~ none ~ [1] }}{{ 'a' + ('b' + 'c') + 'd' }}{{ [1] + [m] }}",
        "{{ ' a '.strip() }}{{ 'abc'.strip('ac') }}{{ m.strip() }}{{ m.get('content').split() }}",
        "{{ ['a', 'b']|join(', ') }}{{ messages|join('-', attribute='role') }}{{ 'ab'|join('.') }}",
        "{{ ', '.join(['a', 'b']) }}{{ 'aXa'.replace('X', 'YY') }}",
        "{{ 'aXa'|replace('X', 'YY', 1) }}",
        "{{ 'a\nb'|indent }}{{ 'a\nb'|indent(2, true) }}{{ m|tojson(indent=2) }}",
        "{{ dict(a=[1], b=m) }}{{ {'a': m}|tojson }}{{ (m, m)|list }}{{ 3.5 }}{{ none }}",
        "{% for i in range(9) if i % 2 %}{{ loop.index }}{{ loop.cycle('a', 'b') }}{% endfor %}",
        "{% set n = namespace(a=1) %}{% for i in [1] %}{% set n.a = n.a + i %}{% endfor %}"
        "{{ n.a }}",
        "{% macro f(a) %}<{{ a }}>{{ caller() }}{% endmacro %}{% call f(1) %}in{% endcall %}",
        "{{ ['b', 'a']|sort }}{{ ['b', 'B']|unique|list }}{{ {'b': 1, 'a': 2}|dictsort }}",
        "{{ messages|map(attribute='role')|map('upper')|list }}{{ 'x'|string }}{{ 3|string }}",
        "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
        "{{ 'abc'[1:] }}{{ messages[:1] }}{{ messages[0].content[::-1] }}{{ 'b' in 'abc' }}",
        "{{ m in messages }}{{ n in (1, 5) }}{{ n == messages|length }}{{ 1 < n < 9 }}",
        "{{ n is in [5] }}{{ n is eq 5 }}{{ n is divisibleby 5 }}",
        "{{ 'aXbX'.rfind('X') }}{{ ' a '|trim }}{{ 'xax'|trim('x') }}{{ '12'|int + '1.5'|float }}",
        "{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a\nb'.splitlines() }}{{ 'ab'|list }}{{ [1, 1].count(1) }}",
        "{% for i in [] %}{% else %}none{% endfor %}{% for i in [1] %}{% endfor %}",
        "{{ 'a' + 1 }}",
        "{{ absent.x }}",
        "{{ [].append(1) }}",
    ],
)
def test_what_takes_little_is_written_as_without_limits(source: str) -> None:
    chat = ChatInput(HI, variables={"n": 5, "m": HI[0]})

    def outcome(template: ChatTemplate) -> str:
        try:
            return template.render(chat)
        except TemplateError as e:
            return str(e)

    assert outcome(ChatTemplate(source)) == outcome(ChatTemplate(source, bounded=False))


async def test_a_helper_does_it_instead(own_renderer: Renderer, key: str) -> None:
    request = RenderChatRequest(key, HI, chat_template="{{ messages[0].role.center(10) }}")

    made = await own_renderer.render_chat_async(request)

    assert made.text == own_renderer.render_chat(request).text == "   user   "
    assert own_renderer.large_chats.helper.stats.jobs == 2


async def test_a_template_that_was_heavy_for_a_small_chat_is_not_tried_here_again(
    own_renderer: Renderer, key: str
) -> None:
    source = (
        "{% if messages|length > 1 %}{% for i in range(300) %}{% for j in range(2000) %}"
        "{% set a = i + j %}{% endfor %}{% endfor %}{% endif %}done"
    )
    small = RenderChatRequest(key, HI, chat_template=source)
    heavy = RenderChatRequest(key, HI * 2, chat_template=source)

    texts = [(await own_renderer.render_chat_async(r)).text for r in (small, heavy, small)]

    assert texts == ["done"] * 3
    assert own_renderer.large_chats.helper.stats.jobs == 2


async def test_a_template_that_the_helper_was_killed_for_is_given_up_and_said_once(
    key: str, own_renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    own_renderer.large_chats.close()
    own_renderer.large_chats = LargeChats(Limits(cpu_seconds=0.5, wall_seconds=60))
    # what it takes is time alone: memory must not be the first to be used up
    request = RenderChatRequest(key, HI, chat_template=HEAVY["empty loops"])

    reasons = []
    for _ in range(3):
        with pytest.raises(RenderError) as raised:
            await own_renderer.render_chat_async(request)
        reasons.append(raised.value.reason)

    assert reasons == ["helper-busy", "bad-template", "bad-template"]
    assert own_renderer.large_chats.helper.stats.kills == {"cpu": 1}
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_the_helper_has_no_such_limits() -> None:
    chats = LargeChats()
    template = ChatTemplate("{{ ('x' * 9999999)|length }}")
    try:
        text = chats.render_now(pack(template.source, ChatInput(HI)), template)
    finally:
        chats.close()

    assert text == "9999999"
