"""`inferway doctor`: says what is wrong here, and the fix."""

from __future__ import annotations

import asyncio
import os

import click

from inferway.cli.command import Command, section
from inferway.cli.flag import option
from inferway.cli.serve_options import ENGINE_URLS, listed
from inferway.cli.setting_options import option_of
from inferway.config import ServeSettings, check_engines
from inferway.doctor.examination import examine
from inferway.doctor.machine import cache_dir
from inferway.doctor.rules import CheckResult, Level
from inferway.errors import ConfigError

LOCAL_GATEWAY = "http://127.0.0.1:8080"
COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command(cls=Command)
@section(
    "Engines",
    ENGINE_URLS,
    *(option_of(key) for key in ("engines", "engine_ca", "engine_cert", "engine_key")),
    example="inferway doctor http://10.0.0.5:8000",
)
@section(
    "Gateway",
    option(
        "--gateway",
        metavar="URL",
        help="Ask this running gateway for the alarms of its page, which requests go by load, what "
        "breaks the caches of conversations, and which prompts are nearly the same and part early: "
        "the ten that cost the most.",
    ),
    option(
        "--live",
        is_flag=True,
        help=f"The same of the gateway at {LOCAL_GATEWAY}, if --gateway gives no other.",
    ),
    option(
        "--admin-key-env",
        metavar="NAME",
        help="Send the gateway the admin key that this environment variable holds.",
    ),
    example="inferway doctor --gateway http://127.0.0.1:8080",
)
def doctor(
    urls: tuple[str, ...],
    engines: tuple[str, ...],
    engine_ca: str | None,
    engine_cert: str | None,
    engine_key: str | None,
    gateway: str | None,
    live: bool,
    admin_key_env: str | None,
) -> None:
    """Check this machine, the hub, the given engines and a running gateway with its fleet, and name
    the fix of what is wrong. Each engine is asked for one token, in a chat with a tool.

    The exit status is 1 if something must be fixed; warnings alone leave it at 0.
    """
    try:
        asked = listed(urls, engines)
        check_engines(asked)
        tls = ServeSettings(
            engines=asked, engine_ca=engine_ca, engine_cert=engine_cert, engine_key=engine_key
        ).engine_tls()
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    admin_key = None if admin_key_env is None else _held_by(admin_key_env)
    if live and gateway is None:
        gateway = LOCAL_GATEWAY
    found = examine(asked, cache_dir(), os.environ, tls, gateway, admin_key)
    findings = asyncio.run(found)
    for finding in findings:
        _show(finding)
    if any(finding.level is Level.FAIL for finding in findings):
        raise SystemExit(1)


def _held_by(variable: str) -> str:
    key = os.environ.get(variable)
    if not key:
        raise click.ClickException(f"--admin-key-env: the variable {variable!r} is not set")
    return key


def _show(finding: CheckResult) -> None:
    level = click.style(f"{finding.level:<5}", fg=COLORS[finding.level])
    click.echo(f"{level}{finding.subject}: {finding.evidence}")
    if finding.cure:
        click.echo(f"     fix: {finding.cure}")
