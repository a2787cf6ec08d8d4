"""`inferway status` and `inferway top`: a running gateway's fleet as tables in the terminal."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import NoReturn

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from inferway.cli import asked_gateway
from inferway.cli.asked_gateway import ACCESS, gateway_client, url_of
from inferway.cli.command import Command, section
from inferway.cli.flag import Number, Whole, option
from inferway.cli.fleet_state import CannotAskError, FleetState, GatewayClient
from inferway.cli.fleet_table import fleet_table, rates
from inferway.signals import interrupt_once


@click.command(cls=Command)
@section(
    "Fleet",
    asked_gateway.words(),
    *ACCESS,
    option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables."),
    example="inferway status http://10.0.0.2:8080",
)
def status(
    words: tuple[str, ...], admin_key_env: str | None, ca: str | None, as_json: bool
) -> None:
    """Show the fleet of the gateway at URL (http://127.0.0.1:8080), and whether it is ready.

    The exit status is 0 if the gateway is ready, 1 if it is not, and 2 if it cannot be asked.
    """
    try:
        state = gateway_client(url_of(words), admin_key_env, ca).ask()
    except CannotAskError as e:
        _cannot("status", e)
    if as_json:
        click.echo(json.dumps(asdict(state), default=msgspec.to_builtins))
    else:
        console = Console(highlight=False)
        console.print(fleet_table(state, console.width))
    sys.exit(0 if state.ready else 1)


@click.command(cls=Command)
@section(
    "Fleet",
    asked_gateway.words(),
    *ACCESS,
    option(
        "--interval",
        type=Number(min=0.1),
        default=2.0,
        show_default=True,
        help="Seconds between two looks.",
    ),
    option("--count", type=Whole(min=1), help="End after this many looks."),
    example="inferway top http://10.0.0.2:8080 --interval 1",
)
def top(
    words: tuple[str, ...],
    admin_key_env: str | None,
    ca: str | None,
    interval: float,
    count: int | None,
) -> None:
    """Show the fleet of the gateway at URL (http://127.0.0.1:8080), live, with rates per second.

    The keys q and Ctrl-C end it. Where the output is no terminal, one table follows another.
    """
    interrupt_once()  # the terminal is restored
    try:
        looks = _Looks(gateway_client(url_of(words), admin_key_env, ca))
        first = looks.next()
        if sys.stdout.isatty():
            _live(looks, first, interval, count)
        else:
            _plain(looks, first, interval, count)
    except CannotAskError as e:
        _cannot("top", e)
    except KeyboardInterrupt:
        pass


class _Looks:
    """One look after the other; each is shown with what has changed since the one before."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self._before: tuple[float, FleetState] | None = None
        self._width = 80

    def next(self) -> Callable[[int], RenderableType]:
        """Width -> tables. Raises CannotAskError."""
        now, state = time.monotonic(), self._gateway.ask()
        rate = None
        if self._before is not None:
            then, before = self._before
            rate = rates(before, state, max(now - then, 0.001))
        self._before = now, state
        return lambda width: fleet_table(state, width, rate)


def _plain(
    looks: _Looks,
    show: Callable[[int], RenderableType],
    interval: float,
    count: int | None,
) -> None:
    console, shown = Console(highlight=False), 0
    while True:
        console.print(Text(time.strftime("%Y-%m-%dT%H:%M:%S%z")), show(console.width))
        shown += 1
        if shown == count:
            return
        time.sleep(interval)
        show = looks.next()


def _live(
    looks: _Looks,
    show: Callable[[int], RenderableType],
    interval: float,
    count: int | None,
) -> None:
    console, shown, fault = Console(highlight=False), 0, ""
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            foot = Text(fault or f"every {interval:g} s; q ends", "red" if fault else "dim")
            live.update(Group(show(console.width), foot), refresh=True)
            shown += 1
            if shown == count or pressed(interval):
                return
            try:
                show, fault = looks.next(), ""
            except CannotAskError as e:  # it may come back
                fault = str(e)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits for so many seconds, or until q is pressed, which it tells."""
    if not sys.stdin.isatty():
        yield _slept
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _pressed(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if ready and os.read(sys.stdin.fileno(), 32).lower().find(b"q") >= 0:
            return True
    return False


def _cannot(command: str, error: CannotAskError) -> NoReturn:
    click.echo(f"inferway {command}: {error}", err=True)
    sys.exit(2)
