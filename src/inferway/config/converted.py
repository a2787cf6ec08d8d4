"""Fields of a file -> a struct, or the fault: place, value, what is allowed.

msgspec finds the fault and says where it is and what it wanted. It shows no value, calls the key of
a map `...`, and does not name what else there is: that is looked up here, along the place it named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from inferway.config.removed import REMOVED_KEYS
from inferway.config.setting import bare
from inferway.errors import ConfigError

_T = TypeVar("_T")

_PASSWORD = re.compile(r"//([^/:@]*):.*@")
_SECRET = re.compile(r"([?&][^=&#]*(?:password|secret|token|key)[^=&#]*=)[^&#]*", re.IGNORECASE)
_SAID = re.compile(r"(.*) - at (?:`key` in )?`\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<item>\d+)\]|\[(?P<any>\.\.\.)\]")
_MAX_SHOWN = 80  # characters of a value


def converted(fields: object, kind: type[_T], place: str, *, strict: bool = True) -> _T:
    """Return `fields`, as YAML or JSON has them, as a `kind`. Raises ConfigError that begins with
    `place`, and shows the value that is wrong, without the password of a URL."""
    try:
        return msgspec.convert(fields, kind, strict=strict)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{place}: {_fault(fields, kind, str(e))}") from e


def _fault(value: Any, kind: Any, said: str) -> str:
    """`said` is msgspec's: words, and a place such as `$.models[...].tokenizer`."""
    found = _SAID.fullmatch(said)
    words, path = found.groups() if found else (said, "")
    kind, key = _alternative(kind, value), ""
    for step in _STEP.finditer(path):
        if (field := step["field"]) is not None:
            value, kind = value[field], get_type_hints(kind, include_extras=True)[field]
            key += f".{field}"
        elif (item := step["item"]) is not None:
            value, kind = value[int(item)], get_args(kind)[0]
            key += f"[{item}]"
        else:
            kind = get_args(kind)[1]
            name = _first_unfit(value, kind)
            value = value[name]
            key += f".{name}"
        kind = _alternative(kind, value)
    return ": ".join(
        filter(None, (key.removeprefix("."), _shown(value), _allowed(kind, value, words)))
    )


def _alternative(kind: Any, value: object) -> Any:
    """Return the type of a union that such a value is meant to be, without its bounds."""
    kind = bare(kind)
    every = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    kinds = [bare(each) for each in every]
    if isinstance(value, list):
        wanted: tuple[type, ...] = (list, tuple)
    else:
        wanted = (dict, msgspec.Struct) if isinstance(value, dict) else ()
    for each in kinds:
        shape = get_origin(each) or each
        if isinstance(shape, type) and issubclass(shape, wanted):
            return each
    return kinds[0]


def _first_unfit(values: dict[str, object], kind: Any) -> str:
    """The key of the value that msgspec has stumbled over."""
    for key, value in values.items():
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return key
    raise AssertionError("msgspec has found a fault where there is none")


def _shown(value: object) -> str:
    """Nothing, where a map or a list stands: what is wrong is in it, or that it is one."""
    if isinstance(value, dict | list) and value:
        return ""
    text = without_password(repr(value))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _allowed(kind: Any, value: object, words: str) -> str:
    """msgspec's words, and what else there is where they do not say it."""
    if get_origin(kind) is Literal:
        meant = _meant(str(value), get_args(kind), quote="'")
        return f"expected one of {', '.join(get_args(kind))}{meant}"
    words = words[0].lower() + words[1:]
    if words.startswith("object contains unknown field"):
        known, name = kind.__struct_fields__, words.partition("`")[2].strip("`")
        removed = REMOVED_KEYS.get(kind, {}).get(name)
        if removed is not None:
            return f"{words}: {removed}"
        meant = _meant(name, known, quote="`")
        return f"{words}{meant}; known: {', '.join(known)}"
    return words


def _meant(word: str, known: Iterable[str], *, quote: str) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {quote}{close[0]}{quote}?" if close else ""


def without_password(text: str) -> str:
    """A URL's, if there is one in it, before its host or among its parameters; whatever the
    password has in it."""
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"//\1:***@", text))
