"""The flags that settings have, made from what the fields of the settings say of themselves. click
knows a flag's value by the key, with `__` for its dots: `flow__queue` is `flow.queue`. A flag that
was not given is None, or an empty tuple."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

import click
import msgspec

from inferway.cli.command import Decorator, section
from inferway.cli.flag import (
    LineList,
    Number,
    NumberList,
    NumberOr,
    OneOf,
    Opposite,
    Whole,
    number_range,
    option,
)
from inferway.config import ServeSettings
from inferway.config.setting import ANY_NAME, Flag, FlagGroup, Setting, bare, keys_below
from inferway.errors import ConfigError

_ANY = "any"  # ANY_NAME, in a Python name
_FLAGS: Final = {
    key: (setting, setting.flag)
    for key, setting in keys_below(ServeSettings)
    if setting.flag is not None
}


def section_of(group: FlagGroup, *more: Decorator) -> Decorator:
    """Decorate a command with the flags of a group, in the order of their fields, and more."""
    options = [option_of(key) for key, (_, flag) in _FLAGS.items() if flag.group == group]
    return section(group.title, *options, *more, example=group.example)


def option_of(key: str) -> Decorator:
    """Decorate a command with the flag of the setting."""
    setting, flag = _FLAGS[key]
    text = setting.text
    if words := setting.default_words or _default_in_words(setting.default, flag):
        text += f"  [default: {words}]"
    name = key.replace(".", "__").replace(ANY_NAME, _ANY)
    return option(flag.names, name, help=text, **_values_of(key, setting, flag))


def key_of(name: str) -> str:
    """Return the key that click's name of a flag stands for."""
    return ".".join(ANY_NAME if part == _ANY else part for part in name.split("__"))


def given_keys(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given flags as nested settings. Raises ConfigError."""
    given: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None or value == ():
            continue
        *above, last = name.split("__")
        if above[-1:] == [_ANY]:
            for text in value:
                item, said = _pair(_FLAGS[key_of(name)][1], text)
                _inner(given, [*above[:-1], item])[last] = said
        else:
            _inner(given, above)[last] = value
    return given


def range_of(key: str) -> Whole | Number:
    """Return the numbers that the setting takes."""
    return _range(_FLAGS[key][0].kinds[0])


def _inner(given: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for name in path:
        given = given.setdefault(name, {})
    return given


def _pair(flag: Flag, text: str) -> tuple[str, str]:
    item, equals, said = text.rpartition("=")
    if not equals or not item or not said:
        raise ConfigError(f"{flag.names} {text!r}: expected {flag.metavar}")
    return item, said


def _default_in_words(value: object, flag: Flag) -> str:
    """Return what the help says of a default; of a switch, which of its two names."""
    if isinstance(value, bool):
        on, _, off = flag.names.partition("/")
        if flag.metavar:
            return "true" if value and not flag.is_opposite else ""
        return "" if not off else on if value else off
    if isinstance(value, int | float):
        return f"{value:g}"
    return value if isinstance(value, str) else ""


def _values_of(key: str, setting: Setting, flag: Flag) -> dict[str, Any]:
    """Return what click is told of the values of a flag."""
    [kind, *others] = setting.kinds
    if kind is bool:
        return _switch(flag)
    if ANY_NAME in key:
        return {"metavar": flag.metavar, "type": LineList(), "multiple": True}
    of_values = _type(kind, others, flag.metavar)
    is_list = get_origin(kind) is list and of_values is None
    if is_list and " " in flag.metavar:
        of_values = LineList()
    return {"metavar": flag.metavar or None, "type": of_values, "multiple": is_list}


def _switch(flag: Flag) -> dict[str, Any]:
    if flag.metavar:
        kind = Opposite() if flag.is_opposite else click.BOOL
        return {"type": kind, "is_flag": False, "flag_value": True}
    if "/" in flag.names:
        return {"default": None}
    return {"is_flag": True, "default": None, "flag_value": not flag.is_opposite}


def _type(kind: Any, others: list[Any], metavar: str) -> click.ParamType[Any] | None:
    """Return click's type of a value; None: text."""
    if metavar in ("FILE", "DIR"):
        return click.Path()
    if get_origin(kind) is Literal:
        return OneOf(get_args(kind))
    if get_origin(kind) is list and bare(get_args(kind)[0]) is int:
        return NumberList(_range(get_args(kind)[0]))
    if bare(kind) not in (int, float):
        return None
    words = [word for other in others for word in get_args(other)]
    return NumberOr(_range(kind), words) if words else _range(kind)


def _range(kind: Any) -> Whole | Number:
    number, *said = get_args(kind)
    [bounds] = [each for each in said if isinstance(each, msgspec.Meta)]
    return number_range(number, ge=bounds.ge, gt=bounds.gt, le=bounds.le, lt=bounds.lt)
