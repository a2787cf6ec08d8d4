"""The flags of `inferway serve`, and what they say of the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from inferway.cli.command import section
from inferway.cli.flag import FlagOption, option, removed_option
from inferway.cli.setting_options import given_keys, key_of, section_of
from inferway.config import EngineSettings, parse_engine
from inferway.config.removed import REMOVED_FLAGS
from inferway.config.setting import DISCOVERY, ENGINES, SERVING

_Command = TypeVar("_Command", bound=Callable[..., Any])

ENGINE_URLS: Any = click.argument("urls", nargs=-1, metavar="[ENGINE_URL]…")

_SECTIONS = (
    section_of(ENGINES, ENGINE_URLS),
    section_of(DISCOVERY),
    section(
        "File of settings",
        option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Read settings from this YAML file; docs/configuration.md lists its keys. Flags "
            "win over it, and it has settings that are no flags.",
        ),
        example="inferway serve --config gateway.yaml --port 9000",
    ),
    *(section_of(group) for group in SERVING),
)


def serve_options(command: _Command) -> _Command:
    """Decorates a command with all of them; it gets `config`, and what `overrides` takes."""
    for flag, cure in REMOVED_FLAGS.items():
        command = removed_option(flag, cure)(command)
    for part in reversed(_SECTIONS):
        command = part(command)
    return command


def overrides(
    *, urls: tuple[str, ...], engines: tuple[str, ...], **flags: object
) -> dict[str, Any]:
    """Return the given flags as nested settings. Raises ConfigError."""
    given = given_keys(flags)
    if urls or engines:
        given["engines"] = [_given(engine) for engine in listed(urls, engines)]
    if given.get("access_log") == "none":
        given["access_log"] = None
    return given


def listed(urls: Sequence[str], engines: Sequence[str]) -> list[EngineSettings]:
    """Return the engines that were given. Plain URLs win over --engine's variable in the
    environment. Raises ConfigError."""
    context = click.get_current_context(silent=True)
    source = context and context.get_parameter_source("engines")
    if urls and source is ParameterSource.ENVIRONMENT:
        engines = ()
    found = [parse_engine(spec, "engine") for spec in urls]
    return found + [parse_engine(spec) for spec in engines]


def environment_of(context: click.Context) -> Mapping[str, str]:
    """Return the keys that a variable of the environment has set, each with the variable."""
    found = {
        key_of(flag.name): str(flag.variable)
        for flag in context.command.params
        if isinstance(flag, FlagOption) and flag.name and flag.is_from_environment(context)
    }
    if context.params.get("urls"):
        found.pop("engines", None)
    return found


def _given(settings: msgspec.Struct) -> dict[str, object]:
    """Only what was said: the rest has its defaults."""
    fields: dict[str, object] = msgspec.to_builtins(settings)
    return {name: value for name, value in fields.items() if value is not None}
