"""How commands log: one line each on standard error, the access log where it was asked for."""

from __future__ import annotations

import logging
import sys
from logging.handlers import WatchedFileHandler

from inferway.errors import ConfigError

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
LEVELS = ("debug", "info", "warning", "error")


def set_up(level: str, access_log: str | None = None) -> None:
    """`access_log`: a file, "-" for standard error, None for none. Raises ConfigError."""
    if level not in LEVELS:
        raise ConfigError(f"log level {level!r}: expected one of {', '.join(LEVELS)}")
    logging.basicConfig(
        level=level.upper(), format=FORMAT, datefmt="%H:%M:%S", stream=sys.stderr, force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logger = logging.getLogger("inferway.access")
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    if access_log is None:
        return
    handler = _file(access_log) if access_log != "-" else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


def _file(path: str) -> logging.Handler:
    """Opened anew when logrotate has moved it away."""
    try:
        return WatchedFileHandler(path)
    except OSError as e:
        raise ConfigError(f"access log {path!r} cannot be written: {e.strerror}") from e
