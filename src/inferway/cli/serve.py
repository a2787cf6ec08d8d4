"""`inferway serve`."""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from inferway.cli.serve_options import overrides, serve_options
from inferway.config import load_settings
from inferway.errors import ConfigError


@click.command()
@serve_options
def serve(config: Path | None, **flags: Any) -> None:
    """Route OpenAI requests to a fleet of vLLM engines, by what their KV caches hold."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until `run` listens to it; it would end us
    try:
        _run(config, overrides(**flags))
    except ConfigError as e:
        click.echo(f"inferway serve: {e}", err=True)
        sys.exit(2)


def _run(config: Path | None, given: dict[str, object]) -> None:
    import uvloop

    from inferway.app import serve as run
    from inferway.cli.logs import set_up

    settings = load_settings(config, given)
    set_up(settings.log_level, settings.access_log)
    uvloop.run(run(settings, reread=partial(load_settings, config, given)))
