"""Settings -> how endpoints are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, get_args

from inferway.config import Policy, ServeSettings, read_yaml
from inferway.errors import ConfigError
from inferway.scheduling.builtin import BUILTIN
from inferway.scheduling.config import build, parse_config
from inferway.scheduling.profile import LeastLoaded
from inferway.scheduling.registry import PluginType
from inferway.scheduling.scheduling import Scheduling

ENTRY_POINTS = "inferway.plugins"

# It beats every weighted profile (docs/benchmarks/policies.md), and has no weights.
DEFAULT: Mapping[str, Any] = {"plugins": [{"type": "expected-ttft"}]}

POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

# By weights instead of milliseconds (docs/scheduling.md): a full match is worth leaving the mean
# load once over. With weight 2 the load's rating spans [-1, 1] around its middle, the prefix's
# [0, 1]: an engine that holds the whole prompt is left for one that holds nothing when it carries
# three times the other's load (of two engines), never for a single request more. Recent work has
# less to say than half a prompt: it spreads sessions that share only their first words.
KV_AWARE: Final[Mapping[str, Any]] = {
    "plugins": [
        {"type": "precise-prefix-cache-scorer"},
        {"type": "relative-load-scorer"},
        {"type": "recent-work-scorer"},
    ],
    "schedulingProfiles": [
        {
            "name": "kv-aware",
            "plugins": [
                {"pluginRef": "precise-prefix-cache-scorer", "weight": 1},
                {"pluginRef": "relative-load-scorer", "weight": 2},
                {"pluginRef": "recent-work-scorer", "weight": 0.4},
            ],
        }
    ],
}

# What each word of `--policy` and the key `policy` means as `scheduling` would say it. `least-load`
# has no plugin: no scorer ranks by the plain number of requests, as `LeastLoaded` does.
CONFIGURATIONS: Final[Mapping[Policy, Mapping[str, Any]]] = {
    "expected-ttft": DEFAULT,
    "kv-aware": KV_AWARE,
    "round-robin": {"plugins": [{"type": "max-score-picker"}]},  # without scores equals take turns
}


def scheduling_of(settings: ServeSettings) -> Scheduling:
    """Build the scheduling of the settings, by `policy`, `scheduling` or neither. Raises
    ConfigError for a configuration that cannot be built."""
    if settings.policy == "least-load":
        return Scheduling(LeastLoaded())
    if settings.policy is not None:
        return load_scheduling(CONFIGURATIONS[settings.policy])
    if settings.scheduling is None and not settings.scoring:
        return Scheduling(LeastLoaded())
    return load_scheduling(settings.scheduling)


def load_scheduling(given: str | Mapping[str, Any] | None) -> Scheduling:
    """Build the scheduling that a file, its content, or None (DEFAULT) describes. Raises
    ConfigError."""
    if isinstance(given, str):
        place, fields = given, read_yaml(Path(given))
    else:
        place, fields = "scheduling", dict(DEFAULT if given is None else given)
    return build(parse_config(fields, place), place, known_types())


def known_types() -> dict[str, PluginType]:
    """Return our plugin types, and those of installed packages. Raises ConfigError for a package
    that brings what is none, or a name that is taken."""
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
