"""One profile."""

from __future__ import annotations

from inferway.errors import ConfigError
from inferway.scheduling.plugin import Chooser
from inferway.scheduling.registry import Building, NoParameters, PluginType


def _build(parameters: NoParameters, building: Building) -> Chooser:
    profiles = building.profiles
    if len(profiles) != 1:
        raise ConfigError(
            f"{len(profiles)} profiles ({', '.join(profiles)}); single-profile-handler takes one"
        )
    return next(iter(profiles.values()))


TYPE = PluginType(
    "single-profile-handler", "uses the only profile for every request", _build, is_handler=True
)
