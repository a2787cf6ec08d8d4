"""Settings -> how endpoints are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from inferway.config import read_yaml
from inferway.errors import ConfigError
from inferway.scheduling.builtin import BUILTIN, ELSEWHERE
from inferway.scheduling.config import build, parse_config
from inferway.scheduling.registry import PluginType
from inferway.scheduling.scheduling import Scheduling

ENTRY_POINTS = "inferway.plugins"

# It beats every weighted profile (docs/benchmarks/policies.md), and has no weights.
DEFAULT: Mapping[str, Any] = {"plugins": [{"type": "expected-ttft"}]}


def load_scheduling(given: str | Mapping[str, Any] | None) -> Scheduling:
    """`given`: a file, its content, or nothing: then DEFAULT. Raises ConfigError."""
    if isinstance(given, str):
        place, fields = given, read_yaml(Path(given))
    else:
        place, fields = "scheduling", dict(DEFAULT if given is None else given)
    return build(parse_config(fields, place), place, known_types(), ELSEWHERE)


def known_types() -> dict[str, PluginType]:
    """Ours, and those of installed packages. Raises ConfigError for a package that brings what is
    none, or a name that is taken."""
    types = dict(BUILTIN)
    for entry in entry_points(group=ENTRY_POINTS):
        where = f"entry point {entry.name!r} of {entry.dist.name if entry.dist else 'a package'}"
        try:
            kind = entry.load()
        except Exception as e:
            raise ConfigError(f"{where}: {entry.value} cannot be loaded: {e}") from e
        if not isinstance(kind, PluginType):
            raise ConfigError(
                f"{where}: {entry.value} is a {type(kind).__name__}, not a PluginType "
                "(inferway.scheduling.registry)"
            )
        if kind.name in types:
            raise ConfigError(f"{where}: plugin type {kind.name!r} is there already")
        types[kind.name] = kind
    return types
