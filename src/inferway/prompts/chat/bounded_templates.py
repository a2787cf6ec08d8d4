"""Jinja for templates that are rendered in this process, whose other requests wait.

Nobody vouches for a model's template, and it is a program. So a rendering has a number of units,
each 50 to 100 ns of work:

Rule 1: a loop takes the nodes of its body for each item before it begins, a macro its nodes with
each call. Nothing else repeats.
Rule 2: what is done at a node takes a bounded time with short values; reading a long one, or making
it, takes units by its size.
Rule 3: nothing makes more of values than they have together, or it is measured first. No text is
longer than MAX_CHARS.

A template that wants what is not in the tables of `bounded_compiler.py`, or runs out of units, ends
with HeavyError: a helper process can do it, where the operating system sets limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2.compiler import CodeGenerator
from jinja2.filters import do_indent, do_replace, make_attrgetter
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from inferway.errors import HeavyError
from inferway.prompts.chat.bounded_compiler import OF_DICT, SHORT, BoundedCompiler
from inferway.prompts.chat.template_environment import CLOCK, RAISE, Generation, set_up

MAX_UNITS = 1 << 20
# A chat that is rendered here has a million characters at most.
MAX_CHARS = 2 << 20
_CHARS_PER_UNIT = 8
_UNITS_OF_CALL = 32  # of a function in Python
_UNITS_PER_ITEM = 16  # of a list, with which such a function is called
_MAX_BITS = 256
_MAX_GIVEN = 64  # items of a list that is an argument, and blanks of an indent

# Methods of str, dict and list that make at most what they have; `join` and `replace` are measured.
_NAMES_OF_METHODS = (
    "startswith endswith strip lstrip rstrip find rfind index rindex count removeprefix"
    " removesuffix partition rpartition isdigit isdecimal isnumeric isalpha isalnum isspace"
    " isupper islower istitle isidentifier upper lower title capitalize swapcase casefold"
    " split rsplit splitlines join replace get items keys values"
)
_METHODS = frozenset(_NAMES_OF_METHODS.split())
_SPLITTING = ("split", "rsplit", "splitlines")


def heavy(what: str) -> HeavyError:
    return HeavyError(f"the chat template {what}")


def bounded_environment(now: Callable[[], datetime]) -> BoundedSandbox:
    """Return the environment of `template_environment`, bounded. Its templates are rendered with a
    BoundedContext."""
    # Nothing is worked out when a template is compiled, where nothing is counted.
    environment = BoundedSandbox(optimized=False)
    set_up(environment, now)
    environment.filters |= _COUNTED_FILTERS
    environment.globals["namespace"] = _QuietNamespace
    return environment


def bare_environment() -> BoundedSandbox:
    """Return the same without what transformers gives templates besides Jinja's own: functions that
    raise and tell the time, and a tag."""
    environment = bounded_environment(datetime.now)
    for name in (RAISE, CLOCK):
        del environment.globals[name]
    del environment.extensions[Generation.identifier]
    return environment


class _QuietNamespace(Namespace):
    """Cannot be written: one that has another in two places takes twice the text."""

    def __repr__(self) -> str:
        raise heavy("writes a namespace")


class BoundedContext(Context):
    """The context of one rendering, and what it may still do. It belongs to the thread of its
    rendering. Compiled templates call its methods."""

    _units_left = MAX_UNITS
    # Whether a list of the template's own may hold a value twice: then what is in a list may be
    # more than the request has.
    may_share = False

    def spend(self, units: int) -> None:
        """Raises HeavyError if there are no more of them."""
        self._units_left -= units
        if self._units_left < 0:
            raise heavy("takes more steps for a chat than are done here")

    def spend_chars(self, chars: int) -> None:
        """Spend the units of a text of so many characters, which is or will be made."""
        if chars > MAX_CHARS:
            raise heavy(f"makes a text of more than {MAX_CHARS} characters")
        self.spend(chars // _CHARS_PER_UNIT)

    def loop(self, items: Any, units: int = 1) -> Any:
        """Return what a loop is to go through, with so many units for each item."""
        if hasattr(items, "__len__"):
            self.spend(len(items) * units)
            return items
        return self._each(items, units) if isinstance(items, Iterator) else items

    def _each(self, items: Iterator[Any], units: int) -> Iterator[Any]:
        for item in items:
            self.spend(units)
            yield item

    def apart(self, value: Any) -> Any:
        """Return `value`, whose items a filter is about to go through."""
        self.spend(_UNITS_OF_CALL)
        return self.loop(value, 1 if isinstance(value, str) else _UNITS_PER_ITEM)

    def whole(self, value: Any) -> Any:
        """Return `value`, which a filter is about to go through with all that is in it."""
        return self.read(self.apart(value))

    def copied(self, value: Any) -> Any:
        """Return `value`, of which a part is about to be made."""
        return self.read(value) if isinstance(value, str) else self.loop(value)

    def searched(self, value: Any) -> Any:
        """Return `value`, in which one of its items is about to be looked for."""
        return value if type(value) is dict else self.read(value)

    def read(self, value: Any) -> Any:
        """Return `value`, which is about to be compared or written with all that is in it."""
        if isinstance(value, str):
            if len(value) > SHORT:
                self.spend_chars(len(value))
        elif isinstance(value, list | tuple | dict):
            units = _UNITS_PER_ITEM
            for item in (*value, *value.values()) if isinstance(value, dict) else value:
                units += 1 + (len(item) // _CHARS_PER_UNIT if isinstance(item, str) else 0)
                if isinstance(item, list | tuple | dict):
                    self.read(item)
            self.spend(units)
        elif isinstance(value, Iterator):
            return map(self.read, self._each(value, 1))
        return value

    def made(self, value: Any) -> Any:
        """Return `value`, which the template has made of others."""
        if isinstance(value, str):
            if len(value) > SHORT:
                self.spend_chars(len(value))
        elif isinstance(value, list | tuple | dict):
            self.spend(len(value))
            self.may_share = True
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise heavy("makes a large number")
        return value

    def text(self, value: object) -> str:
        """Return `value` as it is written."""
        if self.may_share:
            self.read(value)
        text = str(value)
        if len(text) > MAX_CHARS:
            raise heavy(f"makes a text of more than {MAX_CHARS} characters")
        self.spend(len(text) // 2)
        return text

    def concat(self, pieces: Iterable[str], between: str = "") -> str:
        """Return the pieces joined."""
        pieces = pieces if type(pieces) is list else list(pieces)
        chars = sum(map(len, pieces)) + len(between) * len(pieces)
        if chars > SHORT:
            self.spend_chars(chars)
        return between.join(pieces)

    def tilde(self, values: Iterable[object]) -> str:
        """Return what the operator `~` of Jinja makes."""
        return self.concat([v if type(v) is str else self.text(v) for v in values])

    def times(self, left: Any, right: Any) -> Any:
        """Return the product of numbers, or of a text and a number."""
        for text, number in ((left, right), (right, left)):
            if isinstance(text, str) and type(number) is int:
                self.spend_chars(len(text) * max(number, 0))
            elif not isinstance(text, int | float | str):
                raise heavy("multiplies what is neither numbers nor text")
        return self.made(left * right)

    def remainder(self, left: Any, right: Any) -> Any:
        if isinstance(left, str):
            raise heavy("formats a text by %")
        return left % right

    def replacing(self, text: str, old: str, new: str) -> None:
        """Spend the units of replacing `old` in a text."""
        self.spend(_UNITS_OF_CALL)
        self.read(text)
        if len(new) > len(old):
            self.spend_chars(len(text) + (text.count(old) + 1) * len(new))

    def short(self, value: Any) -> Any:
        """Return an argument, with which many values may be compared. Raises HeavyError if it is
        long."""
        if isinstance(value, list | tuple) and len(value) <= _MAX_GIVEN:
            for item in value:
                self.short(item)
        elif isinstance(value, list | tuple | dict | Iterator) or (
            isinstance(value, str) and len(value) > SHORT
        ):
            raise heavy("gives a function a long value")
        return value


_STRICT = ImmutableSandboxedEnvironment()
_ABSENT = object()

# What the sandbox lets through of a dict and a str.
_OF_STR = frozenset(dir(str))
_SAFE_OF_DICT = frozenset(n for n in OF_DICT & _METHODS if _STRICT.is_safe_attribute({}, n, None))
_SAFE_OF_STR = frozenset(n for n in _OF_STR & _METHODS if _STRICT.is_safe_attribute("", n, None))


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which checks each access anew, with short ways where the outcome is known
    from the type alone. It refuses what Jinja's refuses, and gives the same or raises
    HeavyError."""

    code_generator_class: type[CodeGenerator] = BoundedCompiler
    context_class: type[Context] = BoundedContext

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in OF_DICT:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
            if attribute in _SAFE_OF_DICT:
                return getattr(obj, attribute)
        elif kind is str:
            if attribute in _SAFE_OF_STR:
                return getattr(obj, attribute)
        elif kind is _QuietNamespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, _ABSENT)
            # Methods may have to be wrapped.
            if value is not _ABSENT and type(value) not in (BuiltinMethodType, MethodType):
                return value
        return _known(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            return obj[argument]
        except (TypeError, LookupError):
            if type(argument) is str:
                kind = type(obj)
                others = OF_DICT if kind is dict else _OF_STR if kind is str else None
                if others is not None and argument not in others:
                    return self.undefined(obj=obj, name=argument)
        return _known(super().getitem(obj, argument))

    def call(  # the underscores leave all names to keyword arguments
        __self,
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        assert isinstance(__context, BoundedContext)
        kind = type(__obj)
        # Methods of str, dict and list: nothing marks them as unsafe or as wanting the context.
        if kind is BuiltinMethodType:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __obj(*_checked(__context, __obj, args, kwargs), **kwargs)
        if kind is Macro:  # which the sandbox lets through
            return __context.call(__obj, *args, **kwargs)
        __context.spend(_UNITS_OF_CALL)
        if kind is MethodType:  # of a loop, a clock; but of Markup, those of texts
            if isinstance(__obj.__self__, str):
                raise heavy("calls a method of a safe text")
            __context.short(args)
        for given in args:
            __context.read(given)
        return __context.made(super().call(__context, __obj, *args, **kwargs))


def _known(value: Any) -> Any:
    """Raises HeavyError for a method that makes more than it has, or takes long."""
    name = getattr(value, "__name__", None)
    if name in ("format", "format_map") or (
        isinstance(value, BuiltinMethodType) and name not in _METHODS
    ):
        raise heavy(f"wants {name!r}")
    return value


def _checked(
    context: BoundedContext, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a method of a dict, a text or a list."""
    of, name = method.__self__, method.__name__
    if type(of) is dict:
        for key in args[:1]:
            context.read(key)
        return args
    if type(of) not in (str, list):
        raise heavy(f"calls {name!r} of a {type(of).__name__}")
    if name == "join" and len(args) == 1:
        parts = list(context.loop(args[0]))
        texts = [part for part in parts if isinstance(part, str)]
        context.spend_chars(sum(map(len, texts)) + len(of) * len(parts))
        return (parts,)
    context.short([*args, *kwargs.values()])
    if name == "replace" and len(args) > 1 and all(isinstance(each, str) for each in args[:2]):
        context.replacing(of, *args[:2])
    elif name in _SPLITTING:
        context.spend(len(of) // 2)
    else:
        context.read(of)
    return args


@pass_context
def _trim(context: BoundedContext, value: Any, chars: str | None = None) -> str:
    text = value if isinstance(value, str) else context.text(value)
    if len(text) > SHORT or chars is not None:
        context.read(text)
        context.short(chars)
    return text.strip(chars)


@pass_context
def _string(context: BoundedContext, value: Any) -> str:
    return value if isinstance(value, str) else context.text(value)


@pass_context
def _join(context: BoundedContext, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    values = context.apart(value)
    texts = [part if type(part) is str else context.text(part) for part in values]
    return context.concat(texts, str(d))


@pass_context
def _format(context: BoundedContext, value: Any, *args: Any, **kwargs: Any) -> str:
    if kwargs or not isinstance(value, str) or "%" in value.replace("%s", ""):
        raise heavy("formats a text with more than %s")
    context.spend(_UNITS_OF_CALL)
    texts = [context.text(given) for given in args]
    context.spend_chars(len(value) + sum(map(len, texts)))
    return value % (*texts,)


@pass_context
def _tojson(
    context: BoundedContext,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    context.spend(_UNITS_OF_CALL)
    if context.may_share:
        context.read(value)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None and separators is None:
        made = encoder.encode(value)
        context.spend_chars(len(made))
        return made
    if not all(map(_is_small, (indent, *(separators or ())))):
        raise heavy("writes JSON with wide gaps")
    pieces = []
    for piece in encoder.iterencode(value):  # as it is encoded where there is an indent
        context.spend(1 + len(piece) // _CHARS_PER_UNIT)
        pieces.append(piece)
    return context.concat(pieces)


@pass_context
def _indent(
    context: BoundedContext, s: Any, width: Any = 4, first: bool = False, blank: bool = False
) -> Any:
    if not _is_small(width) or not isinstance(s, str):
        raise heavy("indents by much")
    context.spend(_UNITS_OF_CALL)
    context.spend_chars(len(s) + (s.count("\n") + 2) * _MAX_GIVEN)
    return do_indent(s, width, first, blank)


def _is_small(given: object) -> bool:
    """As an argument of `tojson` or `indent`."""
    if isinstance(given, str):
        return len(given) <= _MAX_GIVEN
    return given is None or (isinstance(given, int) and given <= _MAX_GIVEN)


@pass_context
def _replace(context: BoundedContext, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
    context.replacing(context.text(s), context.text(old), context.text(new))
    return do_replace(context.eval_ctx, s, old, new, count)


_COUNTED_FILTERS: dict[str, Callable[..., Any]] = {
    "trim": _trim,
    "string": _string,
    "join": _join,
    "format": _format,
    "tojson": _tojson,
    "indent": _indent,
    "replace": _replace,
}
