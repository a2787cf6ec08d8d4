"""Flags that set a key of the settings. click knows a flag's value by the key's name, with `__` for
its dots: `flow__queue` is `flow.queue`. A flag that was not given is None, or an empty tuple."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from msgspec.inspect import Field, FloatType, IntType, StructType, Type, UnionType, type_info

from inferway.cli.flag import Number, Whole, option
from inferway.config import ServeSettings

Option = Callable[[Any], Any]

_SETTINGS = type_info(ServeSettings)

ON: dict[str, Any] = {"is_flag": True, "default": None}  # it sets its key to true
OFF = ON | {"flag_value": False}


def key_option(flag: str, key: str, **how: Any) -> Option:
    """`how`: as click has it."""
    return option(flag, key.replace(".", "__"), **how)


def number_option(flag: str, key: str, help: str, metavar: str | None = None) -> Option:
    """Return the option of a numeric key; its bounds and its shown default are those of the key."""
    field = _field(key)
    if field.default is not None:
        help += f"  [default: {field.default:g}]"
    return key_option(flag, key, type=range_of(key), metavar=metavar, help=help)


def given_keys(flags: Mapping[str, object]) -> dict[str, Any]:
    """Return the given flags as nested settings."""
    given: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None or value == ():
            continue
        *above, last = name.split("__")
        inner = given
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return given


def range_of(key: str) -> click.ParamType[Any]:
    """The numbers that a key takes; null, which it may take too, is not giving the flag."""
    kind = _field(key).type
    if isinstance(kind, UnionType):
        kind = kind.types[0]
    assert isinstance(kind, IntType | FloatType)
    return number_range(kind)


def number_range(kind: IntType | FloatType) -> click.ParamType[Any]:
    """Return the numbers that the type of a field takes, with its bounds."""
    bounds: dict[str, Any] = {
        "min": kind.ge if kind.gt is None else kind.gt,
        "max": kind.le if kind.lt is None else kind.lt,
        "min_open": kind.gt is not None,
        "max_open": kind.lt is not None,
    }
    return Whole(**bounds) if isinstance(kind, IntType) else Number(**bounds)


def _field(key: str) -> Field:
    kind: Type = _SETTINGS
    for name in key.split("."):
        assert isinstance(kind, StructType)
        field = next(each for each in kind.fields if each.name == name)
        kind = field.type
    return field
