"""The command `inferway demo`."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import click

from inferway.cli.command import Command, section
from inferway.cli.flag import Whole, option
from inferway.errors import ConfigError

_WIDTH = 80  # of the tables


@click.command(cls=Command)
@section(
    "What is shown",
    option(
        "--model",
        envvar="MODEL_NAME",
        metavar="MODEL",
        help="Use the tokenizer and chat template of this model, a hub id or a directory. The "
        "variable MODEL_NAME is read, too.  [default: SmolLM2, which is part of the package]",
    ),
    option(
        "--block-size",
        envvar="BLOCK_SIZE",
        type=Whole(min=1, max=4096),
        default=16,
        metavar="TOKENS",
        help="Let the simulated engines keep this number of tokens in a block. The variable "
        "BLOCK_SIZE is read, too.  [default: 16]",
    ),
    option(
        "--port",
        envvar="HTTP_PORT",
        type=Whole(min=0, max=65535),
        default=8080,
        metavar="PORT",
        help="Listen on this port; 0 takes a free one. The variable HTTP_PORT is read, too.  "
        "[default: 8080]",
    ),
    option("--exit", "exit_after", is_flag=True, help="Stop after the phases, and serve nothing."),
    example="inferway demo --port 9000",
)
def demo(model: str | None, block_size: int, port: int, exit_after: bool) -> None:
    """Show cache-aware routing on three simulated engines, then serve until Ctrl-C.

    Each prompt is sent through Inferway, through round-robin and to an engine with an empty cache,
    and the times to the first token stand beside each other.
    """
    import uvloop
    from rich.console import Console

    from inferway.cli.logs import set_up
    from inferway_sim.demo import DemoSettings, run_demo

    set_up("warning")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 has no bars
    console = Console(color_system=None if os.environ.get("NO_COLOR") else "auto", highlight=False)
    console.width = min(console.width, _WIDTH)
    try:
        settings = DemoSettings(model, block_size, port)
        uvloop.run(run_demo(settings, console, exit_after=exit_after))
    except ConfigError as e:
        click.echo(f"inferway demo: {e}", err=True)
        sys.exit(2)
