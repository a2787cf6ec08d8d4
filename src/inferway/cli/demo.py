"""`inferway demo`."""

from __future__ import annotations

import sys

import click

from inferway.errors import ConfigError


@click.command()
@click.option("--exit", "exit_after", is_flag=True, help="Stop after the phases.")
def demo(exit_after: bool) -> None:
    """Show all of it on an embedded simulated fleet, then serve until Ctrl-C.

    The environment sets MODEL_NAME (default SmolLM2), BLOCK_SIZE (16), HTTP_PORT (8080) and
    HF_TOKEN.
    """
    import uvloop
    from rich.console import Console

    from inferway.cli.logs import set_up
    from inferway.demo import DemoSettings, run_demo

    try:
        set_up("info")
        settings = DemoSettings.from_environment()
        uvloop.run(run_demo(settings, Console(), exit_after=exit_after))
    except ConfigError as e:
        click.echo(f"inferway demo: {e}", err=True)
        sys.exit(2)
