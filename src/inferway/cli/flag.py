"""A flag of a command: it may come from the environment, and its errors say what is allowed. Every
flag of every command but `inferway bench` has a variable `INFERWAY_…`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

import click
from click.core import ParameterSource

PREFIX: Final = "INFERWAY_"

# What Kubernetes tells every pod of a Service named inferway, or inferway-…
_SERVICE_LINK = re.compile(
    r"(?P<service>\w+?)_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)
_LINKED_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://\S+:\d+")


def variable_of(flag: str) -> str:
    """Return the environment variable of a flag: INFERWAY_TLS_CERT for `--tls-cert`."""
    return PREFIX + flag.lstrip("-").replace("-", "_").upper()


def is_service_link(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set this variable because a Service has our name; such a
    variable is not meant for us. INFERWAY_PORT=tcp://10.0.0.1:8080 would otherwise end the start of
    every pod beside a Service named inferway."""
    found = _SERVICE_LINK.fullmatch(name)
    if found is None or f"{found['service']}_SERVICE_HOST" not in environ:
        return False
    plain = name == f"{found['service']}_PORT"
    return not plain or _LINKED_ADDRESS.fullmatch(environ[name]) is not None


class FlagOption(click.Option):
    """An option that `INFERWAY_` and its name set, too; a list is split at white space there."""

    def __init__(self, *declarations: Any, **how: Any) -> None:
        super().__init__(*declarations, **how)
        long = next((name for name in self.opts if name.startswith("--")), None)
        if long is None or self.hidden:
            return
        given = self.envvar or ()
        self.envvar = [variable_of(long), *([given] if isinstance(given, str) else given)]

    @property
    def variable(self) -> str | None:
        """The variable with our prefix."""
        return self.envvar[0] if isinstance(self.envvar, list) else None

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:  # noqa: ARG002
        for name in self.envvar or ():
            if os.environ.get(name) and not is_service_link(name, os.environ):
                return os.environ[name]
        return None

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """A switch is on or off there, whatever it sets when it is on."""
        text = self.resolve_envvar_value(ctx)
        if text is None or not self.is_flag:
            return super().value_from_envvar(ctx)
        try:
            is_on = click.BOOL.convert(text, self, ctx)
        except click.BadParameter:
            words = f"{text!r}: expected true or false, 1 or 0"
            raise click.BadParameter(words, ctx, self, self.variable) from None
        return is_on is not (self.flag_value is False)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return where the wrong value comes from: the flag or the environment variable."""
        if ctx is not None and self.is_from_environment(ctx):
            names = self.envvar if isinstance(self.envvar, list) else []
            return next((name for name in names if os.environ.get(name)), str(self.variable))
        return super().get_error_hint(ctx)

    def is_from_environment(self, ctx: click.Context) -> bool:
        assert self.name is not None
        return ctx.get_parameter_source(self.name) is ParameterSource.ENVIRONMENT


option = partial(click.option, cls=FlagOption)


def removed_option(flag: str, cure: str) -> Callable[[Any], Any]:
    """Decorate with a flag that is gone: given as a flag or by its environment variable, it is
    refused, and the error has the cure."""
    variable = variable_of(flag)

    def refuse(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{flag} ({variable}) is gone: {cure}", ctx)

    how: dict[str, Any] = {"is_flag": False, "flag_value": ""}  # with a value or without
    return option(flag, hidden=True, expose_value=False, envvar=[variable], callback=refuse, **how)


class LineList(click.types.StringParamType):
    """Text that may have spaces in it: in the environment each line is one."""

    envvar_list_splitter = "\n"


class OneOf(click.Choice[str]):
    """One of some words; an error names the one that is likely meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as e:
            close = get_close_matches(str(value), [str(each) for each in self.choices], n=1)
            if not close:
                raise
            self.fail(f"{e.message.rstrip('.')}; did you mean {close[0]!r}?", param, ctx)


class Whole(click.IntRange):
    """A whole number; an error says which are allowed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number: int = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r}: expected a whole number {_bounds(self)}".rstrip(), param, ctx)
        return number

    def _describe_range(self) -> str:
        """Return the range as the help shows it: nothing without bounds."""
        return "" if self.min is None and self.max is None else super()._describe_range()


class Number(click.FloatRange):
    """A number; an error says which are allowed."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number: float = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r}: expected a number {_bounds(self)}".rstrip(), param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()


def number_range(
    kind: type[int] | type[float],
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Whole | Number:
    """Return the numbers of a kind within bounds."""
    bounds: dict[str, Any] = {
        "min": ge if gt is None else gt,
        "max": le if lt is None else lt,
        "min_open": gt is not None,
        "max_open": lt is not None,
    }
    return Whole(**bounds) if kind is int else Number(**bounds)


class NumberList(click.ParamType[list[int | float]]):
    """Numbers with commas between them."""

    name = "numbers"

    def __init__(self, of: Whole | Number) -> None:
        self._of = of

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int | float]:
        try:
            return [self._of.convert(part.strip(), param, ctx) for part in value.split(",")]
        except click.BadParameter:
            allowed = f"expected whole numbers {_bounds(self._of)}, with commas between them"
            self.fail(f"{value!r}: {allowed}", param, ctx)


class NumberOr(click.ParamType[float | str]):
    """A number, or one of some words."""

    name = "number"

    def __init__(self, of: Whole | Number, words: Sequence[str]) -> None:
        self._of, self._words = of, words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        if value in self._words:
            return str(value)
        try:
            return self._of.convert(value, param, ctx)
        except click.BadParameter as e:
            self.fail(f"{e.message}, or {', '.join(self._words)}", param, ctx)


class Opposite(click.types.BoolParamType):
    """True or false, of a flag that says the opposite of its setting."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        return not super().convert(value, param, ctx)


def _bounds(kind: click.IntRange | click.FloatRange) -> str:
    least = "" if kind.min is None else f"{'above' if kind.min_open else 'from'} {kind.min:g}"
    most = "" if kind.max is None else f"{'below' if kind.max_open else 'to'} {kind.max:g}"
    if least and not most and not kind.min_open:
        return f"{least} on"
    return f"{least} {most}".strip()
