"""The short ways of the bounded sandbox give and refuse what Jinja's own does, or leave it to a
helper process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import jinja2
import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inferway.errors import HeavyError
from inferway.prompts.chat.bounded_templates import bounded_environment
from inferway.prompts.chat.template_environment import names_read

OURS = bounded_environment(datetime.now)
JINJAS = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
)

HEAVY = "left to a helper process"

VALUES: dict[str, Any] = {
    "dict": {"role": "user", "items": "own", "a b": 1, "": 2, "__class__": 3, "none": None},
    "str": "Text of a {0} message, ß",
    "list": [1, "b", {"c": 3}],
    "int": 7,
    "none": None,
    "bool": True,
    "tuple": (1, 2),
}


def outcome(environment: jinja2.Environment, source: str, **variables: Any) -> str:
    """The text, or the kind of error."""
    try:
        return environment.from_string(source).render(**variables)
    except HeavyError:
        return HEAVY
    except Exception as e:
        return f"raises {type(e).__name__}"


def expressions(value: Any) -> Iterator[str]:
    for name in sorted({*dir(value), "role", "items", "absent", "_hidden", "c", "first"}):
        # Their text has an address in it, or an order that is not fixed.
        if name not in ("__hash__", "__dir__", "__sizeof__", "__reduce_ex__", "__reduce__"):
            yield f"{{{{ x.{name} is defined }}}}{{{{ x.{name} is callable }}}}"
            yield f"{{{{ x['{name}'] is defined }}}}{{{{ x['{name}'] is callable }}}}"
            yield f"{{{{ x.{name}() }}}}"
            yield f"{{{{ x.{name}('a') }}}}"
            yield f"{{% for i in [1] %}}{{{{ x.{name}('a', 'b') }}}}{{% endfor %}}"
            yield f"{{% set n = namespace(v=x.{name}) %}}{{{{ n.v is defined }}}}"
            yield f"{{% set n = namespace(v=x.{name}) %}}{{{{ n.v('a') }}}}"
            yield f"{{{{ x | attr('{name}') is defined }}}}"
            yield f"{{{{ '{{0.{name}}}'.format(x) }}}}"
    yield from (
        "{{ x[0] }}",
        "{{ x[9] }}",
        "{{ x[-1] }}",
        "{{ x[1:] }}",
        "{{ x[none] }}",
        "{{ x[x] }}",
    )


def without_addresses(text: str) -> str:
    return text.split(" at 0x")[0]


@pytest.mark.parametrize("kind", VALUES)
def test_every_attribute_and_item_is_given_or_refused_as_jinja_does(kind: str) -> None:
    value = VALUES[kind]
    differing = [
        (source, ours, theirs)
        for source in expressions(value)
        if (ours := without_addresses(outcome(OURS, source, x=value)))
        not in (HEAVY, theirs := without_addresses(outcome(JINJAS, source, x=value)))
    ]

    assert differing == []


@pytest.mark.parametrize(
    "name",
    [
        *("first", "last", "index", "index0", "revindex", "revindex0", "length", "depth", "depth0"),
        *(
            "previtem",
            "nextitem",
            "cycle('a', 'b')",
            "changed(i)",
            "absent",
            "_iterable",
            "__class__",
        ),
        *("_recurse", "__init__", "_peek_next()", "cycle", "index0()"),
    ],
)
def test_a_loop_shows_what_jinjas_loop_shows(name: str) -> None:
    source = f"{{% for i in [3, 4, 5] %}}[{{{{ loop.{name} }}}}]{{% endfor %}}"

    assert without_addresses(outcome(OURS, source)) == without_addresses(outcome(JINJAS, source))


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = namespace(a=1) %}{{ n.a }}{{ n.b is defined }}{{ n._x is defined }}",
        "{% set n = namespace() %}{% set n.format = 'x'.format %}{{ n.format(1) }}",
        "{% set n = namespace(f='{0.__class__}'.format) %}{{ n.f('x') }}",
        "{% set n = namespace(f='{0.__class__}'.format_map) %}{{ n.f({'0': 'x'}) }}",
        "{% set n = namespace(__class__=1) %}{{ n.__class__ }}",
        "{% set n = namespace({'items': 2}) %}{{ n.items }}{{ n['items'] is defined }}",
        "{{ 'x'.join(['a'], a=1) }}",
        "{{ 'a b'.split(maxsplit=1) }}{{ 'ab'.replace('a', 'b', 1) }}",
        "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, c=3) }}",
        "{{ x.items.y }}{{ x['items'].y }}{{ x.y.z }}",
        "{{ dict(a=1).get('a') }}{{ dict.fromkeys(['a']) }}",
        "{{ [].append(1) }}{{ {}.update(a=1) }}{{ {}.pop('a') }}{{ [3].sort() }}",
        "{{ range(3) | list }}{{ range(999999) | list }}",
        "{{ cycler('a', 'b').next() }}{{ joiner()() }}",
    ],
)
def test_programs_end_as_in_jinjas_sandbox(source: str) -> None:
    assert outcome(OURS, source, x={"a": 1}) in (HEAVY, outcome(JINJAS, source, x={"a": 1}))


def test_all_names_that_a_template_looks_up_are_found() -> None:
    source = (
        "{% set a = b %}{% if c %}{% set d = 1 %}{% endif %}{{ d }}{% for e in f if g %}"
        "{{ h(i=j) }}{% endfor %}{% macro k(l=m) %}{{ n }}{% endmacro %}{% set o.p = 1 %}"
        "{{ q | map(r) }}"
        "{% generation %}{{ s }}{% endgeneration %}{% block t %}{{ u }}{% endblock %}"
        "{% call v() %}{{ w }}{% endcall %}{{ x[y] if z is divisibleby aa else bb }}"
    )
    looked_up = {
        *("b", "c", "d", "f", "g", "h", "j", "m", "n", "o", "q", "r", "s", "u", "v", "w", "x", "y"),
        *("z", "aa", "bb"),
    }

    assert looked_up <= names_read(OURS.parse(source))


def test_strftime_now_is_all_that_a_template_sees_of_time() -> None:
    """A global that a new version of Jinja brings has to be looked at."""
    assert set(OURS.globals) == {
        *("range", "dict", "lipsum", "cycler", "joiner", "namespace"),
        *("raise_exception", "strftime_now"),
    }
    assert set(OURS.filters) == set(JINJAS.filters)
    assert set(OURS.tests) == set(JINJAS.tests)
