"""The environment chat templates run in: Jinja's immutable sandbox, set up as transformers does.

Source: transformers utils/chat_template_utils.py: `trim_blocks` and `lstrip_blocks`, loop
controls, `tojson` that escapes no HTML and keeps non-ASCII text, `raise_exception`,
`strftime_now` (a template's only sight of time), and `{% generation %}` around what the
assistant wrote.

It bounds neither time nor memory: that does `bounded_templates.py`, or the helper process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

# [start, end) in characters of the rendered text.
Span = tuple[int, int]

CLOCK, RAISE = "strftime_now", "raise_exception"


class RaisedByTemplateError(jinja2.TemplateError):
    """Raised when the template calls `raise_exception`."""


def template_environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Return the environment that transformers renders with. `now` is its clock."""
    environment = ImmutableSandboxedEnvironment()
    set_up(environment, now)
    return environment


def set_up(environment: ImmutableSandboxedEnvironment, now: Callable[[], datetime]) -> None:
    """Give an environment what transformers gives its own."""
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.add_extension(Generation)
    environment.add_extension(loopcontrols)
    environment.filters["tojson"] = _tojson
    environment.globals[RAISE] = _raise_exception
    environment.globals[CLOCK] = _Clock(now).strftime


class _Clock:
    """`datetime.strftime` takes more memory than a chat's whole rendering, so what it wrote last is
    kept for as long as it would write the same: a second, if the layout shows nothing finer."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._last: tuple[str, datetime, str] | None = None

    def strftime(self, layout: str) -> str:
        now = self._now().replace(microsecond=0) if "%f" not in layout else self._now()
        last = self._last
        if last is not None and last[0] == layout and last[1] == now:
            return last[2]
        text = now.strftime(layout)
        self._last = (layout, now, text)
        return text


def names_read(tree: nodes.Template) -> set[str]:
    """Return all names that a template may look up outside itself, and perhaps some of its own."""
    names = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
    return names | {node.name for node in tree.find_all(nodes.NSRef)}


def _raise_exception(message: object) -> None:
    raise RaisedByTemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@dataclass(slots=True)
class GenerationSpans:
    """Written by one rendering: how much text is out, and the generation blocks in it."""

    written: int = 0
    spans: list[Span] = field(default_factory=list)


def note_generation(context: Context, spans: GenerationSpans) -> None:
    """The rendering with this context is to note its generation blocks in `spans`."""
    setattr(context.eval_ctx, _SPANS, spans)


_SPANS = "inferway_generation_spans"


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: renders its body, and notes where it stands."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _note(self, context: nodes.EvalContext, caller: Macro) -> str:
        text: str = caller()
        spans = getattr(context, _SPANS, None)
        if spans is not None:
            spans.spans.append((spans.written, spans.written + len(text)))
        return text
