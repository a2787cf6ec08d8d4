"""Effective settings, each with where it comes from; without secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from inferway.config import ServeSettings, without_password

# (dotted key, value as JSON, where it comes from)
Line = tuple[str, str, str]

_FLAG = "a flag"
_ENV = "_env"  # keys that name an environment variable end so


def effective(
    settings: ServeSettings,
    flags: Mapping[str, object],
    in_file: Mapping[str, object],
    file: str,
    environment: Mapping[str, str],
) -> Iterator[Line]:
    """`environment`: keys that a variable has set (`*` is any name) -> it. In the order of
    docs/configuration.md. Lists and maps that nobody has given are one line."""
    values = msgspec.to_builtins(settings)
    for key, value in values.items():
        for line in _lines(key, value, flags.get(key), in_file.get(key), file):
            yield _from_environment(line, environment)


def _from_environment(line: Line, environment: Mapping[str, str]) -> Line:
    """A variable is named where a flag would have set the same."""
    key, value, origin = line
    if not origin.startswith(_FLAG):
        return line
    for pattern, variable in environment.items():
        if fnmatchcase(key, pattern) or key.startswith((f"{pattern}[", f"{pattern}.")):
            return key, value, f"environment {variable}{origin.removeprefix(_FLAG)}"
    return line


def _lines(key: str, value: object, flag: object, in_file: object, file: str) -> Iterator[Line]:
    items = _items(value)
    if not items:
        origin = _FLAG if flag is not None else file if in_file is not None else "default"
        yield key, _shown(value), origin + _note(key, value)
        return
    for name, item in items:
        inner = f"{key}[{name}]" if isinstance(value, Sequence) else f"{key}.{name}"
        yield from _lines(inner, item, _part(flag, name), _part(in_file, name), file)


def _items(value: object) -> Sequence[tuple[Any, object]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return list(enumerate(value))
    return ()


def _part(given: object, name: Any) -> object:
    if isinstance(given, Mapping):
        return given.get(name)
    if isinstance(given, Sequence) and not isinstance(given, str) and isinstance(name, int):
        return given[name] if name < len(given) else None
    return None


def _shown(value: object) -> str:
    return msgspec.json.encode(_without_passwords(value)).decode()


def _without_passwords(value: object) -> object:
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, Mapping):
        return {name: _without_passwords(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_without_passwords(item) for item in value]
    return value


def _note(key: str, value: object) -> str:
    if key == "policy" and value is None:
        return "; expected-ttft, or least-load without scoring, unless `scheduling` is given"
    if not key.endswith(_ENV) or not isinstance(value, str):
        return ""
    return "; it is set" if os.environ.get(value) else "; it is not set"
