"""`inferway config`: is a configuration valid, and what does it come to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
import msgspec

from inferway.cli.command import Command
from inferway.cli.serve_options import environment_of, overrides, serve_options
from inferway.config import ServeSettings, load_settings, read_yaml, without_password
from inferway.errors import ConfigError
from inferway.routing.limits.callers import read_callers
from inferway.scheduling.document import KIND
from inferway.scheduling.load import is_values_file, load_scheduling, scheduling_of
from inferway.scheduling.scheduling import Scheduling

# (dotted key, value as JSON, where it comes from)
Line = tuple[str, str, str]

_FLAG = "a flag"
_ENV = "_env"  # keys that name an environment variable end so


@click.group()
def config() -> None:
    """Check a configuration, or show which settings are in force."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Say whether FILE can be used. It has settings of inferway serve, or is an
    EndpointPickerConfig of llm-d, or values for its charts with one."""
    try:
        fields = read_yaml(file)
        if fields.get("kind") == KIND or is_values_file(fields):
            scheduling = load_scheduling(str(file))
        else:
            settings = load_settings(file, {})
            scheduling = scheduling_of(settings)
            if settings.api_keys is not None:
                read_callers(Path(settings.api_keys))
    except ConfigError as e:
        click.echo(f"inferway config check: {e}", err=True)
        sys.exit(2)
    _say(scheduling)
    click.echo(f"{file}: valid")


@config.command(cls=Command)
@serve_options
def show(config: Path | None, **flags: Any) -> None:
    """Show every setting that would be in force, and where its value comes from: a flag, the
    environment, the file or the default.

    It takes the flags of inferway serve, and shows no secrets.
    """
    try:
        given = overrides(**flags)
        settings: ServeSettings = load_settings(config, given)
        scheduling = scheduling_of(settings)
    except ConfigError as e:
        click.echo(f"inferway config show: {e}", err=True)
        sys.exit(2)
    in_file = read_yaml(config) if config else {}
    environment = environment_of(click.get_current_context())
    for key, value, origin in _effective(settings, given, in_file, str(config), environment):
        click.echo(f"{key}: {value}  # {origin}")
    _say(scheduling)


def _say(scheduling: Scheduling) -> None:
    for note in scheduling.notes:
        click.echo(f"note: {note}")


def _effective(
    settings: ServeSettings,
    flags: Mapping[str, object],
    in_file: Mapping[str, object],
    file: str,
    environment: Mapping[str, str],
) -> Iterator[Line]:
    """Yield the settings in force, each with where it comes from; without secrets. `environment`:
    keys that a variable has set (`*` is any name) -> it. In the order of docs/configuration.md.
    Lists and maps that nobody has given are one line."""
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
