"""The settings of a hub, and what of them its workers get."""

from __future__ import annotations

import msgspec

from inferway.config import UNIX, PickerSettings, ServeSettings
from inferway.config.setting import without_once
from inferway.errors import ConfigError


def worker_settings(settings: ServeSettings, port: int, picker: PickerSettings) -> ServeSettings:
    """Return the settings of a worker, which listens on that port and on the picker's: all that
    exists once is the hub's."""
    return msgspec.structs.replace(without_once(settings), port=port, picker=picker)


def check_together(settings: ServeSettings) -> None:
    """Raises ConfigError for what several processes cannot serve together."""
    if settings.host.startswith(UNIX):
        raise ConfigError(
            f"workers: several processes cannot share the Unix socket {settings.host!r}; listen on"
            " a port (host: 127.0.0.1), or serve with one worker and without followers"
        )
