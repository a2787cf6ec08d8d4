"""Jinja's sandbox for templates that are rendered in this process, within a `RenderBudget`.

What is not in the tables below is not done here. A template that wants it, or passes a limit, ends
with HeavyError: a helper process can do it, where everything is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2.filters import make_attrgetter
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.utils import pass_context

from inferway.prompts.chat.bounded_compiler import BoundedCompiler
from inferway.prompts.chat.template_environment import (
    CLOCK,
    RAISE,
    Generation,
    QuietNamespace,
    Sandbox,
    template_environment,
)
from inferway.prompts.chat.template_work import MAX_CHARS, SHORT, RenderBudget, heavy

_MAX_INDENT = 64
_ITEMS_PER_STEP = 8


def bounded_environment(now: Callable[[], datetime]) -> Sandbox:
    """Return an environment whose templates are rendered with a BoundedContext."""
    environment = template_environment(now, _BoundedSandbox)
    environment.filters = _bounded(environment.filters)
    environment.globals["namespace"] = QuietNamespace
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals[name] = _refused(name)
    return environment


def plain_environment(now: Callable[[], datetime]) -> Sandbox:
    """Return the same without what transformers gives templates besides Jinja's own: functions that
    raise and tell the time, and a tag."""
    environment = bounded_environment(now)
    for name in (RAISE, CLOCK):
        del environment.globals[name]
    del environment.extensions[Generation.identifier]
    return environment


class BoundedContext(Context):
    """A template's context that charges each operation to the `work` of its rendering."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.work = RenderBudget()


# Methods of str, dict and list that take nothing for a short text, and copy a long one at most;
# those that go through it; those that may compare all of an argument at each place. The others are
# checked first, or not here.
_SHORT_METHODS = (
    "startswith endswith strip lstrip rstrip find rfind index rindex count removeprefix"
    " removesuffix partition rpartition isdigit isdecimal isnumeric isalpha isalnum isspace"
    " isupper islower istitle isidentifier get items keys values"
)
_LONG_METHODS = "upper lower title capitalize swapcase casefold"
_SPLITTING_METHODS = "split rsplit splitlines"
_COMPARING_METHODS = "strip lstrip rstrip rfind rindex rpartition rsplit"

_IS_SHORT, _IS_LONG = frozenset(_SHORT_METHODS.split()), frozenset(_LONG_METHODS.split())
_IS_SPLITTING = frozenset(_SPLITTING_METHODS.split())
_IS_COMPARING = frozenset(_COMPARING_METHODS.split())


class _BoundedSandbox(Sandbox):
    code_generator_class = BoundedCompiler

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) in (str, dict, list):
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            if __obj.__name__ not in _IS_SHORT or not _is_short(__obj, args):
                args = _checked(__context.work, __obj, args, kwargs)  # type: ignore[attr-defined]
            return __obj(*args, **kwargs)
        if type(__obj) is Macro:  # which the sandbox lets through
            return __context.call(__obj, *args, **kwargs)
        if not isinstance(__obj, Undefined) and callable(__obj):
            _check_callable(__context, __obj, args)
            if __obj is dict:
                made = super().call(__context, __obj, *args, **kwargs)
                return __context.work.made(made)  # type: ignore[attr-defined]
        return super().call(__context, __obj, *args, **kwargs)


def _check_callable(context: Context, called: Any, args: tuple[Any, ...]) -> None:
    """Raises HeavyError, except for what is the environment's own, or was handed in."""
    if called is context.parent.get(CLOCK) and not all(map(_is_layout, args)):
        raise heavy(f"calls {CLOCK!r} with a long text")
    if type(called) is MethodType and type(called.__self__) in (LoopContext, Generation):
        for given in args:
            context.work.compared(given)  # type: ignore[attr-defined]
        return
    if type(called) is not LoopContext and all(v is not called for v in context.parent.values()):
        raise heavy(f"calls a {type(called).__name__}")


