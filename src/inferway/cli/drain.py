"""`inferway drain`: takes an engine out of a running gateway's fleet, or puts it back."""

from __future__ import annotations

import sys
import time
from urllib.parse import quote

import click

from inferway.cli import asked_gateway
from inferway.cli.asked_gateway import ACCESS, gateway_client, url_and_name
from inferway.cli.command import Command, section
from inferway.cli.flag import Number, option
from inferway.cli.fleet_state import CannotAskError, GatewayClient

_LOOK_SECONDS = 1.0


@click.command(cls=Command)
@section(
    "Engine",
    asked_gateway.words("ENGINE"),
    *ACCESS,
    option(
        "--hand-over",
        is_flag=True,
        help="Have other engines go on with the streams that have not ended after --grace.",
    ),
    option(
        "--grace",
        type=Number(min=0),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="Let the engine stream for so long before --hand-over.",
    ),
    option("--resume", is_flag=True, help="Give the engine requests again."),
    option(
        "--wait/--no-wait",
        default=True,
        help="Return when the engine has no requests left, or at once.  [default: wait]",
    ),
    example="inferway drain http://10.0.0.2:8080 10.0.0.5:8000 --hand-over --grace 10",
)
def drain(
    words: tuple[str, ...],
    hand_over: bool,
    grace: float,
    resume: bool,
    wait: bool,
    admin_key_env: str | None,
    ca: str | None,
) -> None:
    """Take ENGINE, named as in `inferway status`, out of the fleet of the gateway at URL
    (http://127.0.0.1:8080): it gets no new requests, and hands its warm prefixes over to engines
    that take them.

    The exit status is 0 when that is done, and 2 if it cannot be.
    """
    url, engine = url_and_name(words, "ENGINE")
    if engine is None:
        raise click.UsageError("give ENGINE, named as in `inferway status`")
    path = f"/admin/engines/{quote(engine, safe='')}"
    try:
        gateway = gateway_client(url, admin_key_env, ca)
        if resume:
            gateway.post(f"{path}/resume")
            click.echo(f"{engine} gets requests again")
            return
        gateway.post(f"{path}/drain" + (f"?streams_after={grace:g}" if hand_over else ""))
        click.echo(f"{engine} gets no new requests")
        if wait:
            _wait(gateway, engine)
    except CannotAskError as e:
        click.echo(f"inferway drain: {e}", err=True)
        sys.exit(2)


def _wait(gateway: GatewayClient, name: str) -> None:
    """Return when the engine has no requests left, and hands nothing over. Raises
    CannotAskError."""
    told = ""
    while True:
        found = [each for each in gateway.ask().engines if each.name == name]
        if not found or (found[0].state in ("drained", "down") and not found[0].in_flight):
            click.echo(f"{name} is drained: it has no requests left")
            return
        now = f"{found[0].in_flight} requests left"
        if now != told:
            click.echo(now)
            told = now
        time.sleep(_LOOK_SECONDS)
