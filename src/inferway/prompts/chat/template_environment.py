"""The environment chat templates run in: Jinja's immutable sandbox, set up as transformers does.

Source: transformers utils/chat_template_utils.py: `trim_blocks` and `lstrip_blocks`, loop
controls, `tojson` that escapes no HTML and keeps non-ASCII text, `raise_exception`,
`strftime_now` (a template's only sight of time), and `{% generation %}` around what the
assistant wrote.

The sandbox checks each access anew, which is most of a chat's rendering. `Sandbox` goes a short
way where the outcome is known from the type alone; everything else goes Jinja's own way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from inferway.errors import HeavyError

# [start, end) in characters of the rendered text.
Span = tuple[int, int]

CLOCK, RAISE = "strftime_now", "raise_exception"


class RaisedByTemplateError(jinja2.TemplateError):
    """Raised when the template calls `raise_exception`."""


def template_environment(
    now: Callable[[], datetime], made_as: type[Sandbox] | None = None
) -> Sandbox:
    environment = (made_as or Sandbox)(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, loopcontrols],
        optimized=False,  # nothing is worked out when it is compiled, where that has no limits
    )
    environment.filters["tojson"] = _tojson
    environment.globals[RAISE] = _raise_exception
    environment.globals[CLOCK] = _Clock(now).strftime
    return environment


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
    """Every name that a template may look up outside itself, and perhaps some of its own."""
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


class QuietNamespace(Namespace):
    """Cannot be written: one that has another in two places takes twice the text."""

    def __repr__(self) -> str:
        raise HeavyError("the chat template writes a namespace")


_NAMESPACES = (Namespace, QuietNamespace)

_STRICT = ImmutableSandboxedEnvironment()
_ABSENT = object()

# All that a dict or a str has besides its items, and what of it the sandbox lets through.
# `format` is let through too, but wrapped.
_OF_DICT, _OF_STR = frozenset(dir(dict)), frozenset(dir(str))
_SAFE_OF_DICT = frozenset(name for name in _OF_DICT if _STRICT.is_safe_attribute({}, name, None))
_SAFE_OF_STR = frozenset(name for name in _OF_STR if _STRICT.is_safe_attribute("", name, None)) - {
    "format",
    "format_map",
}
_SAFE_OF_LOOP = frozenset(
    name
    for name in vars(LoopContext)
    if isinstance(vars(LoopContext)[name], property) and not name.startswith("_")
) | {"index0"}


class Compiler(CodeGenerator):
    """Writes what `Sandbox` does with a dict's items and a loop's counters where they are looked
    up, for to call it takes longer than to do it; all else is called. Evaluates nothing: Jinja's
    own would make the text of `{{ 'x' * 10**9 }}` while it compiles."""

    is_plain_text = "is str"  # `_of`, of which a method is called

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        name = node.arg.value if isinstance(node.arg, nodes.Const) else None
        if type(name) is str:
            self._write_item(node.node, name, "getitem", frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        of_loop = isinstance(node.node, nodes.Name) and node.node.name == "loop"
        if of_loop and node.attr in _SAFE_OF_LOOP:
            self.write(f"(_of.{node.attr} if type(_of := ")
            self.visit(node.node, frame)
            self.write(f") is LoopContext else environment.getattr(_of, {node.attr!r}))")
        elif node.attr not in _OF_DICT:
            self._write_item(node.node, node.attr, "getattr", frame)
        else:
            super().visit_Getattr(node, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        method = node.node
        if (
            forward_caller
            or not isinstance(method, nodes.Getattr)
            or not _is_plain(node, method.attr)
        ):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        variables = {"_loop_vars": "_loop_vars"} if frame.loop_frame else {}
        variables |= {"_block_vars": "_block_vars"} if frame.block_frame else {}
        self.write(f"(_of.{method.attr}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(") if type(_of := ")
        self.visit(method.node, frame)
        self.write(f") {self.is_plain_text} else environment.call(context, ")
        self.write(f"environment.getattr(_of, {method.attr!r})")
        self.signature(node, frame, variables)
        self.write("))")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData | nodes.Const):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_EvalContextModifier(self, node: nodes.EvalContextModifier, frame: Frame) -> None:
        if not all(isinstance(option.value, nodes.Const) for option in node.options):
            self.fail("autoescape takes true or false", node.lineno)
        super().visit_EvalContextModifier(node, frame)

    def _write_item(self, of: nodes.Expr, name: str, otherwise: str, frame: Frame) -> None:
        self.write(f"(_of[{name!r}] if type(_of := ")
        self.visit(of, frame)
        self.write(f") is dict and {name!r} in _of else environment.{otherwise}(_of, {name!r}))")


_PLAIN_METHODS = {"startswith", "endswith", "strip", "lstrip", "rstrip"}


def _is_plain(call: nodes.Call, method: str) -> bool:
    """A method of str that is called with what stands in the template."""
    rest = (*call.kwargs, call.dyn_args, call.dyn_kwargs)
    are_known = all(isinstance(given, nodes.Const) for given in call.args)
    return method in _PLAIN_METHODS and are_known and not any(rest)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with short ways that give and refuse exactly the same."""

    code_generator_class: type[CodeGenerator] = Compiler

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _OF_DICT:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
            if attribute in _SAFE_OF_DICT:
                return getattr(obj, attribute)
        elif kind is str:
            if attribute in _SAFE_OF_STR:
                return getattr(obj, attribute)
        elif kind is LoopContext:
            if attribute in _SAFE_OF_LOOP:
                return getattr(obj, attribute)
        elif kind in _NAMESPACES and not attribute.startswith("_"):
            value = getattr(obj, attribute, _ABSENT)
            # Methods may have to be wrapped.
            if value is not _ABSENT and type(value) not in (BuiltinMethodType, MethodType):
                return value
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            return obj[argument]
        except (TypeError, LookupError):
            if type(argument) is str:
                kind = type(obj)
                others = _OF_DICT if kind is dict else _OF_STR if kind is str else None
                if others is not None and argument not in others:
                    return self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)

    def call(  # the underscores leave all names to keyword arguments
        __self,
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # Methods of str, dict and list: nothing marks them as unsafe or as wanting the context.
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) in (str, dict, list):
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __obj(*args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)


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
