"""Settings -> how endpoints are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from inferway.config import Policy, ServeSettings, parse_yaml, read_yaml
from inferway.errors import ConfigError
from inferway.scheduling import (
    admitters,
    goodput_admission,
    pickers,
    scorers,
    session_admission,
    session_id,
    sessions,
)
from inferway.scheduling.by_role import ByRole
from inferway.scheduling.config import build
from inferway.scheduling.document import parse_config
from inferway.scheduling.expected_ttft import plugin as expected_ttft
from inferway.scheduling.flow_control import policies, usage_limits
from inferway.scheduling.profile import LeastLoaded
from inferway.scheduling.registry import PluginType
from inferway.scheduling.scheduling import Scheduling

ENTRY_POINTS = "inferway.plugins"

# docs/plugins.md has core's plugin types, too; a test compares.
BUILTIN: Mapping[str, PluginType] = {
    kind.name: kind
    for kind in (
        sessions.FILTER,
        *scorers.TYPES,
        sessions.SCORER,
        expected_ttft.TYPE,
        *pickers.TYPES,
        # producers
        *session_id.TYPES,
        *admitters.TYPES,
        session_admission.TYPE,
        goodput_admission.TYPE,
        # flow control
        *policies.TYPES,
        *usage_limits.TYPES,
    )
}

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


def scheduling_of(settings: ServeSettings, *, has_queue: bool = True) -> Scheduling:
    """Build the scheduling of the settings, by `policy`, `scheduling` or neither. `has_queue`:
    requests can wait, and go in two legs. Raises ConfigError for a configuration that cannot be
    built."""
    scheduling = _scheduling_of(settings)
    if not has_queue or settings.kv_transfer.legs not in ("auto", "gateway"):
        for plugin in scheduling.producers:
            if isinstance(plugin, expected_ttft.ExpectedTtft):
                plugin.has_legs = False  # nothing would tell it what legs take
    if settings.workers != 1:
        scheduling = scheduling.without_sessions(
            "each worker would know of its own turns only", knows_all=False
        )
    if has_queue:
        return scheduling
    scheduling = scheduling.without_queue()
    return scheduling.without_sessions("the endpoint picker has no queue", knows_all=True)


def _scheduling_of(settings: ServeSettings) -> Scheduling:
    if settings.policy == "least-load":
        return Scheduling(ByRole(LeastLoaded()))
    if settings.policy is not None:
        return load_scheduling(CONFIGURATIONS[settings.policy])
    if settings.scheduling is None and not settings.scoring:
        return Scheduling(ByRole(LeastLoaded()))
    return load_scheduling(settings.scheduling)


def load_scheduling(given: str | Mapping[str, Any] | None) -> Scheduling:
    """Build the scheduling that a file, its content, or None (DEFAULT) describes. Raises
    ConfigError."""
    if isinstance(given, str):
        place, fields = given, read_yaml(Path(given))
        if is_values_file(fields):
            place, fields = _of_chart(fields, place)
    else:
        place, fields = "scheduling", dict(DEFAULT if given is None else given)
    return build(parse_config(fields, place), place, KnownTypes())


class _PickerValues(msgspec.Struct, rename="camel"):
    plugins_custom_config: dict[str, str]
    plugins_config_file: str = ""


class _RouterValues(msgspec.Struct):
    epp: _PickerValues


def is_values_file(fields: Mapping[str, object]) -> bool:
    """Return whether these are values for one of llm-d's charts."""
    return "router" in fields


def _of_chart(fields: Mapping[str, object], place: str) -> tuple[str, dict[str, object]]:
    """Return the place and the content of the EndpointPickerConfig in a values file: the one that
    it says the picker is started with. Raises ConfigError."""
    try:
        values = msgspec.convert(fields["router"], _RouterValues).epp
    except msgspec.ValidationError as e:
        raise ConfigError(
            f"{place}: router: {e}; expected router.epp.pluginsCustomConfig, as llm-d's charts "
            "have it"
        ) from e
    files = values.plugins_custom_config
    name = values.plugins_config_file or next(iter(files), "")
    if name not in files:
        raise ConfigError(
            f"{place}: router.epp.pluginsConfigFile: {name!r} is not in pluginsCustomConfig: "
            + ", ".join(files)
        )
    place = f"{place}: router.epp.pluginsCustomConfig.{name}"
    return place, parse_yaml(files[name].encode(), place)


class KnownTypes(Mapping[str, PluginType]):
    """Core's plugin types, and those of installed packages, which are loaded when one is asked for
    that core does not have. What asks for a type may raise ConfigError: for a package that brings
    something else, or a name that is taken."""

    def __getitem__(self, name: str) -> PluginType:
        return BUILTIN[name] if name in BUILTIN else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> Mapping[str, PluginType]:
        types = dict(BUILTIN)
        for entry in entry_points(group=ENTRY_POINTS):
            where = (
                f"entry point {entry.name!r} of {entry.dist.name if entry.dist else 'a package'}"
            )
            try:
                loaded = entry.load()
            except Exception as e:
                raise ConfigError(f"{where}: {entry.value} cannot be loaded: {e}") from e
            for kind in loaded if isinstance(loaded, Sequence) else (loaded,):
                if not isinstance(kind, PluginType):
                    raise ConfigError(
                        f"{where}: {entry.value} is a {type(kind).__name__}, not a PluginType "
                        "(inferway.scheduling.registry)"
                    )
                if kind.name in types:
                    raise ConfigError(f"{where}: plugin type {kind.name!r} is there already")
                types[kind.name] = kind
        return types
