"""settings -> what serves: a gateway, alone or with workers beside it."""

from __future__ import annotations

import os

from inferway.app import Gateway
from inferway.cluster.hub import ServingHub
from inferway.config import ServeSettings
from inferway.prompts.files.given_files import check_given
from inferway.serving import Served


def built(settings: ServeSettings, *, picks: bool = False) -> Served:
    """Return what is to be served with. `picks`: it is an endpoint picker. Raises ConfigError."""
    check_given(settings.models)
    workers = num_workers(settings)
    if workers == 1:
        return Gateway(settings, picks=picks)
    return ServingHub(settings, workers, picks=picks)


def num_workers(settings: ServeSettings) -> int:
    """Return how many processes are to answer requests; `auto` leaves a core to the hub."""
    if settings.workers == "auto":
        return max(1, len(os.sched_getaffinity(0)) - 1)
    return settings.workers
