"""`inferway config`: is a configuration valid, and what does it come to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from inferway.cli.command import Command
from inferway.cli.effective import effective
from inferway.cli.serve_options import environment_of, overrides, serve_options
from inferway.config import ServeSettings, load_settings, read_yaml
from inferway.errors import ConfigError
from inferway.routing.limits.callers import read_callers
from inferway.scheduling.document import KIND
from inferway.scheduling.load import is_values_file, load_scheduling, scheduling_of
from inferway.scheduling.scheduling import Scheduling


@click.group()
def config() -> None:
    """Check a configuration, or show which settings are in force."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Say whether FILE can be used. It has settings of inferway serve, or is an
    EndpointPickerConfig of llm-d, or values for its charts with one."""
    try:
        fields = read_yaml(file)
        if fields.get("kind") == KIND or is_values_file(fields):
            scheduling = load_scheduling(str(file))
        else:
            settings = load_settings(file, {})
            scheduling = scheduling_of(settings)
            if settings.api_keys is not None:
                read_callers(Path(settings.api_keys))
    except ConfigError as e:
        click.echo(f"inferway config check: {e}", err=True)
        sys.exit(2)
    _say(scheduling)
    click.echo(f"{file}: valid")


@config.command(cls=Command)
@serve_options
def show(config: Path | None, **flags: Any) -> None:
    """Show every setting that would be in force, and where its value comes from: a flag, the
    environment, the file or the default.

    It takes the flags of inferway serve, and shows no secrets.
    """
    try:
        given = overrides(**flags)
        settings: ServeSettings = load_settings(config, given)
        scheduling = scheduling_of(settings)
    except ConfigError as e:
        click.echo(f"inferway config show: {e}", err=True)
        sys.exit(2)
    in_file = read_yaml(config) if config else {}
    environment = environment_of(click.get_current_context())
    for key, value, origin in effective(settings, given, in_file, str(config), environment):
        click.echo(f"{key}: {value}  # {origin}")
    _say(scheduling)


def _say(scheduling: Scheduling) -> None:
    for note in scheduling.notes:
        click.echo(f"note: {note}")
