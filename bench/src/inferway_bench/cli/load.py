"""`inferway bench load`."""

from __future__ import annotations

from typing import Any

import click

from inferway.cli.command import Command
from inferway_bench.cli.load_options import results, schedule, server, workload


@click.command(cls=Command)
@click.argument("url")
@schedule
@workload
@server
@results
def load(url: str, **given: Any) -> None:
    """Load an OpenAI endpoint and measure it: URL, as in http://127.0.0.1:8000.

    Sessions grow turn by turn. Latency counts from the time at which a request was meant to be
    sent, so that a server that stalls is charged with all that it delays.
    """
    from inferway_bench.cli.load_run import measure

    measure(url, given)
