"""The common schedulings by a short word: `--policy`, and the key `policy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from inferway.config import Policy, ServeSettings
from inferway.scheduling.least_loaded import LeastLoaded
from inferway.scheduling.load import DEFAULT, load_scheduling
from inferway.scheduling.scheduling import Scheduling

POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

# What each word means as `scheduling` would say it. `least-load` has no plugin: no scorer ranks by
# the plain number of requests, as `LeastLoaded` does.
CONFIGURATIONS: Final[Mapping[Policy, Mapping[str, Any]]] = {
    "expected-ttft": DEFAULT,
    "kv-aware": {
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
    },
    "round-robin": {"plugins": [{"type": "max-score-picker"}]},  # without scores equals take turns
}


def scheduling_of(settings: ServeSettings) -> Scheduling:
    """How the settings choose endpoints, by `policy`, `scheduling` or neither. Raises ConfigError
    for a configuration that cannot be built."""
    if settings.policy == "least-load":
        return Scheduling(LeastLoaded())
    if settings.policy is not None:
        return load_scheduling(CONFIGURATIONS[settings.policy])
    if settings.scheduling is None and not settings.scoring:
        return Scheduling(LeastLoaded())
    return load_scheduling(settings.scheduling)
