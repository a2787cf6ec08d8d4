"""The settings of a hub, and what of them its workers get."""

from __future__ import annotations

import msgspec

from inferway.config import (
    UNIX,
    DiscoverySettings,
    PeerSettings,
    PickerSettings,
    ServeSettings,
)
from inferway.errors import ConfigError


def worker_settings(settings: ServeSettings, port: int, picker: PickerSettings) -> ServeSettings:
    """Return the settings of a worker, which listens on that port and on the picker's: all that
    exists once is the hub's."""
    return msgspec.structs.replace(
        settings,
        engines=[],
        discovery=DiscoverySettings(),
        port=port,
        picker=picker,
        admin_port=None,
        publish=None,
        state_dir=None,
        peers=PeerSettings(),
        records=msgspec.structs.replace(settings.records, directory=None),
    )


def check_together(settings: ServeSettings) -> None:
    """Raises ConfigError for what several processes cannot serve together."""
    if settings.host.startswith(UNIX):
        raise ConfigError(
            f"workers: several processes cannot share the Unix socket {settings.host!r}; listen on"
            " a port (host: 127.0.0.1), or serve with one worker"
        )
