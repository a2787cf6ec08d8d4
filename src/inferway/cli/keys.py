"""`inferway keys`: API keys for a gateway's callers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

import click
import msgspec

from inferway.cli.command import Command, section
from inferway.cli.flag import option
from inferway.errors import ConfigError
from inferway.routing.limits.callers import (
    Callers,
    KeyFile,
    KeySettings,
    hash_of,
    new_key,
    read_keys,
)


@click.group()
def keys() -> None:
    """Make API keys for callers, for --api-keys of inferway serve."""


@keys.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name")
@section(
    "What the key allows",
    option(
        "--tenant",
        default="",
        metavar="TENANT",
        help="Count the caller's requests to this tenant's share of the engines.  [default: NAME]",
    ),
    option(
        "--priority",
        type=int,
        default=0,
        metavar="N",
        help="Give the caller's requests this priority; higher ones go first.  [default: 0]",
    ),
    option(
        "--admin",
        is_flag=True,
        help="Allow admin paths, and show the caller how its requests were decided.",
    ),
    example="inferway keys add keys.yaml search-team --priority 5",
)
def add(file: Path, name: str, tenant: str, priority: int, admin: bool) -> None:
    """Make a key for the caller NAME, write its hash into FILE and print the key, which is kept
    nowhere."""
    key = new_key()
    try:
        known = read_keys(file).keys if file.exists() else []
        made = KeySettings(
            name=name, hash=hash_of(key), tenant=tenant, priority=priority, admin=admin
        )
        Callers([*known, made])
        _write(file, KeyFile(keys=[*known, made]))
    except ConfigError as e:
        click.echo(f"inferway keys add: {e}", err=True)
        sys.exit(2)
    click.echo(key)


@keys.command("hash")
def hash_() -> None:
    """Print the hash of a key of your own, which is read from standard input, because everybody on
    the machine sees arguments."""
    try:
        click.echo(hash_of(sys.stdin.readline().strip()))
    except ConfigError as e:
        click.echo(f"inferway keys hash: {e}", err=True)
        sys.exit(2)


def _write(path: Path, content: KeyFile) -> None:
    """All of it or nothing; for the owner's eyes. Raises ConfigError."""
    try:
        msgspec.convert(msgspec.to_builtins(content), KeyFile)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(msgspec.yaml.encode(content))
        if path.exists():
            os.chmod(file.name, path.stat().st_mode & 0o777)
        os.replace(file.name, path)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{str(e)[0].lower()}{str(e)[1:]}") from e
    except OSError as e:
        raise ConfigError(f"{path}: cannot be written: {e.strerror}") from e
