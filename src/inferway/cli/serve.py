"""The command `inferway serve`."""

from __future__ import annotations

import logging
import signal
from functools import partial
from pathlib import Path
from typing import Any

import click

from inferway.cli.command import ServerCommand, warnings_of
from inferway.cli.logs import refuse, set_up, set_up_early
from inferway.cli.serve_options import overrides, serve_options
from inferway.config import load_settings
from inferway.errors import ConfigError

log = logging.getLogger("inferway")


@click.command(cls=ServerCommand)
@serve_options
def serve(config: Path | None, **flags: Any) -> None:
    """Route OpenAI requests to a fleet of vLLM engines, by what their KV caches hold.

    Each ENGINE_URL is http://HOST:PORT or unix:/PATH, and may be followed by ,KEY=VALUE… as
    --engine describes. Clients then send their requests to the gateway, at --port.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until `run` listens to it; it would end us
    set_up_early(flags["log_format"])
    try:
        _run(config, overrides(**flags))
    except ConfigError as e:
        refuse("serve", e)


def _run(config: Path | None, given: dict[str, object]) -> None:
    import uvloop

    from inferway.cluster.hub import built
    from inferway.serving import serve as run

    settings = load_settings(config, given)
    set_up(settings.log_level, settings.access_log, settings.log_format)
    for warning in warnings_of(click.get_current_context()):
        log.warning("%s", warning)
    reread = partial(load_settings, config, given)
    uvloop.run(run(partial(built, settings), reread=reread))
