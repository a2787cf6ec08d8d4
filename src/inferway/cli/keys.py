"""`inferway keys`: API keys for a gateway's callers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

import click
import msgspec

from inferway.errors import ConfigError
from inferway.flow.callers import Callers, KeyFile, KeySettings, hash_of, new_key, read_keys


@click.group()
def keys() -> None:
    """Make API keys for callers; see `api_keys` in the configuration."""


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name")
@click.option("--tenant", default="", help="Whose share of the engines it takes.  [default: NAME]")
@click.option("--priority", type=int, default=0, help="Higher ones go first.  [default: 0]")
@click.option("--admin", is_flag=True, help="May use admin paths, and see how is decided.")
def add(file: Path, name: str, tenant: str, priority: int, admin: bool) -> None:
    """Make a key, write its hash into FILE and print the key, which is kept nowhere."""
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
    """Print the hash of a key of your own, which is read from standard input: arguments are seen by
    everybody on the machine."""
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