def _is_layout(given: object) -> bool:
    return isinstance(given, str) and len(given) <= SHORT


def _is_short(method: BuiltinMethodType, args: tuple[Any, ...]) -> bool:
    """Return whether all that the method reads is."""
    of = method.__self__
    if isinstance(of, str):
        return len(of) <= SHORT and all(type(a) is not str or len(a) <= SHORT for a in args)
    return isinstance(of, dict)


def _checked(
    work: RenderBudget, method: BuiltinMethodType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a method that makes more than it has, or takes long."""
    of, name = method.__self__, method.__name__
    if isinstance(of, list) and name in _IS_SHORT:
        work.compared(of)
        return args
    if type(of) is str:
        if name in _IS_COMPARING:
            work.looked_through(of, next(iter((*args, *kwargs.values())), None))
        if name in _IS_SHORT:
            work.copied(of)
            return args
        if name in _IS_LONG:
            work.passes(len(of))
            work.step(len(of) // SHORT)
            return args
        if name in _IS_SPLITTING:
            _check_split(work, of, args)
            return args
        if name == "join" and len(args) == 1:
            return (_joined_parts(work, of, args[0]),)
        if name == "replace" and _are_texts(args[:2]):
            work.replacing(of, *args[:2])
            return args
    raise heavy(f"calls {name!r}")


def _check_split(work: RenderBudget, text: str, args: tuple[Any, ...]) -> None:
    between = args[0] if args else None
    if isinstance(between, str) and between:
        work.taken_apart(text, text.count(between) + 1)
    else:
        work.taken_apart(text, len(text) // 2)


def _are_texts(values: Sequence[object]) -> bool:
    return len(values) == 2 and all(type(value) is str for value in values)


def _joined_parts(work: RenderBudget, between: str, values: Iterable[Any]) -> list[Any]:
    parts, chars = [], 0
    if isinstance(values, str):
        work.taken_apart(values, len(values))
    for value in values:
        chars += len(between) + (len(value) if isinstance(value, str) else 0)
        if chars > MAX_CHARS:
            break
        parts.append(value)
    work.passes(chars)
    work.step(len(parts) // _ITEMS_PER_STEP)
    return parts


# Filters that take no time; those that go through what they are given, and make as much of it at
# most; those that take it apart; those that work out one item after the other. The others have
# functions of their own below.
_SHORT_FILTERS = "length count default d first last abs items"
_LONG_FILTERS = "capitalize lower reverse safe title upper"
_LISTING_FILTERS = "dictsort list sort"
_LAZY_FILTERS = "map reject rejectattr select selectattr unique"

Filter = Callable[..., Any]


def _bounded(given: Mapping[str, Filter]) -> dict[str, Filter]:
    """Those of an environment, by name, as they are done here."""
    made: dict[str, Filter] = {name: _refused(name) for name in given}
    made |= {name: given[name] for name in _SHORT_FILTERS.split()}
    made |= {name: _long(given[name]) for name in _LONG_FILTERS.split()}
    made |= {name: _listing(given[name]) for name in _LISTING_FILTERS.split()}
    made |= {name: _lazy(name, given[name]) for name in _LAZY_FILTERS.split()}
    made |= {name: _number(given[name]) for name in ("int", "float")}
    made["trim"] = _trim
    made["string"] = _string
    made["format"] = _format
    made["join"] = _join
    made["tojson"] = _tojson(given["tojson"])
    made["indent"] = _indent(given["indent"])
    made["replace"] = _replace(given["replace"])
    return made


def _refused(name: str) -> Filter:
    def refuse(*_: object, **__: object) -> str:
        raise heavy(f"uses {name!r}")

    return refuse


def _with_first(filter: Filter) -> Callable[[Context], tuple[object, ...]]:
    """What Jinja hands to a filter in front of its arguments."""
    wants = getattr(filter, "jinja_pass_arg", None)
    if wants is None:
        return lambda _: ()
    return {
        "context": lambda context: (context,),
        "eval_context": lambda context: (context.eval_ctx,),
        "environment": lambda context: (context.environment,),
    }[wants.name]


def _long(filter: Filter) -> Filter:
    first = _with_first(filter)

    @pass_context
    def bounded(context: BoundedContext, value: Any = "", *args: Any, **kwargs: Any) -> Any:
        work = context.work
        size = len(value) if isinstance(value, str | list | tuple | dict) else 0
        if size > _ITEMS_PER_STEP:
            work.step(size // (SHORT if isinstance(value, str) else _ITEMS_PER_STEP))
        made = filter(*first(context), value, *args, **kwargs)
        return work.copied(made)

    return bounded


def _listing(filter: Filter) -> Filter:
    long = _long(filter)

    @pass_context
    def bounded(context: BoundedContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, str):
            context.work.taken_apart(value, len(value))
        return long(context, value, *args, **kwargs)

    return bounded


def _lazy(name: str, filter: Filter) -> Filter:
    first = _with_first(filter)

    @pass_context
    def bounded(context: BoundedContext, value: Any = (), *args: Any, **kwargs: Any) -> Any:
        if name == "map" and "default" in kwargs:
            raise heavy("uses the filter 'map' with a default")
        if any(context.work.is_large(given) for given in args):
            raise heavy(f"uses {name!r} with what is long")
        return context.work.each(filter(*first(context), value, *args, **kwargs))

    return bounded


def _number(filter: Filter) -> Filter:
    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, str) and len(value) > SHORT:
            raise heavy("reads a long text as a number")
        return filter(value, *args, **kwargs)

    return bounded


@pass_context
def _trim(context: BoundedContext, value: Any, chars: str | None = None) -> str:
    text = value if isinstance(value, str) else context.work.text(value)
    if len(text) > SHORT or chars is not None:
        context.work.looked_through(text, chars)
    return text.strip(chars)


@pass_context
def _string(context: BoundedContext, value: Any) -> str:
    return value if isinstance(value, str) else context.work.text(value)


@pass_context
def _format(context: BoundedContext, value: Any, *args: Any) -> Any:
    text = value if isinstance(value, str) else context.work.text(value)
    return context.work.remainder(text, context.work.made(args))


@pass_context
def _join(context: BoundedContext, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    work, between = context.work, str(d)
    texts = (part if type(part) is str else work.text(part) for part in value)
    return between.join(_joined_parts(work, between, texts))


def _tojson(filter: Filter) -> Filter:
    @pass_context
    def bounded(context: BoundedContext, value: Any, *args: Any, **kwargs: Any) -> str:
        if args or kwargs:
            for given in (*args, *kwargs.values()):
                if not _is_small(given):
                    raise heavy("writes JSON with wide gaps")
        made: str = filter(value, *args, **kwargs)
        context.work.passes(len(made))
        return made

    return bounded


def _is_small(given: object) -> bool:
    """As an argument of `tojson` or `indent`."""
    if isinstance(given, tuple | list):
        return len(given) == 2 and all(map(_is_small, given))
    if isinstance(given, str):
        return len(given) <= _MAX_INDENT
    return given is None or (isinstance(given, int) and given <= _MAX_INDENT)


def _indent(filter: Filter) -> Filter:
    @pass_context
    def bounded(context: BoundedContext, s: Any, width: Any = 4, *args: Any, **kwargs: Any) -> Any:
        if not _is_small(width) or not isinstance(s, str):
            raise heavy("indents by much")
        context.work.passes(len(s) + (s.count("\n") + 2) * _MAX_INDENT)
        return filter(s, width, *args, **kwargs)

    return bounded


def _replace(filter: Filter) -> Filter:
    @pass_context
    def bounded(context: BoundedContext, s: Any, old: Any, new: Any, *args: Any) -> Any:
        work = context.work
        work.replacing(work.text(s), work.text(old), work.text(new))
        return filter(context.eval_ctx, s, old, new, *args)

    return bounded
