"""Plugin types by name: what a configuration may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from inferway.scheduling.plugin import ProfileHandler


class Parameters(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The parameters of a plugin type, by llm-d's names and with llm-d's defaults. A value that
    cannot hold is refused, also where llm-d puts its default in its place."""


class NoParameters(Parameters, frozen=True):
    """The parameters of plugin types that take none."""


@dataclass(frozen=True, slots=True)
class Building:
    """Everything that a plugin may need to be built, beside its parameters."""

    plugins: Mapping[str, object] = field(default_factory=dict)  # built before it, by name
    profiles: Mapping[str, ProfileHandler] = field(default_factory=dict)  # profile handlers only
    random: Random = field(default_factory=Random)
    name: str = ""  # its own: its type, unless it is given one
    types: Mapping[str, str] = field(default_factory=dict)  # of all that are asked for, by name

    def type_of(self, name: str) -> str:
        """Return the type of the plugin of that name. One that nobody asked for has its type's name
        (`PluginType.needs`)."""
        return self.types.get(name, name)

    def sole_plugin_of(self, kind: str) -> str:
        """Return the name of the plugin of that type: where there are several, or none, its own."""
        names = [name for name, its in self.types.items() if its == kind]
        return names[0] if len(names) == 1 else kind


def _parameters_alone(parameters: Any, building: Building) -> object:
    return parameters


def _needs_nothing(parameters: Any) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class PluginType:
    """A third party adds one under the entry point group `inferway.plugins`: the entry's value is a
    PluginType, or a sequence of them."""

    name: str  # as llm-d calls it, where llm-d has it
    about: str  # one line for docs/plugins.md
    # (parameters, ...) -> a plugin; raises ConfigError. One without any state is its parameters.
    build: Callable[[Any, Building], object] = _parameters_alone
    # A subclass of Parameters.
    parameters: type[msgspec.Struct] = NoParameters
    is_handler: bool = False  # a profile handler: built last, with the profiles
    # parameters -> plugins whose columns it reads, by name or type. They produce before it does; a
    # type of which there is none is added with its defaults.
    needs: Callable[[Any], Sequence[str]] = _needs_nothing
    # Parameters that llm-d has a use for and we do not, by their paths ("a", "a.b"): who gives one
    # is told.
    not_in_force: frozenset[str] = frozenset()
