"""Plugin types by name: what a configuration may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from inferway.scheduling.profile import Profile


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of types that take none."""


@dataclass(frozen=True, slots=True)
class Building:
    """What a plugin may need to be built, beside its parameters."""

    plugins: Mapping[str, object] = field(default_factory=dict)  # built before it, by name
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # profile handlers only
    random: Random = field(default_factory=Random)


@dataclass(frozen=True, slots=True)
class PluginType:
    """A third party adds one under the entry point group `inferway.plugins`: the entry's value is a
    PluginType."""

    name: str  # as llm-d calls it, where llm-d has it
    about: str  # one line for docs/plugins.md
    build: Callable[[Any, Building], object]  # (parameters, ...) -> a plugin; raises ConfigError
    # A frozen msgspec.Struct with rename="camel" and forbid_unknown_fields; its defaults are
    # llm-d's.
    parameters: type[msgspec.Struct] = NoParameters
