"""The running gateway that a command asks: where it is, with which key.

One rule for all such commands: [URL] first, then what it is asked about, an id or an engine's name.
A URL is told from these by its `http://`, so the other order is read as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import click

from inferway.cli.command import Decorator
from inferway.cli.flag import option
from inferway.cli.fleet_state import CannotAskError, GatewayClient

URL = "http://127.0.0.1:8080"
_ADDRESS = re.compile(r"[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")

ACCESS = (
    option(
        "--admin-key-env",
        metavar="NAME",
        help="Send the admin key that this environment variable holds.",
    ),
    option("--ca", metavar="FILE", help="Trust these certificates (PEM) where URL is https://."),
)


def words(about: str = "") -> Decorator:
    """Return the arguments of a command: [URL], and what the help calls `about`."""
    return click.argument("words", nargs=-1, metavar=f"[URL] {about}".rstrip())


def url_of(given: Sequence[str]) -> str:
    """Return the gateway's URL of a command that takes nothing else. Raises UsageError."""
    url, name = url_and_name(given, "URL")
    if name is not None:
        meant = f"; did you mean http://{name}?" if _ADDRESS.fullmatch(name) else ""
        raise click.UsageError(f"{name!r}: expected http://HOST:PORT{meant}")
    return url


def url_and_name(given: Sequence[str], what: str) -> tuple[str, str | None]:
    """Return the gateway's URL, and the id or name beside it, if there is one. Raises
    UsageError."""
    urls = [word for word in given if "://" in word]
    names = [word for word in given if "://" not in word]
    if len(urls) > 1:
        raise click.UsageError(f"{urls[1]!r}: one URL only, that of the gateway")
    if len(names) > 1:
        raise click.UsageError(f"{names[1]!r}: one {what} only; the gateway is http://HOST:PORT")
    return (urls[0] if urls else URL), (names[0] if names else None)


def gateway_client(url: str, admin_key_env: str | None, ca: str | None) -> GatewayClient:
    """Return the gateway at `url`, as the options say. Raises CannotAskError."""
    key = None
    if admin_key_env is not None:
        key = os.environ.get(admin_key_env)
        if not key:
            raise CannotAskError(
                f"--admin-key-env {admin_key_env!r} is not set in the environment; export it"
            )
    return GatewayClient(url, key, ca)
